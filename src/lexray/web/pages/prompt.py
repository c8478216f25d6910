"""A prompt: what the model expects, how it comes to that, and what changes with its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lexray.edits.parse import read_edits
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.web.expression import Expression, name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.pages.head import spell_token
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, Width

LONGEST = 6000
"""Letters of a prompt."""
TOKENS = 256
"""Tokens of a prompt: what a grid and a graph can show."""
NEXT, LEAVES, EDITS = 12, 12, 12
EXAMPLE = "This movie was"


def read_prompt(library: Library, place: Viewpoint, query: Query) -> Sheet:
    """The page: `text`, `position`, `target`, `edits`; without a text, the box to type one. Of an
    encoder–decoder `text` is the source, and `begin` how the target begins."""
    text = query.text("text", LONGEST)
    typed = read_typed(place, place.model, query)
    return Sheet(
        "prompt",
        "Prompt",
        place,
        ("prompt",),
        tuple(typed.sections()) if typed else (),
        Markup(""),
        join(_form(place, query, text), typed.show_tokens() if typed else None),
        facts=typed.facts if typed else (),
    )


def read_typed(place: Viewpoint, model: Anatomy, query: Query) -> PromptRun | None:
    """The prompt that was typed, if one was."""
    text = query.text("text", LONGEST)
    return PromptRun.read(place, model, query, text) if text.strip() else None


@dataclass(frozen=True)
class Begin:
    """How the target of an encoder–decoder begins, after the token that begins all of them."""

    text: str
    ids: tuple[int, ...]

    @classmethod
    def read(cls, model: Anatomy, query: Query) -> Begin:
        text = query.text("begin", LONGEST)
        return cls(text, tuple(model.vocabulary.encode(text, special=False)) if text else ())


class PromptRun:
    """What is run, and where one looks."""

    def __init__(
        self,
        place: Viewpoint,
        model: Anatomy,
        text: str,
        ids: list[int],
        begin: Begin | None,
        position: int,
        target: str | int | None,
        edits: list[str],
    ) -> None:
        self.place, self.model, self.text, self.ids = place, model, text, ids
        self.begin, self.position, self.target, self.edits = begin, position, target, edits

    @classmethod
    def read(cls, place: Viewpoint, model: Anatomy, query: Query, text: str) -> PromptRun:
        ids = model.vocabulary.encode(text, special=True)
        begin = None if model.architecture.encoder is None else Begin.read(model, query)
        for n in (len(ids), 0 if begin is None else len(begin.ids)):
            if n > TOKENS:
                raise LexrayError(
                    f"this prompt has {n:,} tokens; the app runs up to {TOKENS}, longer ones "
                    "run from Python: model.trace(text, layers=…, positions=…)"
                )
        if not ids:
            raise LexrayError("this prompt has no tokens")
        steps = len(ids) if begin is None else 1 + len(begin.ids)
        position = query.number("position", -1, -steps, steps - 1)
        typed = query.text("target", 100)
        target = spell_token(model, typed) if typed.strip() else None
        edits = [str(edit) for edit in read_edits(query.text("edits", 1000))]
        if len(edits) > EDITS:
            raise LexrayError(f"{len(edits)} changes at once; at most {EDITS} are taken here")
        return cls(place, model, text, ids, begin, position, target, edits)

    @property
    def facts(self) -> tuple[tuple[str, object], ...]:
        token = self.model.space.token
        return (
            ("text", self.text),
            ("tokens", [token(i).to_dict() for i in self.ids]),
            *(() if self.begin is None else (("begin", self.begin.text),)),
            ("position", self.position),
            ("target", self.target),
            ("edits", self.edits),
        )

    def link(self, **changes: object) -> str:
        """The same page with something else."""
        now: dict[str, object] = {
            "text": self.text,
            "begin": None if self.begin is None else self.begin.text,
            "position": None if self.position == -1 else self.position,
            "target": None if self.target is None else _show(self.model, self.target),
            "edits": "; ".join(self.edits),
        }
        return self.place.link("prompt", **{**now, **changes})

    # ------------------------------------------------------------------ what is asked

    def sections(self) -> list[Section]:
        plain, changed = self._trace(), self._trace(edits=self.edits)
        given = ("trace", plain) if not self.edits else ("changed", changed)
        trace = name(given[0])
        aim = [] if self.target is None else [self.target]
        at = {} if self.position == -1 else {"position": self.position}
        wanted = {} if self.target is None else {"target": self.target}
        return [
            *self._answers(plain, changed),
            self._section(
                "lens",
                "Layer by layer",
                trace.call("lens", **wanted),
                given,
                LENS_SAYS,
                "lens",
                "whole" if self.edits else "rest",
            ),
            self._leaves("adds", "What adds to it", trace, aim, given, False),
            self._leaves("takes", "What takes from it", trace, aim, given, True),
            self._section(
                "attention",
                "Where heads look",
                trace.call("attention", **at),
                given,
                "",
                "attention",
            ),
            *self._crossing(trace, given),
            self._section(
                "flow", "What flows", trace.call("flow", **at, **wanted), given, FLOW_SAYS, "flow"
            ),
        ]

    def _trace(self, **options: object) -> Expression:
        """The pass; of an encoder–decoder with how the target begins."""
        begin = {} if self.begin is None or not self.begin.text else {"target": self.begin.text}
        return name("model").call("trace", self.text, **begin, **options)

    def _crossing(self, trace: Expression, given: tuple[str, Expression]) -> list[Section]:
        """Of an encoder–decoder: where the target looks in the source, and the source in itself."""
        if self.begin is None:
            return []
        at = {} if self.position == -1 else {"position": self.position}
        return [
            self._section(
                "cross",
                "Where the target looks in the source",
                trace.call("attention", cross=True, **at),
                given,
                "",
                "attention",
                more=("--cross",),
            ),
            self._section(
                "source",
                "Where the source looks in itself",
                trace.get("encoder").call("attention"),
                given,
                "",
                "attention",
                more=("--encoder",),
            ),
        ]

    def effects(self) -> Section:
        """Every head removed in turn."""
        aim = {} if self.target is None else {"target": self.target}
        call = name("trace").call("effects", "heads", **aim)
        words = [] if self.target is None else ["--target", self.target]
        return Section(
            "heads",
            "Heads",
            call,
            self.place.command("ablate", self.text, *self._began, *words),
            when="soon",
            given=(("trace", self._trace()),),
            urgent=True,
        )

    def _answers(self, plain: Expression, changed: Expression) -> list[Section]:
        ask = {"layers": [-1], "positions": [self.position], "k": NEXT}
        said = "What comes next" if not self.edits else "Unchanged"
        width: Width = "third"
        at = ("--layers=-1", f"--positions={self.position}", "-k", NEXT)
        first = self._section(
            "next",
            said,
            name("trace").call("lens", **ask),
            ("trace", plain),
            "",
            "lens",
            width,
            at,
        )
        if not self.edits:
            return [first]
        again = self._section(
            "changed",
            "Changed",
            name("changed").call("lens", **ask),
            ("changed", changed),
            "",
            "lens",
            width,
            at,
        )
        aim = [] if self.target is None else [self.target]
        effect = name("trace").call(
            "effect",
            self.edits,
            *aim,
            **({} if self.position == -1 else {"position": self.position}),
        )
        third = self._section(
            "effect", "What the change did", effect, ("trace", plain), width=width
        )
        return [first, again, third]

    def _leaves(
        self,
        section: str,
        title: str,
        trace: Expression,
        aim: list[str | int],
        given: tuple[str, Expression],
        negative: bool,
    ) -> Section:
        at = {} if self.position == -1 else {"position": self.position}
        more = {"negative": True} if negative else {}
        call = trace.call("contributions", *aim, **at).call("top", LEAVES, **more)
        says = "Heads and neurons by what they add to the logit; remove one and see." * (
            not negative
        )
        return self._section(
            section, title, call, given, says, "contributions", "half", more=("-n", LEAVES)
        )

    @property
    def _began(self) -> list[str]:
        begun = self.begin is not None and self.begin.text
        return ["--target-text", self.begin.text] if self.begin and begun else []

    def _section(
        self,
        section: str,
        title: str,
        call: Expression,
        given: tuple[str, Expression],
        says: str = "",
        command: str = "",
        width: Width = "whole",
        more: Sequence[str | int] = (),
    ) -> Section:
        """A section of this run; `command` is the one that says the same, with `more` words."""
        line = self._command(command, given[0] == "changed", more) if command else ""
        return Section(section, title, call, line, says, "soon", width, given=(given,), urgent=True)

    def _command(self, command: str, changed: bool, more: Sequence[str | int]) -> str:
        words: list[str | int] = [self.text, *self._began, *more]
        if self.target is not None and command in ("lens", "contributions", "flow"):
            words += ["--target", str(self.target)]
        if changed:
            words += [f"--edits={'; '.join(self.edits)}"]
        if self.position != -1 and command in ("attention", "contributions", "flow"):
            words += ["--position", self.position]
        words += ["-o", "flow.html"] if command == "flow" else []
        return self.place.command(command, *words)

    # ------------------------------------------------------------------ what can be turned

    def show_tokens(self) -> Markup:
        """The prompt as tokens, each a position to look at; and the changes, each to be undone."""
        token = self.model.space.token
        shown = [token(i).shown for i in self.ids]
        source = None
        if self.begin is not None:
            chips = (el("li", el("span", text, class_="tok")) for text in shown)
            source = join(
                el("p", "The encoder reads", class_="note"), el("ol", *chips, class_="words")
            )
            shown = ["begin", *(token(i).shown for i in self.begin.ids)]
        here = self.position % len(shown)
        links = [
            el(
                "a",
                text,
                class_="tok",
                href=self.link(position=None if i == len(shown) - 1 else i),
                aria_current="true" if i == here else None,
                title=f"position {i}",
            )
            for i, text in enumerate(shown)
        ]
        listed = el("ol", *(el("li", each) for each in links), class_="words prompt-tokens")
        shown_all = join(source, listed)
        said = el(
            "p", "The answer is looked at after the marked token; click another.", class_="note"
        )
        if not self.edits:
            return join(shown_all, said)
        undo = [
            el(
                "li",
                el("span", edit),
                el(
                    "a",
                    "×",
                    href=self.link(edits="; ".join(self.edits[:i] + self.edits[i + 1 :])),
                    aria_label=f"undo {edit}",
                ),
            )
            for i, edit in enumerate(self.edits)
        ]
        return join(shown_all, said, el("ul", *undo, class_="edits"))


LENS_SAYS = "What each layer would say if it were the last; the best word of each, by position."
FLOW_SAYS = "Blocks open and close by a click; a chosen head or neuron can be changed above."


def _show(model: Anatomy, target: str | int) -> str:
    return (
        model.space.token(model.space.id(target)).shown if isinstance(target, str) else str(target)
    )


AIM = "Which token's logit (else the most probable)"


def target_field(typed: str) -> Markup:
    return el("input", name="target", value=typed, placeholder="·great", maxlength=100)


def _form(place: Viewpoint, query: Query, text: str) -> Markup:
    pair = place.model.architecture.encoder is not None
    begin = el("input", name="begin", value=query.text("begin", LONGEST), maxlength=LONGEST)
    fields = [
        *([("The target begins", begin)] if pair else []),
        (
            AIM,
            target_field(query.text("target", 100)),
        ),
        (
            "Changes",
            el(
                "input",
                name="edits",
                value=query.text("edits", 1000),
                placeholder="ablate L2H1; scale L3N17 by 2; clamp L3N17 to 8",
                maxlength=1000,
            ),
        ),
    ]
    box = el(
        "textarea", text, name="text", rows=2, maxlength=LONGEST, placeholder=EXAMPLE, required=True
    )
    return el(
        "form",
        el("label", el("span", "Source" if pair else "Text"), box, class_="long"),
        *(el("label", el("span", said), field) for said, field in fields),
        place.hidden,
        el("button", "run", class_="primary"),
        action=place.link("prompt").partition("?")[0],
        method="get",
        class_="ask prompt pair" if pair else "ask prompt",
    )
