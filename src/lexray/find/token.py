"""One token in the embedding: how long its row is, whether it was trained, what lies near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Scored, Source, Token
from lexray.result.table import Cell, Result, Table
from lexray.space.side import Side
from lexray.space.untrained import Why, untrained


@dataclass(frozen=True)
class Row:
    """A token's row of one embedding."""

    embedding: str
    """"output" or "input"; of tied ones there is one."""
    norm: float
    times: float
    """As a multiple of the median norm."""
    shorter: float
    """The share of tokens whose rows are shorter."""
    near: tuple[Scored, ...]
    """The tokens whose rows, less the mean row, have the largest cosine with it."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "norm": self.norm,
            "times_median": self.times,
            "shorter": self.shorter,
            "near": [scored.to_dict() for scored in self.near],
        }


@dataclass(frozen=True)
class TokenRows(Result):
    """The answer of `Model.token`."""

    source: Source
    token: Token
    aside: Why | None
    """Why standard lists set it aside, if they do."""
    rows: tuple[Row, ...]

    @property
    def trained(self) -> str:
        """In words."""
        return "trained" if self.aside is None else f"set aside: {self.aside}"

    def tables(self) -> list[Table]:
        tables = []
        for row in self.rows:
            cells: list[tuple[Cell, ...]] = [(s.token.shown, s.token.id, s.score) for s in row.near]
            title = f"{self.token.shown} (token {self.token.id}) in the {row.embedding} embedding"
            note = f"norm {row.norm:.3g}, {row.times:.2f} × the median · {self.trained}"
            bars = frozenset({"cosine"})
            tables.append(Table(("near", "id", "cosine"), tuple(cells), title, note, bars))
        return tables

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "token": self.token.to_dict(),
            "aside": self.aside,
            **{row.embedding: row.to_dict() for row in self.rows},
        }


def read_token(model: Anatomy, token: str | int, n: int = 20) -> TokenRows:
    """A token's rows in the embeddings, and the n tokens that are nearest in each.

    >>> lx.read_token(model, " film", 5)
    """
    if n < 1:
        raise LexrayError(f"asked for the {n} nearest tokens; n must be at least 1")
    token_id = model.space.id(token)
    names = ["output"] if model.architecture.tied else ["output", "input"]
    rows = tuple(_row(model, token_id, name, n) for name in names)
    aside = untrained(model).get(token_id)
    return TokenRows(
        model.space.source(model.vocabulary.shown(token_id)),
        model.space.token(token_id),
        aside,
        rows,
    )


def _row(model: Anatomy, token_id: int, embedding: str, n: int) -> Row:
    view = model.view("raw", centred=True, reading=embedding)  # type: ignore[arg-type]
    side, plain = view.space.reading, view.view(centred=False).space.reading
    if token_id >= len(side.rows):
        raise LexrayError(f"the {embedding} embedding has no row {token_id}")
    mine = side.column(token_id)
    ids = model.view("raw").space.list_ids(None)
    cosines = _cosines(side, mine)
    listed = torch.arange(len(cosines)) if ids is None else ids[ids < len(cosines)]
    norms = torch.cat([block.norm(dim=1) for block in plain.columns()]).cpu()[listed]
    norm = float(plain.column(token_id).norm())
    among = cosines[listed].masked_fill(listed == token_id, -2)
    best = among.topk(min(n, len(among)))
    near = tuple(
        Scored(model.space.token(int(listed[at])), value)
        for at, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    median = float(norms.median()) or 1.0
    return Row(embedding, norm, norm / median, float((norms < norm).float().mean()), near)


def _cosines(side: Side, x: Float[Tensor, "d_model"]) -> Float[Tensor, "e"]:
    length = x.norm().clamp(min=1e-30)
    parts = [
        block @ x.to(block) / (block.norm(dim=1).clamp(min=1e-30) * length.to(block))
        for block in side.columns()
    ]
    return torch.cat(parts).cpu()


@dataclass(frozen=True)
class TokenList(Result, Sequence[Token]):
    """The answer of `find_tokens`."""

    source: Source
    tokens: tuple[Token, ...]
    text: str

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        return self.tokens[index]

    def tables(self) -> list[Table]:
        rows: tuple[tuple[Cell, ...], ...] = tuple((t.shown, t.id) for t in self.tokens)
        return [Table(("token", "id"), rows, f"Tokens with {self.text!r}", str(self.source))]

    def to_dict(self) -> dict[str, Any]:
        return {**self.source.to_dict(), "tokens": [token.to_dict() for token in self.tokens]}


def find_tokens(model: Anatomy, text: str, n: int = 60) -> TokenList:
    """The tokens that contain a text, case aside: the same first, then those that begin with it.

    >>> lx.find_tokens(model, "film", 5)
    """
    wanted = text.replace("·", " ").strip().casefold()
    if not wanted:
        raise LexrayError("find tokens with what? give some letters")
    matches: list[tuple[int, int, int]] = []
    for i, other in enumerate(model.vocabulary.all_texts[: model.space.n_rows]):
        folded = other.strip().casefold()
        if wanted in folded:
            order = 0 if folded == wanted else 1 if folded.startswith(wanted) else 2
            matches.append((order, len(folded), i))
    best = sorted(matches)[: max(1, n)]
    # no vector is read, so none has to be told how
    source = Source(model.name, model.checkpoint.revision, "", model.options)
    return TokenList(source, tuple(model.space.token(i) for *_, i in best), text)
