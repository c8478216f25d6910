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
from lexray.trace.record.prompt import read_prompts


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
) -> Generation:
    """Continues a prompt by the most probable tokens, with and without edits."""
    from lexray.trace.record.run import record  # imports transformers

    if n < 1:
        raise LexrayError(f"asked for {n} new tokens; give at least 1")
    prompts = read_prompts(model, prompt, special=special)
    if not prompts.single:
        raise LexrayError("one prompt is continued at a time; give one text")
    changes = read_edits(edits)
    refuse_misfits(model, changes, prompts.ids)
    start, ids = len(prompts.ids[0]), []
    for each in ((), changes) if changes else ((),):
        (run,) = record(
            model, prompts.ids, new_tokens=n, what="logits", positions=[0], edits=each, layers=[0]
        )
        ids.append(run.ids.tolist())
    plain = score_tokens(model, ids[0], start, changes)
    changed = score_tokens(model, ids[-1], start, changes)
    tokens = tuple(model.space.token(i) for i in prompts.ids[0])
    texts = tuple(map(str, changes))
    return Generation(model.space.source("generate"), tokens, texts, plain, changed)


def score_tokens(
    model: Anatomy, ids: list[int], start: int, edits: tuple[Edit, ...]
) -> tuple[Generated, ...]:
    """The tokens from `start` on, with their probabilities in the plain run and the changed one."""
    from lexray.trace.record.run import record  # imports transformers

    if len(ids) == start:
        return ()
    sides = []
    for each in ((), edits) if edits else ((),):
        at = range(start - 1, len(ids) - 1)
        (run,) = record(
            model, [ids], what="logits", positions=at, layers=[0], edits=each, n_prompt=start
        )
        p = run.logits.float().softmax(-1)
        sides.append([float(p[i, token]) for i, token in enumerate(ids[start:])])
    pairs = zip(ids[start:], sides[0], sides[-1], strict=True)
    return tuple(Generated(model.space.token(i), p, q) for i, p, q in pairs)
