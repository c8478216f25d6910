"""A text continued with and without a change, side by side, each token with both probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lexray.edits.parse import read_edits
from lexray.edits.values import Edit, Edits
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.apply.resolve import refuse_misfits
from lexray.trace.record.prompt import Prompts, read_prompts
from lexray.trace.recording import Recording


@dataclass(frozen=True)
class Generated:
    """A new token, and how probable it was at its place in either run."""

    token: Token
    plain: float
    changed: float

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token.to_dict(), "plain": self.plain, "changed": self.changed}


@dataclass(frozen=True)
class Generation(Result):
    """The most probable continuation of the plain model, and of the changed one."""

    source: Source
    prompt: tuple[Token, ...]
    edits: tuple[str, ...]
    plain: tuple[Generated, ...]
    changed: tuple[Generated, ...]

    @property
    def text(self) -> str:
        """What the changed model says."""
        return _text(self.changed)

    @property
    def plain_text(self) -> str:
        return _text(self.plain)

    def tables(self) -> list[Table]:
        sides = (("plain", self.plain_text), ("changed", self.text))
        texts = [(run, text.replace("\n", "↵")) for run, text in sides]
        said = Table(
            ("", "continuation"),
            tuple(texts if self.edits else texts[:1]),
            f"After {_join(self.prompt)}",
            " · ".join(filter(None, [self.source.model, "; ".join(self.edits)])),
        )
        return [said, self._tokens()]

    def _tokens(self) -> Table:
        longest = max(len(self.plain), len(self.changed))
        rows: list[tuple[Cell, ...]] = []
        for i in range(longest):
            row: list[Cell] = []
            for side in (self.plain, self.changed) if self.edits else (self.plain,):
                there = side[i] if i < len(side) else None
                row += (
                    [there.token.shown, there.plain, there.changed]
                    if there is not None
                    else ["", None, None]
                )
            rows.append(tuple(row if self.edits else row[:2]))
        columns = ("plain", "p plain", "p changed", "changed", "p plain ", "p changed ")
        return Table(columns if self.edits else columns[:2], tuple(rows))

    def csv_tables(self) -> list[Table]:
        rows: list[tuple[Cell, ...]] = [
            (run, i, g.token.text, g.token.id, g.plain, g.changed)
            for run, side in (("plain", self.plain), ("changed", self.changed))
            for i, g in enumerate(side)
        ]
        columns = ("run", "number", "token", "id", "p_plain", "p_changed")
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "prompt": [token.to_dict() for token in self.prompt],
            "edits": list(self.edits),
            "plain": [g.to_dict() for g in self.plain],
            "changed": [g.to_dict() for g in self.changed],
        }


def _text(tokens: Sequence[Generated]) -> str:
    return "".join(generated.token.text for generated in tokens)


def _join(tokens: Sequence[Token]) -> str:
    return "".join(token.shown for token in tokens)


def generate(
    model: Anatomy,
    prompt: Any,
    n: int,
    edits: Edits | None = None,
    *,
    special: bool = True,
    target: Any = None,
) -> Generation:
    """Continues a prompt by the most probable tokens, with and without edits; of an
    encoder–decoder the beginning of a target, for the prompt as its source."""
    if n < 1:
        raise LexrayError(f"asked for {n} new tokens; give at least 1")
    changes = read_edits(edits)
    begun = Begun.of(model, prompt, target, special=special)
    refuse_misfits(model, changes, *begun.lengths)
    runs = [begun.run(new_tokens=n, edits=each) for each in ([(), changes] if changes else [()])]
    plain, changed = (score_tokens(begun, run.ids.tolist(), changes) for run in (runs[0], runs[-1]))
    tokens = tuple(model.space.token(i) for i in begun.prompt)
    texts = tuple(map(str, changes))
    return Generation(model.space.source("generate"), tokens, texts, plain, changed)


@dataclass(frozen=True)
class Begun:
    """What is continued: a prompt, or a target beside its source."""

    model: Anatomy
    prompt: tuple[int, ...]
    """As the user gave it."""
    source: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: Anatomy, prompt: Any, target: Any, *, special: bool) -> Begun:
        if model.architecture.encoder is None:
            prompts = read_prompts(model, prompt, special=special)
            begun = cls(model, prompts.ids[0])
        else:
            from lexray.trace.record.pair import read_pairs  # imports transformers

            pairs = read_pairs(model, prompt, target, special=special)
            prompts = Prompts(pairs.sources, pairs.single)
            begun = cls(model, pairs.targets[0], pairs.sources[0])
        if not prompts.single:
            raise LexrayError("one prompt is continued at a time; give one text")
        if target is not None and begun.source is None:
            raise LexrayError(f"{model.name} has no encoder: a target is for encoder–decoders")
        return begun

    @property
    def lengths(self) -> tuple[int, int | None]:
        """Of what is continued (a target has one token before it), and of the source."""
        if self.source is None:
            return len(self.prompt), None
        return 1 + len(self.prompt), len(self.source)

    def run(self, ids: Sequence[int] | None = None, **options: Any) -> Recording:
        """A run of it, or of more of it (all ids of the decoder)."""
        from lexray.trace.record.pair import SourceTargets, record_pairs  # imports transformers
        from lexray.trace.record.run import record

        options = {"what": "logits", "positions": [0], "layers": [0], **options}
        if self.source is None:
            return record(self.model, [self.prompt if ids is None else ids], **options)[0]
        target = self.prompt if ids is None else tuple(ids[1:])
        return record_pairs(self.model, SourceTargets((self.source,), (target,), True), **options)[
            0
        ]


def score_tokens(begun: Begun, ids: list[int], edits: tuple[Edit, ...]) -> tuple[Generated, ...]:
    """The new tokens, with their probabilities in the plain run and the changed one."""
    model, start = begun.model, begun.lengths[0]
    if len(ids) == start:
        return ()
    sides = []
    for each in ((), edits) if edits else ((),):
        at = range(start - 1, len(ids) - 1)
        run = begun.run(ids, positions=at, edits=each, n_prompt=start)
        p = run.logits.float().softmax(-1)
        sides.append([float(p[i, token]) for i, token in enumerate(ids[start:])])
    pairs = zip(ids[start:], sides[0], sides[-1], strict=True)
    return tuple(Generated(model.space.token(i), p, q) for i, p, q in pairs)
