"""A head's two circuits as token-by-token matrices: VO, what attending to a token writes, and QK,
which tokens ask for which. Both are products of two e×r factors and are never built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.address import Address, Matrix
from lexray.errors import LexrayError
from lexray.families import Latent
from lexray.model.fold import at_least_float32
from lexray.model.head_matrices import HeadMatrices, Map
from lexray.progress import watch
from lexray.result.pairs import Direction, Directions, Pair, Pairs
from lexray.result.readings import Reading
from lexray.space.kinds import Kind
from lexray.space.side import Side
from lexray.space.space import EmbeddingSpace, space_of
from lexray.space.topk.pairs import SearchState, Sign, TopPairs, Watch, top_pairs
from lexray.vocabulary.filters import Filter, FilterLike, read_filter
from lexray.vocabulary.inflections import merge_inflections

Same = Literal["none", "same", "inflected"]
LINES = {"VO": ("writes", "written_by"), "QK": ("attends_to", "attended_by")}
"""What a row and a column say of their token."""
Some = tuple[Side, Int[Tensor, "some"] | None]
"""A side, and the places of the tokens that are meant; None: all."""
MakeFactor = Callable[..., Tensor]
"""Makes a factor, unless nobody needs it any more (`Side.factors`)."""
LABELS = {"largest": "largest", "smallest": "smallest", "absolute": "largest in absolute value"}


class Circuit:
    """EᵀW E for W = W_V W_O or W_Q R W_Kᵀ: rows are inputs or queries, columns outputs or keys."""

    def __init__(self, head: HeadMatrices, matrix: Matrix) -> None:
        self.head = head
        self.matrix: Matrix = matrix
        self.kinds: tuple[Kind, Kind] = ("V", "O") if matrix == "VO" else ("Q", "K")

    @property
    def address(self) -> Address:
        """Of its head, with the matrix: `L3H7.VO`."""
        return replace(self.head.address, matrix=self.matrix)

    def evidence(self, text: str | None = None, n: int = 10) -> Any:
        """Where the head looks or takes most in running text, and whether this matrix tells it;
        see `lexray.model.model.Model.evidence`."""
        return self.head.weights.evidence(str(self.address), text, n)

    def __repr__(self) -> str:
        weights = self.head.weights
        return f"<{self.address} of {weights.name}, {weights.options}: .top()>"

    @property
    def space(self) -> EmbeddingSpace:
        """The embedding space that it is read in."""
        return space_of(self.head.weights, self.head.layer)

    def space_of(self, kind: Kind) -> EmbeddingSpace:
        """Where one side is read: keys and values of cross-attention in the encoder's space."""
        group = self.head.group(kind)
        return space_of(group.read_in, group.layer)

    @property
    def matrices(self) -> tuple[Float[Tensor, "d_row r"], Float[Tensor, "r d_col"]]:
        """The two factors of the d×d matrix, rotation included; QK-norms are not part of it. An
        encoder may have another width than its decoder."""
        head = self.head
        if self.matrix == "VO":
            return at_least_float32(head.W_V), at_least_float32(head.W_O)
        W_Q, W_K = at_least_float32(head.W_Q), at_least_float32(head.W_K)
        R = head.rotation()
        return (W_Q if R is None else W_Q @ R.to(W_Q)), W_K.T

    def factors(
        self, row_filter: Filter | None = None, col_filter: Filter | None = None
    ) -> tuple[Float[Tensor, "rows r"], Float[Tensor, "cols r"]]:
        """A and B, so that the score of (i, j) is A_i · B_j."""
        pairs = zip(self.kinds, (row_filter, col_filter), strict=True)
        return self._multiply(*(self.side(kind, filter) for kind, filter in pairs))

    def _multiply(self, rows: Some, cols: Some) -> tuple[Tensor, Tensor]:
        """The factors of some of the tokens of two sides; of the others nothing is kept."""
        return self.end(0, rows)(), self.end(1, cols)()

    def end(self, end: int, some: Some) -> MakeFactor:
        """What makes one of them, which any thread may do: its weights are read here."""
        side, among = some
        if (apply := self._map(end)) is not None:
            return partial(side.map_rows, apply, among)
        matrix = self.matrices[0] if end == 0 else self.matrices[1].T
        return lambda until=None: side.factors([matrix], among, until)[0]

    def _map(self, end: int) -> Map | None:
        """What makes of a token what is scored, where that is no matrix alone."""
        if not self.normed:
            return None
        if self.matrix == "VO":
            return None if end else self.head.value_map(bias=False)
        if end:
            return self.head.key_map(bias=False, clip=False)
        return _turned(self.head.query_map(bias=False, clip=False), self.head.rotation())

    def side(self, kind: Kind, filter: Filter | None) -> Some:
        """The side to multiply with, and which of its rows; of few tokens, a copy of them."""
        space = self.space_of(kind)
        ids, whole = space.list_ids(filter), space.whole(kind)
        if ids is None or 2 * len(ids) < len(whole.rows):
            return space.side(kind, filter), None
        return whole, ids

    def factors_between(self, rows: Side, cols: Side) -> tuple[Tensor, Tensor]:
        """The same between any two sides, such as those of another model."""
        return self._multiply((rows, None), (cols, None))

    def top(
        self,
        k: int = 50,
        *,
        sign: Sign = "largest",
        exclude_same: bool | Literal["inflected"] = False,
        filter: FilterLike = None,
        rows: FilterLike = None,
        cols: FilterLike = None,
        budget: float | None = None,
    ) -> Pairs:
        """The k best token pairs among those admitted: exact, not a filtered longer list.

        `exclude_same` leaves out pairs of a token with itself, upper and lower case and leading
        space alike; "inflected" leaves out simple inflections of one word too. `filter` holds for
        both sides, `rows` and `cols` for one. `budget`: seconds after which the search ends with
        the best pairs so far and what no other pair exceeds (`Pairs.limit`).

        >>> model["L2H1"].vo.top(50)
        >>> model["L2H1"].qk.top(50, exclude_same=True, sign="absolute", filter=filters.ascii)
        """
        filter, rows, cols = map(read_filter, (filter, rows, cols))
        row_filter, col_filter = _both(filter, rows), _both(filter, cols)
        note = describe(filter, rows, cols, exclude_same)
        return self.search(
            *self.factors(row_filter, col_filter),
            k,
            sign=sign,
            exclude_same=exclude_same,
            rows=row_filter,
            cols=col_filter,
            note=note,
            budget=budget,
        )

    def search(
        self,
        A: Float[Tensor, "some_rows r"],
        B: Float[Tensor, "some_cols r"],
        k: int,
        *,
        sign: Sign,
        exclude_same: bool | Literal["inflected"],
        rows: Filter | None,
        cols: Filter | None,
        note: str,
        budget: float | None = None,
    ) -> Pairs:
        """`top` of factors that were made for these filters; `note` describes them."""
        find, give = self.prepare_search(
            A, B, k, sign=sign, exclude_same=exclude_same, rows=rows, cols=cols, note=note
        )
        return give(find(_within(budget, give)))

    def prepare_search(
        self,
        A: Float[Tensor, "some_rows r"],
        B: Float[Tensor, "some_cols r"],
        k: int,
        *,
        sign: Sign,
        exclude_same: bool | Literal["inflected"],
        rows: Filter | None,
        cols: Filter | None,
        note: str,
    ) -> tuple[Callable[[Watch | None], TopPairs], Callable[[TopPairs], Pairs]]:
        """The search, which any thread may do, and what makes tokens of what it finds."""
        row_ids, col_ids = (
            self.space_of(kind).list_ids(filter)
            for kind, filter in zip(self.kinds, (rows, cols), strict=True)
        )
        groups = self._groups(exclude_same)
        row_groups, col_groups = _at(groups, row_ids), _at(groups, col_ids)

        def find(watch: Watch | None) -> TopPairs:
            return top_pairs(
                A, B, k, sign=sign, row_groups=row_groups, col_groups=col_groups, watch=watch
            )

        give = partial(self._pairs, row_ids=row_ids, col_ids=col_ids, sign=sign, note=note)
        return find, give

    def _pairs(
        self,
        best: TopPairs,
        row_ids: Int[Tensor, "some"] | None,
        col_ids: Int[Tensor, "others"] | None,
        sign: Sign,
        note: str,
    ) -> Pairs:
        """What a search has found, as tokens."""
        space = self.space
        left, right = _ids(best.rows, row_ids), _ids(best.cols, col_ids)
        pairs = tuple(
            Pair(value, space.token(i), space.token(j))
            for value, i, j in zip(best.values.tolist(), left.tolist(), right.tolist(), strict=True)
        )
        lists = [list(dict.fromkeys(side.tolist())) for side in (left, right) if len(side)]
        legible = [float(space.legibility(torch.tensor([ids]))[0]) for ids in lists]
        legibility = sum(legible) / max(1, len(legible))
        source = space.source(str(self.head.address))
        return Pairs(
            replace(source, filter=note),
            self.matrix,
            pairs,
            LABELS[sign],
            legibility,
            best.work,
            self._offset_note,
            best.limit,
        )

    @property
    def _offset_note(self) -> str:
        """A rotary model's scores hold for one distance; other offsets than 0 the view says."""
        turns = self.matrix == "QK" and self.head.spec.rotary is not None
        return "offset 0" if turns and self.head.weights.options.offset == 0 else ""

    def _groups(self, exclude: bool | Literal["inflected"]) -> Int[Tensor, "d_vocab"] | None:
        if not exclude:
            return None
        vocabulary, n = self.head.weights.vocabulary, self.space.n_rows
        groups = vocabulary.groups(n)
        return groups if exclude is True else merge_inflections(groups, vocabulary.folded)

    def row(self, token: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """One row: for VO what attending to the token writes, for QK which keys it asks for."""
        return self._line(token, 0, k, filter)

    def col(self, token: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """One column: for VO what writes the token, for QK which queries ask for it."""
        return self._line(token, 1, k, filter)

    def _line(self, token: str | int, axis: int, k: int, given: FilterLike) -> Reading:
        space, filter = self.space, read_filter(given)
        token_id = space.id(token)
        sides = [self.side(kind, filter) for kind in self.kinds]
        whole = self.space_of(self.kinds[axis]).whole(self.kinds[axis])
        sides[axis] = whole.only(torch.tensor([token_id])), None
        A, B = self._multiply(*sides)
        one, many = (A, B) if axis == 0 else (B, A)
        scores = many @ one[0].to(many)
        listed = self.space_of(self.kinds[1 - axis]).list_ids(filter)
        top, bottom, legibility = space.score_tokens(scores, k, listed)
        name = LINES[self.matrix][axis]
        shown = self.head.weights.vocabulary.shown(token_id)
        source = space.source(f"{self.address} {shown} {name}", filter)
        return Reading(source, name, top, bottom, legibility)

    def svd(self, n: int = 10, k: int = 10, *, filter: FilterLike = None) -> Directions:
        """The n largest singular directions of the d×d matrix, read at both ends.

        >>> model["L2H1"].vo.svd(5)
        """
        filter = read_filter(filter)
        if n < 1:
            raise LexrayError(f"asked for {n} singular directions; n must be at least 1")
        left, right = self.matrices
        U, S, V = factored_svd(left, right)
        n = min(n, len(S))
        space, address = self.space, str(self.address)
        names = [f"{address}[{i}]" for i in range(n)]
        ends = [
            self.space_of(kind).readings(vectors.T[:n].contiguous(), kind, names, k, filter, name)
            for vectors, kind, name in (
                (U, self.kinds[0], "input"),
                (V, self.kinds[1], "output"),
            )
        ]
        share = (S.square() / S.square().sum().clamp(min=1e-300)).tolist()
        whose = "queries and keys" if self.head.spec.q_norm is not None else "the latent"
        note = f"the norms of {whose} are left out" if self.normed else ""
        return Directions(
            space.source(address, filter),
            self.matrix,
            tuple(Direction(float(S[i]), share[i], ends[0][i], ends[1][i]) for i in range(n)),
            note,
        )

    @property
    def normed(self) -> bool:
        """Whether a token's row is scaled by a norm on the way: of queries and keys, or of the
        latent that they (or values) come through."""
        spec = self.head.spec
        if self.matrix == "VO":
            return isinstance(spec.v.linear, Latent)
        return spec.q_norm is not None or isinstance(spec.k.linear, Latent)


class VO(Circuit):
    """What a head moves: attended-to tokens → written tokens."""

    def __init__(self, head: HeadMatrices) -> None:
        super().__init__(head, "VO")

    def of(self, token: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """What attending to a token writes: `model["L19H4"].vo.of(" Paris")`."""
        return self.row(token, k, filter=filter)

    def writing(self, token: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """Which attended-to tokens write a token."""
        return self.col(token, k, filter=filter)


class QK(Circuit):
    """Where a head looks: query tokens → key tokens."""

    def __init__(self, head: HeadMatrices) -> None:
        super().__init__(head, "QK")

    def attends_to(self, query: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """Which keys a query token attends to: `model["L19H4"].qk.attends_to(" his")`."""
        return self.row(query, k, filter=filter)

    def attended_by(self, key: str | int, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """Which query tokens attend to a key token: `model["L19H4"].qk.attended_by(" his")`."""
        return self.col(key, k, filter=filter)


def factored_svd(
    left: Float[Tensor, "d_row r"], right: Float[Tensor, "r d_col"]
) -> tuple[Float[Tensor, "d_row r"], Float[Tensor, "r"], Float[Tensor, "d_col r"]]:
    """U, S, V of left @ right from r×r matrices, in float64, signs fixed by U's largest entry."""
    exact = (left.cpu().double(), right.cpu().double())
    Q1, R1 = torch.linalg.qr(exact[0])
    Q2, R2 = torch.linalg.qr(exact[1].T)
    u, S, vt = torch.linalg.svd(R1 @ R2.T)
    U, V = Q1 @ u, Q2 @ vt.T
    signs = U.gather(0, U.abs().argmax(0, keepdim=True)).sign()
    return (U * signs).to(left), S, (V * signs).to(left)


def _turned(queries: Map, R: Float[Tensor, "d_head d_head"] | None) -> Map:
    def turned(x: Tensor) -> Tensor:
        q = queries(x)
        return q if R is None else q @ R.to(q)

    return turned


def _within(budget: float | None, give: Callable[[TopPairs], Pairs]) -> Watch:
    """Shows the search to whoever watches, and ends it when they or the clock say so."""
    if budget is not None and not budget >= 0:
        raise LexrayError(f"a budget of {budget} seconds; it must be 0 or more")
    end = inf if budget is None else monotonic() + budget

    def see(standing: SearchState) -> bool:
        return monotonic() < end and watch(standing.done, lambda: give(standing.found()))

    return see


def _both(a: Filter | None, b: Filter | None) -> Filter | None:
    return a & b if a is not None and b is not None else a or b


def _at(groups: Tensor | None, ids: Tensor | None) -> Tensor | None:
    return groups if groups is None or ids is None else groups[ids]


def _ids(places: Int[Tensor, "k"], ids: Int[Tensor, "some"] | None) -> Int[Tensor, "k"]:
    return places if ids is None else ids[places]


def describe(
    filter: Filter | None, rows: Filter | None, cols: Filter | None, exclude: bool | str
) -> str:
    parts = [
        f"{label}{each.describe()}"
        for label, each in (("", filter), ("rows: ", rows), ("columns: ", cols))
        if each is not None
    ]
    if exclude:
        parts.append("pairs of different words" if exclude == "inflected" else "different tokens")
    return ", ".join(parts)
