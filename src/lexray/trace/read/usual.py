"""What each place of a forward pass usually carries, measured over a text.

A vector x of a pass is read by how it differs from what its place usually carries. x̂ is x as the
norm that reads it sees it, without gain and size. For the stream and what reads from it, μ is the
mean of x̂ at that layer and kind of place; what is added to the stream is measured from nothing
(μ = 0), for its mean is part of what it does, and removing it removes that too. Σ is the covariance
around μ, over all layers of the kind (which gives better words than each layer's own: it is
estimated from more, and a layer's favourites do not hide):

    z_t = (x̂ · c_t − μ · c_t) / √(c_tᵀ Σ c_t),    c_t: token t's column.

So tokens that lead every vector's list lead none, and the columns are the embedding's, divided by a
number each: the lists are exact. Σ is kept as its main directions and what is left over, spread
evenly, so that short texts do. What is made lies beside the effective embedding on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.kept import keep
from lexray.progress import track
from lexray.space.kinds import Kind
from lexray.trace.read.vectors import Selection
from lexray.trace.record.prompt import encode, len_embedding, longest
from lexray.trace.recording import Recording

PLACES = (
    *("pre", "self", "mid", "attention", "laurel", "cross", "mixer", "mlp"),
    *("attn_in", "cross_in", "mixer_in", "mlp_in", "heads", "cross_heads", "values"),
)
"""The kinds of places, as a lens names them; `post` is the next layer's `pre`."""
OF_HEADS = frozenset({"heads", "cross_heads", "values"})
ADDED = frozenset({"attention", "laurel", "cross", "mixer", "mlp", *OF_HEADS})
"""What is added to the stream."""
LIKE: dict[str, Kind] = {"neurons": "value", "queries": "K", "keys": "Q"}
"""What is read as parameters are: a neuron is its value; a query asks with its head's rows of W_K,
and for those a text's mean made the words no better."""
CHARACTERS = 900
"""How long the pieces are in which a text is run."""
TOKENS = 2048
"""So many tokens of a text are enough."""
FEWEST = 64
"""A text of fewer different tokens (a vocabulary that cannot spell it) says nothing."""
SAMPLE = 3072
"""Vectors of a kind from which its covariance is estimated."""
DIRECTIONS = 128
SHRUNK = 0.02
"""The least share of the variance that is spread evenly."""

MADE: Drawer[str, "UsualPlaces"] = Drawer(most=2)


class PlaceMoments(NamedTuple):
    """A kind of place: its mean at each layer, and how it varies around it."""

    means: Float[Tensor, "layers d_model"]
    """From where it is measured; zero for what is added."""
    directions: Float[Tensor, "d_model r"]
    """Σ is this times its transpose, …"""
    rest: Float[Tensor, ""]
    """… and so much in every direction."""


@dataclass(frozen=True, eq=False)
class UsualPlaces:
    """What a model's places usually carry on one text."""

    name: str
    """By which what is made of it is kept."""
    moments: dict[str, PlaceMoments]
    note: str = ""
    """Why there are no moments."""


@cache
def own_text() -> str:
    """The text that comes along."""
    return (files("lexray.trace.read") / "text.txt").read_text(encoding="utf-8")


def usual_of(model: Anatomy, text: str | None = None) -> UsualPlaces:
    """Measured once per model and text, and kept."""
    name = _name(text)
    return MADE.get(model.cache, name, partial(_read_or_make, model, text, name))


def why_not(model: Anatomy, text: str | None = None) -> str:
    """Why nothing could be measured, where that was tried."""
    made = MADE.peek(model.cache, _name(text))
    return "" if made is None else made.note


def _name(text: str | None) -> str:
    return sha256((text or own_text()).encode()).hexdigest()[:12]


def _read_or_make(model: Anatomy, text: str | None, name: str) -> UsualPlaces:
    try:
        kept = keep(model, f"places-{name}", lambda: _flat(_measure(model, text)), runs=True)
    except LexrayError as error:
        return UsualPlaces(name, {}, f"not standardised: {error}")
    kinds = dict.fromkeys(key.partition(".")[0] for key in kept)
    parts = {kind: [kept[f"{kind}.{part}"] for part in PlaceMoments._fields] for kind in kinds}
    return UsualPlaces(name, {kind: PlaceMoments(*own) for kind, own in parts.items()})


def _flat(moments: dict[str, PlaceMoments]) -> dict[str, Tensor]:
    return {f"{kind}.{part}": x for kind, m in moments.items() for part, x in m._asdict().items()}


# ---------------------------------------------------------------------- running the text


