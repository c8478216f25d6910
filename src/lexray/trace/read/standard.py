"""Vectors of a pass as words: how each differs from what its place usually carries, or adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.kept import keep
from lexray.scratch import join_rows
from lexray.space.kinds import Kind
from lexray.space.side import SIGMA_FLOOR, Side
from lexray.space.space import EmbeddingSpace, space_of
from lexray.space.topk.vectors import TopVectors
from lexray.trace.read.project import Projected, project
from lexray.trace.read.usual import PLACES, Place, UsualPlaces, direction, usual_of, why_not
from lexray.view import STANDARD, View
from lexray.vocabulary.filters import Filter

How = Literal["standardised", "as it is"]
"""How a vector of a pass was read as words."""

SQUARES: Drawer[View, Tensor] = Drawer(most=1)
SIGMAS: Drawer[tuple[str, View, str], Tensor] = Drawer(most=16)
"""By the kind of place, the view, and the text."""


def is_standard(model: Anatomy, *, norm: bool, transform: bool = False) -> bool:
    """Whether the view standardises what a pass carries: with the final norm, and nothing that is
    not linear behind it."""
    return model.options.standardised and norm and not transform


class TokenLists(NamedTuple):
    """The tokens of each vector and their standardised scores, both ends."""

    top_ids: Int[Tensor, "n k"]
    top_scores: Float[Tensor, "n k"]
    bottom_ids: Int[Tensor, "n k"]
    bottom_scores: Float[Tensor, "n k"]


def read_standard(
    model: Anatomy,
    X: Float[Tensor, "n d_model"],
    places: Sequence[Place],
    k: int,
    filter: Filter | None = None,
    text: str | None = None,
) -> TokenLists:
    """The k largest and smallest standardised scores of each row of X, by its place."""
    by_kind: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for i, place in enumerate(places):
        by_kind[place.kind, place.layer == 0].append(i)
    parts, order = [], []
    for (kind, first), members in by_kind.items():
        own = [places[i] for i in members]
        parts.append(_read(model, X[members], kind, first, own, k, filter, text))
        order += members
    back = torch.tensor(order).argsort()
    return TokenLists(
        *(torch.cat([x.cpu() for x in column])[back] for column in zip(*parts, strict=True))
    )


def _read(
    model: Anatomy,
    X: Float[Tensor, "n d_model"],
    kind: str,
    first: bool,
    places: Sequence[Place],
    k: int,
    filter: Filter | None,
    text: str | None,
) -> TokenLists:
    space = space_of(model, 0 if first else None)
    if kind in PLACES:
        usual = usual_of(model, text)
        means = usual.moments[kind].means[[place.layer for place in places]]
        side, listed = side_of(space, kind, usual), space.list_ids(filter)
        best = side.top(direction(model, X) - means.to(X.device), k, listed)
    else:
        times = torch.tensor([[place.times] for place in places]).to(at_least_float32(X))
        of = cast("Kind", kind)
        shifted = space.shift(at_least_float32(X) / times, of) * times.sign()
        best = space.whole(of).top(shifted, k, space.list_ids(filter))
    return _lists(best)


def _lists(best: TopVectors) -> TokenLists:
    return TokenLists(best.top_ids, best.top_values, best.bottom_ids, best.bottom_values)


def side_of(space: EmbeddingSpace, kind: str, usual: UsualPlaces) -> Side:
    """The columns of a kind of place, each divided by how much its score usually varies there."""
    view = replace(space.weights.options, offset=0, reading="effective")
    cache = space.weights.cache
    sigma = SIGMAS.get(cache, (kind, view, usual.name), partial(_sigma, space, kind, usual))
    return replace(space.writing, sigma=sigma)


def _sigma(space: EmbeddingSpace, kind: str, usual: UsualPlaces) -> Float[Tensor, "e"]:
    """√(c_tᵀ Σ c_t) of every token; kept on disk for the standard view."""
    view, side = replace(space.weights.options, offset=0, reading="effective"), space.writing

    def make() -> dict[str, Tensor]:
        squares = SQUARES.get(space.weights.cache, view, lambda: _squares(side))
        own = usual.moments[kind]
        F, rest = own.directions.to(squares), own.rest.to(squares)
        sigma = (side.squares(F) + rest * squares).sqrt()
        ids = space.list_ids(None)
        floor = SIGMA_FLOOR * float(
            (sigma if ids is None else sigma[ids.to(sigma.device)]).median()
        )
        return {"sigma": sigma.clamp(min=floor or 1.0)}

    if view != STANDARD:
        return make()["sigma"]
    kept = keep(space.weights, f"places-{usual.name}-sigma-{kind}", make)
    return kept["sigma"].to(side.rows.device)


def _squares(side: Side) -> Float[Tensor, "e"]:
    """|c_t|²."""
    return join_rows(len(side.rows), (block.square().sum(1) for block in side.columns()))


class ReadWords(NamedTuple):
    """What some vectors say: their lists by standardised scores where their places have any."""

    projected: Projected
    """Probabilities, ranks and entropies are the model's own."""
    hows: tuple[How, ...]
    top_scores: Float[Tensor, "n k"]
    """By which the lists are ordered; NaN where that is the probability."""
    bottom_scores: Float[Tensor, "n k_bottom"]


