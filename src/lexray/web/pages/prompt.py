"""A prompt: what the model expects, how it comes to that, and what changes with its parts."""

from __future__ import annotations

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
    """The page: `text`, `position`, `target`, `edits`; without a text, the box to type one."""
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


class PromptRun:
    """What is run, and where one looks."""

    def __init__(
        self,
        place: Viewpoint,
        model: Anatomy,
        text: str,
        ids: list[int],
        position: int,
        target: str | int | None,
        edits: list[str],
    ) -> None:
        self.place, self.model, self.text, self.ids = place, model, text, ids
        self.position, self.target, self.edits = position, target, edits

    @classmethod
    def read(cls, place: Viewpoint, model: Anatomy, query: Query, text: str) -> PromptRun:
        ids = model.vocabulary.encode(text, special=True)
        if len(ids) > TOKENS:
            raise LexrayError(
                f"this prompt has {len(ids):,} tokens; the app runs up to {TOKENS}, longer ones "
                "run from Python: model.trace(text, layers=…, positions=…)"
            )
        if not ids:
            raise LexrayError("this prompt has no tokens")
        position = query.number("position", -1, -len(ids), len(ids) - 1)
        typed = query.text("target", 100)
        target = spell_token(model, typed) if typed.strip() else None
        edits = [str(edit) for edit in read_edits(query.text("edits", 1000))]
        if len(edits) > EDITS:
            raise LexrayError(f"{len(edits)} changes at once; at most {EDITS} are taken here")
        return cls(place, model, text, ids, position, target, edits)

    @property
    def facts(self) -> tuple[tuple[str, object], ...]:
        token = self.model.space.token
        return (
            ("text", self.text),
            ("tokens", [token(i).to_dict() for i in self.ids]),
            ("position", self.position),
            ("target", self.target),
            ("edits", self.edits),
        )

    def link(self, **changes: object) -> str:
        """The same page with something else."""
        now: dict[str, object] = {
            "text": self.text,
            "position": None if self.position == -1 else self.position,
            "target": None if self.target is None else _show(self.model, self.target),
            "edits": "; ".join(self.edits),
        }
        return self.place.link("prompt", **{**now, **changes})

    # ------------------------------------------------------------------ what is asked

    def sections(self) -> list[Section]:
        plain = name("model").call("trace", self.text)
        changed = name("model").call("trace", self.text, edits=self.edits)
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
            self._section(
                "flow", "What flows", trace.call("flow", **at, **wanted), given, FLOW_SAYS, "flow"
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
            self.place.command("ablate", self.text, *words),
            when="soon",
            given=(("trace", name("model").call("trace", self.text)),),
            urgent=True,
        )

    def _answers(self, plain: Expression, changed: Expression) -> list[Section]:
        ask = {"layers": [-1], "positions": [self.position], "k": NEXT}
        said = "What comes next" if not self.edits else "Unchanged"
        width: Width = "third"
        first = self._section(
            "next", said, name("trace").call("lens", **ask), ("trace", plain), "", width=width
        )
        if not self.edits:
            return [first]
        again = self._section(
            "changed",
            "Changed",
            name("changed").call("lens", **ask),
            ("changed", changed),
            width=width,
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
        return self._section(section, title, call, given, says, width="half")

    def _section(
        self,
        section: str,
        title: str,
        call: Expression,
        given: tuple[str, Expression],
        says: str = "",
        command: str = "",
        width: Width = "whole",
    ) -> Section:
        line = ""
        if command and (command != "flow" or self.position == -1):
            words: list[str | int] = [self.text]
            words += ["--target", str(self.target)] * (
                self.target is not None and command != "attention"
            )
            words += [f"--edits={'; '.join(self.edits)}"] if self.edits else []
            words += (
                ["--position", self.position]
                if self.position != -1 and command == "attention"
                else []
            )
            words += ["-o", "flow.html"] if command == "flow" else []
            line = self.place.command(command, *words)
        return Section(
            section,
            title,
            call,
            line,
            says,
            "soon",
            width,
            given=(given,),
            urgent=True,
        )

    # ------------------------------------------------------------------ what can be turned

    def show_tokens(self) -> Markup:
        """The prompt as tokens, each a position to look at; and the changes, each to be undone."""
        here = self.position % len(self.ids)
        chips = []
        for i, token_id in enumerate(self.ids):
            token = self.model.space.token(token_id)
            to = None if i == len(self.ids) - 1 else i
            current = "true" if i == here else None
            link = el(
                "a",
                token.shown,
                class_="tok",
                href=self.link(position=to),
                aria_current=current,
                title=f"position {i}",
            )
            chips.append(el("li", link))
        shown = el("ol", *chips, class_="words prompt-tokens")
        said = el(
            "p", "The answer is looked at after the marked token; click another.", class_="note"
        )
        if not self.edits:
            return join(shown, said)
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
        return join(shown, said, el("ul", *undo, class_="edits"))


LENS_SAYS = "What each layer would say if it were the last; the best word of each, by position."
FLOW_SAYS = "Blocks open and close by a click; a chosen head or neuron can be changed above."


def _show(model: Anatomy, target: str | int) -> str:
    return (
        model.space.token(model.space.id(target)).shown if isinstance(target, str) else str(target)
    )


def target_field(typed: str) -> Markup:
    return el("input", name="target", value=typed, placeholder="·great", maxlength=100)


def _form(place: Viewpoint, query: Query, text: str) -> Markup:
    fields = [
        (
            "Target (else the most probable)",
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
        el("label", el("span", "Text"), box, class_="long"),
        *(el("label", el("span", said), field) for said, field in fields),
        place.hidden,
        el("button", "run", class_="primary"),
        action=place.link("prompt").partition("?")[0],
        method="get",
        class_="ask prompt",
    )