def _measure(model: Anatomy, text: str | None) -> dict[str, PlaceMoments]:
    from lexray.trace.record.pair import record_text  # imports transformers

    pieces = cut(model, text)
    sums = TextSums(model, max(1, SAMPLE // (model.n_layers * len(pieces))))
    what = f"what places usually carry in {model.name}: made once, then kept"
    for ids in track(pieces, len(pieces), what):
        sums.add(record_text(model, ids, what=("residual", "heads", "attention")))
    return sums.moments()


def cut(model: Anatomy, text: str | None = None, *, tokens: int | None = TOKENS) -> list[list[int]]:
    """A text's tokens in pieces of some lines, each as a prompt of its own; about so many.

    Where the vocabulary cannot spell lexray's own text, tokens are drawn at random.
    """
    most = min(TOKENS, longest(model) or TOKENS)
    try:
        pieces = [encode(model, p, special=True)[:most] for p in _pieces(text or own_text())]
    except LexrayError:
        if text is not None:
            raise
        pieces = []
    pieces = [piece for piece in pieces if len(piece) > 1]
    different = len({i for piece in pieces for i in piece})
    if text is None and different < min(FEWEST, len_embedding(model) // 2):
        pieces = _random(model, most)
    if not pieces:
        raise LexrayError(
            f"the text has no two tokens of {model.name} in a line; give a longer one"
        )
    step = 1 if tokens is None else max(1, -(-sum(map(len, pieces)) // tokens))
    return pieces[::step]


def _pieces(text: str) -> Iterator[str]:
    """Lines together, as long as they are short; long ones cut between words."""
    piece = ""
    for word in text.replace("\n", "\n\0").replace(" ", " \0").split("\0"):
        full = len(piece) + len(word) > CHARACTERS
        if piece and (full or (piece.endswith("\n") and len(piece) > CHARACTERS // 2)):
            yield piece.strip("\n")
            piece = ""
        piece += word
    yield piece.strip("\n")


def _random(model: Anatomy, most: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    n = len_embedding(model)
    there = model.vocabulary.mask(n).nonzero()[:, 0]
    drawn = torch.randint(len(there), (8, max(2, min(32, most))), generator=generator)
    ids: list[list[int]] = there[drawn].tolist()
    return ids


@dataclass
class TextSums:
    """What comes together over the pieces of a text."""

    model: Anatomy
    each: int
    """So many vectors of a layer and kind are kept of each piece."""
    totals: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    counts: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[str, list[tuple[int, Tensor]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, recording: Recording) -> None:
        """All places of one pass; the first position, where attention rests, is like no other."""
        at = tuple(range(1, len(recording)))
        for layer in recording.layers:
            for kind in PLACES:
                some = at[:: max(1, self.model.n_heads // 2)] if kind in OF_HEADS else at
                lines = Selection(recording, (layer,), some).lines([kind])
                if lines:  # hybrids have layers without heads, or without neurons
                    X = torch.cat([line.vectors for line in lines])
                    self._put(kind, layer, direction(self.model, X).cpu())

    def _put(self, kind: str, layer: int, X: Float[Tensor, "n d_model"]) -> None:
        key = kind, layer
        self.totals[key] = self.totals.get(key, torch.zeros(X.shape[1]).double()) + X.double().sum(
            0
        )
        self.counts[key] += len(X)
        rows = torch.linspace(0, len(X) - 1, min(self.each, len(X))).long()
        self.samples[kind].append((layer, X[rows]))

    def moments(self) -> dict[str, PlaceMoments]:
        return {kind: self._moments(kind) for kind in PLACES if kind in self.samples}

    def _moments(self, kind: str) -> PlaceMoments:
        none = torch.zeros(self.model.d_model).double()
        keys = [(kind, n) for n in range(self.model.n_layers)]
        means = torch.stack(
            [self.totals.get(key, none) / max(1, self.counts[key]) for key in keys]
        ).float()
        if kind in ADDED:
            means = torch.zeros_like(means)
        D = torch.cat([X.float() - means[layer] for layer, X in self.samples[kind]])
        return PlaceMoments(means, *spread(D))


def spread(D: Float[Tensor, "n d_model"]) -> tuple[Float[Tensor, "d_model r"], Float[Tensor, ""]]:
    """The covariance of deviations as its main directions, and what is left in every direction."""
    n, d = D.shape
    total = D.square().sum() / n
    rank = min(DIRECTIONS, n, d)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the sketch from which the directions are found is random
        _, sizes, V = torch.svd_lowrank(D, q=rank, niter=4)
    F = V * sizes / n**0.5
    rest = (total - F.square().sum()).clamp(min=0) / d
    return F, torch.maximum(rest, SHRUNK * total / d).clamp(min=1e-12)


def direction(model: Anatomy, X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
    """x̂: as the final norm sees what is written, before its gain."""
    X = at_least_float32(X)
    norm = model.architecture.final_norm
    if norm is not None and norm.centres:
        X = X - X.mean(-1, keepdim=True)
    return X / X.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-30)


class Place(NamedTuple):
    """Where a vector of a pass comes from."""

    kind: str
    """One of `PLACES`; or a parameter's kind, whose vectors are what is usual for it."""
    layer: int
    times: float = 1.0
    """Of a parameter: so many times it was added."""


def place_of(of: str, layer: int | None, n_layers: int, times: float = 1.0) -> Place | None:
    """The place of a lens's line. None after the last block: what is there is the prediction."""
    if of in ("residual", "post"):
        at = 0 if layer is None else layer + 1
        return Place("pre", at) if at < n_layers else None
    assert layer is not None
    return Place(LIKE.get(of, of), layer, times)
