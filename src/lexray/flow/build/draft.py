"""A flow graph before it is read: nodes with their vectors, and which are the sum of which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from lexray.families import Norm
from lexray.flow.graph import EdgeKind, NodeKind
from lexray.space.kinds import Kind


@dataclass(frozen=True, eq=False)
class Sketch:
    """A node and its vector."""

    id: str
    kind: NodeKind
    layer: int
    label: str
    vector: Float[Tensor, "d_model"]
    """As it is added or as it reads: negated where the coefficient is negative."""
    side: Literal["writing", "reading"] = "writing"
    behind: Norm | None = None
    """The norm through which a sub-block adds what it wrote."""
    parameter: tuple[Kind, Float[Tensor, "d_model"], int] | None = None
    """As it is stored, and the sign with which it is added or reads."""
    place: Mapping[str, Any] = field(default_factory=dict)
    """The node's address, head, position and count."""


class Carried(NamedTuple):
    """What passes between several streams and one vector (Gemma 3n): no multiple of the vectors at
    both ends, but what it brings to a logit can be told."""

    to: str
    """Where it goes, as `lexray.flow.build.weigh` names places."""
    vector: Float[Tensor, "width"]
    """As wide as the directions there: those of all streams lie in a row."""


@dataclass(frozen=True)
class DraftEdge:
    """An edge; without a score it is scored by the norm of what it carries, or of its target."""

    source: str
    target: str
    kind: EdgeKind
    factor: float | None = None
    """Of an addend: so many times the source's vector is part of the target's."""
    score: float | None = None
    sign: int = 1
    carries: Carried | None = None


@dataclass
class Draft:
    """Grows node by node and link by link."""

    layers: tuple[int, ...]
    position: int
    sketches: dict[str, Sketch] = field(default_factory=dict)
    links: list[DraftEdge] = field(default_factory=list)

    def node(
        self,
        id: str,
        kind: NodeKind,
        layer: int,
        label: str,
        vector: Float[Tensor, "d_model"],
        *,
        side: Literal["writing", "reading"] = "writing",
        behind: Norm | None = None,
        parameter: tuple[Kind, Tensor, int] | None = None,
        **place: Any,
    ) -> str:
        sketch = Sketch(id, kind, layer, label, vector, side, behind, parameter, place)
        self.sketches[id] = sketch
        return id

    def link(
        self,
        source: str,
        target: str,
        kind: EdgeKind,
        *,
        factor: float | None = None,
        score: float | None = None,
        sign: int = 1,
        carries: Carried | None = None,
    ) -> None:
        self.links.append(DraftEdge(source, target, kind, factor, score, sign, carries))

    def finish(self) -> Draft:
        """The same without nodes that no edge touches."""
        touched = {end for link in self.links for end in (link.source, link.target)}
        kept = {id: sketch for id, sketch in self.sketches.items() if id in touched}
        return Draft(self.layers, self.position, kept, self.links)

    @cached_property
    def vectors(self) -> dict[str, Float[Tensor, "d_model"]]:
        return {id: sketch.vector for id, sketch in self.sketches.items()}

    @cached_property
    def addends(self) -> dict[str, list[tuple[float, str]]]:
        """What each sum is the sum of: factors and nodes."""
        addends: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for link in self.links:
            if link.factor is not None:
                addends[link.target].append((link.factor, link.source))
        return dict(addends)