def read_words(
    model: Anatomy,
    X: Float[Tensor, "n d_model"],
    places: Sequence[Place | None],
    k: int,
    targets: Sequence[int] = (),
    *,
    side: Literal["writing", "reading"] = "writing",
    norm: bool = True,
    transform: bool = False,
    bottom: bool = False,
    filter: Filter | None = None,
    text: str | None = None,
) -> ReadWords:
    """Each row of X as words, by its place; as it is where the place is None or the view is not
    standardised, which is then the model's own last step."""
    standard = is_standard(model, norm=norm, transform=transform) and not usual_of(model, text).note
    by_way: dict[tuple[bool, bool], list[int]] = defaultdict(list)
    for i, place in enumerate(places):
        reads_first = side == "reading" and place is not None and place.layer == 0
        by_way[standard and place is not None, reads_first].append(i)
    if standard:
        k = _most(model, k, filter)
    parts, order, hows = [], [], []
    for (by_place, first), members in by_way.items() or [((False, False), [])]:
        lists = None
        if by_place:
            own = [place for i in members if (place := places[i]) is not None]
            lists = read_standard(model, X[members], own, k, filter, text)
        projected = project(
            model,
            X[members],
            k,
            targets,
            norm=norm,
            side=side,
            transform=transform,
            bottom=bottom,
            filter=filter,
            lists=None if lists is None else (lists.top_ids, lists.bottom_ids),
            first=first,
        )
        unknown = torch.full(projected.top_ids.shape, torch.nan)
        high = unknown if lists is None else lists.top_scores
        low = unknown if lists is None else lists.bottom_scores
        parts.append((*projected, high, low[:, : projected.bottom_ids.shape[1]]))
        hows += [("standardised" if by_place else "as it is")] * len(members)
        order += members
    back = torch.tensor(order, dtype=torch.long).argsort()
    columns = [torch.cat(column)[back.to(column[0].device)] for column in zip(*parts, strict=True)]
    said = tuple(cast("How", hows[i]) for i in back.tolist())
    return ReadWords(Projected(*columns[:-2]), said, *columns[-2:])


def _most(model: Anatomy, k: int, filter: Filter | None) -> int:
    """As many of k tokens as may be listed."""
    ids = model.space.list_ids(filter)
    return k if ids is None else min(k, len(ids))


def say_how(model: Anatomy, hows: Collection[How], text: str | None = None) -> str:
    """What a result has to say about how its words were found; nothing where that is as ever."""
    if "standardised" not in hows:
        return why_not(model, text) if model.options.standardised else ""
    of = "a text of lexray's own" if text is None else "the text that was given"
    return f"words by how a vector differs from what its place usually carries, on {of}"
