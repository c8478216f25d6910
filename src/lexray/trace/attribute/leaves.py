"""Single components of a logit: where each looked, what it wrote, and what that added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model import fold
from lexray.result.readings import Source, Token
from lexray.result.table import Result, Table
from lexray.trace.attribute.heads import HeadsStep, SubBlock
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.read.standard import How, read_words
from lexray.trace.read.usual import Place
from lexray.trace.recording import Recording

ComponentKind = Literal["embedding", "head", "mixer", "neuron", "bias"]
WORDS = 3
"""So many of the words that a component wrote are shown."""


@dataclass(frozen=True)
class Leaf:
    """One component."""

    component: str
    kind: ComponentKind
    layer: int | None
    contribution: float
    source: int | None = None
    """The position a head looked at, where heads are split by it."""
    words: tuple[Token, ...] = ()
    """What it wrote, heads and neurons where they are listed: by how it differs from what its
    place usually carries, or in an unstandardised view as the last step would read it."""
    looked_at: Token | None = None
    """The token from which most of what a head wrote came."""

    def to_dict(self) -> dict[str, Any]:
        at = {} if self.source is None else {"source": self.source}
        words = {"words": [word.to_dict() for word in self.words]} if self.words else {}
        looked = {"looked_at": self.looked_at.to_dict()} if self.looked_at else {}
        return {
            "component": self.component,
            "layer": self.layer,
            **at,
            **looked,
            **words,
            "contribution": self.contribution,
        }

    @property
    def label(self) -> str:
        """As people read it: `L23H4 ← ·Japan · ·Japanese ·Tokyo`."""
        at = "" if self.source is None else f" ({self.source})"
        looked = f" ← {self.looked_at.shown}{at}" if self.looked_at else ""
        words = " ".join(word.shown for word in self.words)
        return f"{self.component}{looked}" + (f" · {words}" if words else "")

    def __str__(self) -> str:
        return f"{self.label} · {self.contribution:+.2f}"


@dataclass(frozen=True)
class Leaves(Result, Sequence[Leaf]):
    """The components that added most to a logit, or took most, a line each."""

    origin: Source
    title: str
    leaves: tuple[Leaf, ...]
    note: str = ""
    how: How = "as it is"
    """How the words were found."""

    def __len__(self) -> int:
        return len(self.leaves)

    @overload
    def __getitem__(self, index: int) -> Leaf: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Leaf]: ...
    def __getitem__(self, index: int | slice) -> Leaf | Sequence[Leaf]:
        return self.leaves[index]

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.leaves)

    def tables(self) -> list[Table]:
        rows = tuple((leaf.label, leaf.contribution) for leaf in self)
        columns = ("component ← looked at · wrote", "contribution")
        return [Table(columns, rows, self.title, self.note, bars=frozenset({"contribution"}))]

    def csv_tables(self) -> list[Table]:
        columns = ("component", "layer", "looked_at", "words", "contribution")
        rows = tuple(
            (
                leaf.component,
                leaf.layer,
                leaf.looked_at.text if leaf.looked_at else None,
                " ".join(word.shown for word in leaf.words),
                leaf.contribution,
            )
            for leaf in self
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.origin.to_dict(),
            "how": self.how,
            "components": [leaf.to_dict() for leaf in self],
        }


@dataclass(frozen=True)
class KeptLeaves:
    """What of a pass a file keeps: the components that were shown, already read."""

    leaves: tuple[Leaf, ...]
    how: How
    causal: bool

    def find(self, leaf: Leaf) -> Leaf:
        """The same component with its words, or where none are kept, as it is."""
        same = (k for k in self.leaves if (k.component, k.source) == (leaf.component, leaf.source))
        return next(same, leaf)


def read_leaves(
    moment: Moment | KeptLeaves, leaves: Sequence[Leaf], text: str | None = None
) -> tuple[list[Leaf], How]:
    """The same components with what they looked at and wrote, all read together, and how."""
    if isinstance(moment, KeptLeaves):
        return [moment.find(leaf) for leaf in leaves], moment.how
    by_layer: dict[int, list[int]] = defaultdict(list)
    for i, leaf in enumerate(leaves):
        if leaf.layer is not None and leaf.kind in ("head", "mixer", "neuron"):
            by_layer[leaf.layer].append(i)
    filled, vectors, order, places = list(leaves), [], [], []
    for layer, members in by_layer.items():
        step = Step.of(moment, layer)
        for i in members:
            vector, looked_at, times = _write(step, leaves[i])
            tokens = tokens_seen(moment.recording, leaves[i].component)
            token = None if looked_at is None else tokens[looked_at]
            filled[i] = replace(leaves[i], looked_at=token)
            vectors.append(vector)
            order.append(i)
            places.append(Place("heads" if times is None else "value", layer, times or 1.0))
    if not vectors:
        return filled, "as it is"
    model = moment.recording.model
    read = read_words(model, torch.stack(vectors), places, WORDS, text=text)
    for i, own in zip(order, read.projected.top_ids.tolist(), strict=True):
        filled[i] = replace(filled[i], words=tuple(map(model.space.token, own)))
    return filled, read.hows[0]


def tokens_seen(recording: Recording, component: str) -> tuple[Token, ...]:
    """The tokens that a head looks at: the source's, of cross-attention."""
    crosses = "X" in component and recording.source is not None
    return recording.source.tokens if crosses and recording.source else recording.tokens


def _write(step: Step, leaf: Leaf) -> tuple[Float[Tensor, "d_model"], int | None, float | None]:
    """The vector that a head or a neuron wrote, as the norm behind its sub-block adds it but for
    its scale; the position from which a head took most; how many times its value a neuron wrote."""
    checkpoint = step.moment.recording.weights.checkpoint
    if leaf.kind == "neuron":
        owner, _, number = leaf.component.rpartition("N")
        i = step.index_of((owner, int(number)))
        assert i is not None  # it contributed, so its feed-forward wrote
        value = fold.writer(step.W_out[i], step.spec.ff.post_norm, checkpoint)
        times = float(step.coefficients[i]) or 1.0
        return times * value, None, times
    if leaf.kind == "mixer":
        part: SubBlock = "laurel" if leaf.component.endswith("laurel") else "mixer"
        norm = step.sub_block(part).post_norm
        return fold.writer(step.output_of(part), norm, checkpoint), None, None
    crosses = "X" in leaf.component
    heads: HeadsStep = step.cross if crosses else step
    head = int(leaf.component.rpartition("X" if crosses else "H")[2])
    moved = heads.pattern[head, :, None] * (heads.values(head) @ heads.W_O[head])
    at = int(moved.norm(dim=-1).argmax()) if leaf.source is None else leaf.source
    vector = heads.heads[head] if leaf.source is None else moved[at]
    return fold.writer(vector, heads.attention.post_norm, checkpoint), at, None
