"""The embedding space: the d×e matrices onto which parameters are projected.

A model has two: one for what reads from the residual stream (keys, queries, rows of VO), E′ᵀ, and
one for what writes to it (values, columns of VO), E. Folding, centring, the pseudo-inverse and
calibration all replace E by another d×e matrix,

    column_j = P (w_j − μ) / σ_j,

where w_j is the embedding as stored. P is applied to the vectors instead, so that the stored
matrix serves every reading without a copy, whatever its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from threading import Event

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.finite import all_finite, require_finite
from lexray.model.fold import at_least_float32
from lexray.progress import track
from lexray.scratch import empty_rows, join_rows, let_go
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.products import rows_by
from lexray.space.topk.vectors import Columns, TopVectors, top_of_columns

ROWS_AT_ONCE = 2048
NUMBERS_AT_ONCE = 2**21
"""Of as many rows as are taken at once, where they are wide."""
LONG = 2**36
"""Products of two numbers that take some seconds, in float64."""
SIGMA_FLOOR = 1e-3
"""The least σ, as a share of its median."""


def rows_at_once(width: int) -> int:
    """How many rows of an embedding are taken at a time."""
    return max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, width)))


@dataclass(frozen=True, eq=False)
class Side:
    """The columns for reading or for writing; tokens are the rows of `rows`, as stored."""

    rows: Float[Tensor, "e width"]
    P: Float[Tensor, "d_model width"] | None = None
    """None for the identity."""
    mean: Float[Tensor, "width"] | None = None
    """μ, subtracted from every embedding."""
    sigma: Float[Tensor, "e"] | None = None
    """σ, by which every column is divided."""
    ids: Int[Tensor, "e"] | None = None
    """The tokens' ids, where only some tokens are left."""

    def count(self, among: Int[Tensor, "some"] | None = None) -> int:
        """How many columns there are, or how many of them are wanted."""
        return len(self.rows) if among is None else len(among)

    @property
    def rows_at_once(self) -> int:
        """How many rows are taken at a time."""
        return rows_at_once(self.rows.shape[1])

    def blocks(
        self, among: Int[Tensor, "some"] | None = None, step: int | None = None
    ) -> Iterator[Float[Tensor, "_ width"]]:
        """(w_j − μ) / σ_j in float32, some rows (or `step`) at a time; `among`: the places of those
        that are wanted, of which no copy is made."""
        for own, sigma in self._own_blocks(among, step):
            block = at_least_float32(own)
            block = block if self.mean is None else block - self.mean
            yield block if sigma is None else block / sigma[:, None]

    def columns(
        self, among: Int[Tensor, "some"] | None = None
    ) -> Iterator[Float[Tensor, "_ d_model"]]:
        """The columns themselves, as rows, some at a time."""
        for block in self.blocks(among):
            yield block if self.P is None else block @ self.P.to(block).T

    def column(self, token: int) -> Float[Tensor, "d_model"]:
        """The column of one token."""
        return next(self.only(torch.tensor([token])).columns())[0]

    def factor(self, M: Float[Tensor, "d_model r"]) -> Float[Tensor, "e r"]:
        """columnsᵀ M: one factor of a head's token-by-token matrix."""
        return self.factors([M])[0]

    def factors(
        self,
        matrices: Sequence[Float[Tensor, "d_model _"]],
        among: Int[Tensor, "some"] | None = None,
        until: Event | None = None,
    ) -> list[Float[Tensor, "n _"]]:
        """columnsᵀ M for several M in one pass over the embedding; `among`: the places of the rows
        that are wanted, ascending. Divided by σ at the end, where there is less to divide. Once
        `until` is set nobody needs them, and they stay unfinished."""
        turned = self._prepare(torch.cat(list(matrices), 1).T).contiguous()
        widths = [M.shape[1] for M in matrices]
        n, room = self.count(among), self._room()
        factors: list[Tensor] = []
        at = 0
        with full_precision():
            shift = None
            if self.mean is not None:
                wider = torch.promote_types(self.rows.dtype, self.mean.dtype)
                shift = rows_by(self.mean[None].to(wider), turned)
            for own, sigma in self._own_blocks(among):
                if until is not None and until.is_set():
                    break
                product = rows_by(own if room is None else room[: len(own)].copy_(own), turned)
                product = product if shift is None else product - shift
                factors = factors or [empty_rows((n, width), product) for width in widths]
                for whole, part in zip(factors, torch.split(product, widths, 1), strict=True):
                    rows = whole[at : at + len(part)]
                    rows.copy_(part) if sigma is None else torch.div(part, sigma[:, None], out=rows)
                    let_go(rows)
                at += len(own)
        return factors or [at_least_float32(turned).new_empty(0, width) for width in widths]

    def _room(self) -> Float[Tensor, "_ width"] | None:
        """Where rows of half precision are converted, all in one place: new memory for each block
        costs as much as the conversion."""
        wider = at_least_float32(self.rows[:0])
        if wider.dtype == self.rows.dtype:
            return None
        return wider.new_empty(min(len(self.rows), self.rows_at_once), self.rows.shape[1])

    def _own_blocks(
        self, among: Int[Tensor, "some"] | None, step: int | None = None
    ) -> Iterator[tuple[Float[Tensor, "_ width"], Float[Tensor, "_"] | None]]:
        """w_j as it is stored and σ_j of the rows that are wanted, some at a time."""
        at, step = None if among is None else among.to(self.rows.device), step or self.rows_at_once
        for start in range(0, self.count(among), step):
            part = slice(start, start + step)
            own = self.rows[part] if at is None else self.rows.index_select(0, at[part])
            sigma = self.sigma
            if sigma is not None:
                sigma = sigma[part] if at is None else sigma.index_select(0, at[part])
            yield own, sigma

    def squares(self, M: Float[Tensor, "d_model r"]) -> Float[Tensor, "e"]:
        """|columnᵀ M|² of every column, without all of these products at once."""
        turned = self._prepare(M.T).contiguous()
        with full_precision():
            parts = (rows_by(block, turned).square().sum(1) for block in self.blocks())
            return join_rows(len(self.rows), parts)

    def map_rows(
        self,
        apply: Callable[[Tensor], Tensor],
        among: Int[Tensor, "some"] | None = None,
        until: Event | None = None,
    ) -> Float[Tensor, "n r"]:
        """A map of the columns, or of those `among` them, that is not linear in them (QK-norm)."""
        needed = takewhile(lambda _: until is None or not until.is_set(), self.columns(among))
        with full_precision():
            return join_rows(self.count(among), map(apply, needed))

    def project(self, X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n e"]:
        """X · columns, whole: for a few vectors."""
        return self.factor(X.T).T

    def top(
        self,
        X: Float[Tensor, "n d_model"],
        k: int,
        among: Int[Tensor, "some"] | None = None,
    ) -> TopVectors:
        """The k largest and smallest scores of each vector, with token ids; `among`: the places of
        the rows that may be listed, of which a copy is made where they are few, or others damaged.
        """
        left_out = None if among is None else self._without(among)
        if among is not None and left_out is not None and self._is_better_cut(left_out):
            return self.only(among).top(X, k)
        scale = None if self.sigma is None else 1 / self.sigma
        columns = Columns([self.rows.T], None, scale, left_out, self.mean)
        if not self._is_finite:
            require_finite("the embedding E", self.rows)
        best = top_of_columns(self._prepare(X), columns, k)
        if self.ids is None:
            return best
        ids = self.ids.to(best.top_ids.device)
        return best._replace(top_ids=ids[best.top_ids], bottom_ids=ids[best.bottom_ids])

    def _is_better_cut(self, left_out: Int[Tensor, "others"]) -> bool:
        return 2 * len(left_out) > len(self.rows) or not self._is_finite

    @cached_property
    def _is_finite(self) -> bool:
        """Looked at once, not for each of the vectors that are read."""
        return all_finite(self.rows)

    def _without(self, among: Int[Tensor, "some"]) -> Int[Tensor, "others"]:
        rest = torch.ones(len(self.rows), dtype=torch.bool)
        rest[among.cpu()] = False
        return rest.nonzero()[:, 0]

    def _prepare(self, X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n width"]:
        """X P."""
        X = at_least_float32(X)
        if self.P is None:
            return X
        with full_precision():
            return X @ self.P.to(X)

    def only(self, ids: Int[Tensor, "some"]) -> Side:
        """The same columns for some tokens; in a file if they are many."""
        at = ids.to(self.rows.device)
        parts = (self.rows.index_select(0, part) for part in torch.split(at, self.rows_at_once))
        sigma = None if self.sigma is None else self.sigma[at]
        return replace(self, rows=join_rows(len(at), parts), sigma=sigma, ids=ids)

    def calibrate(
        self,
        S: Float[Tensor, "d_model d_model"],
        tokens: Int[Tensor, "some"] | None = None,
        around: Float[Tensor, "d_model"] | None = None,
    ) -> Side:
        """Columns divided by σ_j = √(column_jᵀ S column_j), the typical size of their scores;
        `around` a mean μ, of column_jᵀ (S − μ μᵀ) column_j.

        `tokens`: those whose median σ sets the floor.
        """
        n = -(-len(self.rows) // self.rows_at_once)
        blocks = self.columns()
        if len(self.rows) * len(S) ** 2 > LONG:
            blocks = iter(track(blocks, n, "how scores of tokens vary: made once, then kept"))
        squares = join_rows(len(self.rows), (_quadratic(block, S, around) for block in blocks))
        let_go(S)
        sigma = squares.clamp(min=0).sqrt()
        floor = SIGMA_FLOOR * (sigma if tokens is None else sigma[tokens.to(sigma.device)]).median()
        sigma = sigma.clamp(min=float(floor) or 1.0).to(torch.float32)
        return replace(self, sigma=sigma.to(self.rows.device))


def _quadratic(
    block: Float[Tensor, "n d_model"],
    S: Float[Tensor, "d_model d_model"],
    around: Float[Tensor, "d_model"] | None,
) -> Float[Tensor, "n"]:
    exact = block.to(S)
    squares = (exact @ S).mul_(exact).sum(1)
    return squares if around is None else squares - (exact @ around).square()
