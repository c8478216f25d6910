"""What a token becomes along a chain of parameters: at each step a vector, read as words.

The direct path alone: no attention pattern, no activation function, and no norm's scale on the way,
so lengths mean little and directions everything. Norms are folded in, as everywhere in wiring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.model.groups import head_group, layer_groups
from lexray.model.weights import Weights
from lexray.result.readings import Source
from lexray.result.table import Result, Table
from lexray.roles.ends import OTHER, comes_later, fold_view
from lexray.space.kinds import Kind
from lexray.space.space import space_of

SAID = {
    "O": "writes",
    "Q": "looks for keys like",
    "K": "is looked for by queries like",
    "value": "writes",
}


@dataclass(frozen=True)
class ChainStep:
    """One parameter of the chain, and what it makes of what came."""

    address: str
    said: str
    passes: float
    """How much of the vector's direction the parameter takes up: ‖x C‖ / (‖x‖ ‖C‖), times √d: 1 is
    what a random direction gives; of a neuron with its sign."""
    tokens: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "said": self.said,
            "passes": self.passes,
            "tokens": list(self.tokens),
        }


@dataclass(frozen=True)
class Path(Result):
    """A token, and what it becomes step by step."""

    source: Source
    token: str
    steps: tuple[ChainStep, ...]

    def tables(self) -> list[Table]:
        rows = tuple((s.address, s.passes, s.said, " ".join(s.tokens)) for s in self.steps)
        title = f"What {self.token} becomes along {' → '.join(s.address for s in self.steps)}"
        return [Table(("step", "× random", "", "tokens"), rows, title, str(self.source))]

    def to_dict(self) -> dict[str, Any]:
        steps = [step.to_dict() for step in self.steps]
        return {**self.source.to_dict(), "token": self.token, "steps": steps}


def path(weights: Weights, token: str | int, chain: Sequence[str], *, k: int = 10) -> Path:
    """`path(model, " her", ["L1H4", "L5H2.K"])`: through L1H4's VO, then into L5H2's keys.

    A head alone is its VO; `.Q`, `.K` end the chain with the other side's words; neurons pass the
    sign of what they read on to their value.
    """
    if not chain:
        raise LexrayError("a path needs at least one parameter: L1H4 L5H2.K")
    links = [ChainLink.parse(text) for text in chain]
    for a, b in pairwise(links):
        if a.ends:
            raise LexrayError(f"{a.text} ends a path: what a head's {a.via} meets writes nothing")
        if not comes_later(weights, (a.writes, a.address.layer), (b.reads, b.address.layer)):
            raise LexrayError(f"{b.text} does not come after {a.text}: nothing passes between them")
    first = links[0].address.layer
    space = space_of(weights, first)
    token_id = space.id(token)
    x = next(space.whole(links[0].reads).only(torch.tensor([token_id])).columns())[0]
    steps = []
    for link in links:
        x, passes = link.apply(weights, x)
        here = space_of(weights, link.address.layer)
        (reading,) = here.readings(x[None], link.shown, [link.text], k)
        steps.append(ChainStep(link.text, SAID[link.said], passes, tuple(reading.tokens)))
    return Path(space.source(""), weights.vocabulary.shown(token_id), tuple(steps))


@dataclass(frozen=True)
class ChainLink:
    """One parameter of a chain: where it is, and by what it is entered."""

    text: str
    address: Address
    via: str

    @classmethod
    def parse(cls, text: str) -> ChainLink:
        stem, _, via = text.partition(".")
        address = Address.parse(stem)
        if address.head is not None and via.upper() in ("", "V", "VO", "Q", "K"):
            return cls(text, address, {"": "V", "VO": "V"}.get(via.upper(), via.upper()))
        if address.neuron is not None and via.lower() in ("", "key", "gate"):
            return cls(text, address, via.lower())
        raise LexrayError(f"{text!r} is no step of a path; steps look like L1H4, L5H2.K or L7N12")

    @property
    def ends(self) -> bool:
        return self.via in ("Q", "K")

    @property
    def reads(self) -> Kind:
        if self.address.head is not None:
            return "Q" if self.via == "Q" else "K" if self.via == "K" else "V"
        return "gate" if self.via == "gate" else "key"

    @property
    def writes(self) -> Kind:
        return "O" if self.address.head is not None else "value"

    @property
    def shown(self) -> Kind:
        """As what the result is read: for a query, keys it looks for, and the other way round."""
        return OTHER[self.via] if self.ends else self.writes

    @property
    def said(self) -> str:
        return self.via if self.ends else self.writes

    def apply(
        self, weights: Weights, x: Float[Tensor, "d_model"]
    ) -> tuple[Float[Tensor, "d_model"], float]:
        """What comes out, and how much of x went in."""
        seen, layer = fold_view(weights), self.address.layer
        if self.address.head is not None:
            near, far = (
                at_least_float32(head_group(seen, layer, self.address.head, kind).tensor)
                for kind in (self.reads, OTHER[self.reads])
            )
            x = x.to(near)
            y = near @ x
            R = torch.linalg.qr(far.T.double(), mode="r").R.to(near)
            core = R @ near
            passes = float((core @ x).norm() / (core.norm() * x.norm()).clamp(min=1e-30))
            return y @ far, passes * sqrt(len(x))
        key, value = (self._vector(seen, kind) for kind in (self._neuron_side(seen), "value"))
        x = x.to(key)
        product = float(key @ x)
        cosine = product / max(1e-30, float(key.norm() * x.norm()))
        return product * value, cosine * sqrt(len(x))

    def _neuron_side(self, weights: Weights) -> Kind:
        gated = bool(layer_groups(weights, self.address.layer, "gate"))
        if self.via == "gate" and not gated:
            raise LexrayError(f"{self.text}: its feed-forward is not gated")
        return "gate" if gated and self.via != "key" else "key"

    def _vector(self, weights: Weights, kind: Kind) -> Float[Tensor, "d_model"]:
        at, owner = (
            self.address,
            Address(self.address.layer, expert=self.address.expert, shared=self.address.shared),
        )
        for group in layer_groups(weights, at.layer, kind):
            if group.owner == owner and at.neuron is not None and at.neuron < group.n:
                return at_least_float32(group.rows(at.neuron, at.neuron + 1))[0]
        raise LexrayError(f"there is no {at} in {weights.name}")
