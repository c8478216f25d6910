"""The parts of a model by address: layers, heads, neurons, experts, matrices, vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.circuits import Circuit
from lexray.model.component import Parts
from lexray.model.feedforward import FeedForward, Mixture, Neuron
from lexray.model.groups import all_groups
from lexray.model.head import Head
from lexray.model.layer import Layer
from lexray.model.vectors import Vector, VectorGroup
from lexray.model.weights import Weights
from lexray.space.kinds import Kind
from lexray.space.space import EmbeddingSpace, space_of

Part = TypeVar("Part", Layer, Head, FeedForward, Neuron, Circuit, Vector)


class Anatomy(Weights):
    """Weights whose parts can be called by name: what searching, tracing and comparing need."""

    @property
    def space(self) -> EmbeddingSpace:
        """The embedding space under this view."""
        return space_of(self)

    @property
    def layers(self) -> Parts[Layer]:
        """The blocks: `model.layers[3].heads[7]`, `.ff.neurons[17]`."""
        return Parts("layer", "this model", lambda i: Layer(self, i), self.n_layers)

    @property
    def own_layers(self) -> list[Layer]:
        """The layers whose weights no earlier one has: all, but where layers share (ALBERT)."""
        return [self.layers[i] for i in self.architecture.own_layers]

    @property
    def every_head(self) -> list[Head]:
        """Layer after layer; of an encoder–decoder the encoder's heads, then those of each decoder
        layer with those of its cross-attention."""
        layers = [layer for stack in self.stacks for layer in stack.layers]
        return [head for layer in layers for head in layer.every_head]

    def groups(self, kind: Kind) -> Iterator[VectorGroup]:
        """All vectors of a kind, group after group, layer after layer."""
        return (VectorGroup(str(group.owner), [group]) for group in all_groups(self, kind))

    def vectors(self, kind: Kind) -> Iterator[Float[Tensor, "_ d_model"]]:
        """All vectors of a kind as blocks of rows."""
        return (group.tensor for group in all_groups(self, kind))

    def __getitem__(self, address: str | Address) -> Any:
        """The layer, head, neuron, expert, matrix or vector at an address; see `lexray.address`.

        Its type depends on the address; `head`, `neuron`, `circuit`, … say it to a type checker.
        """
        at = address if isinstance(address, Address) else Address.parse(address)
        layer = self.stack_at(at).layers[at.layer]
        if at.feature is not None:
            raise LexrayError(
                f"{at} is a feature, which belongs to a dictionary: lx.Dictionary.open(path, model)"
            )
        if at.part is not None:
            return layer.vector(at.part)
        if at.mixer:
            mixer = layer.mixer
            return mixer if at.port is None else mixer.vectors(at.port)[at.channel or 0]
        if at.head is not None:
            heads = layer.cross_heads if at.cross else layer.heads
            return _inside_head(heads[at.head], at)
        ff = layer.ff
        if at.expert is not None or at.shared:
            ff = _expert(ff, at)
        if at.neuron is None:
            return layer if at == replace(layer.address, encoder=at.encoder) else ff
        if isinstance(ff, Mixture):
            raise LexrayError(
                f"{at}: layer {at.layer} is a mixture of {len(ff.experts)} experts; "
                f"say which, as in L{at.layer}E0N{at.neuron}"
            )
        neuron = ff.neurons[at.neuron]
        return neuron if at.vector is None else getattr(neuron, at.vector)

    def _ipython_key_completions_(self) -> list[str]:
        """What `model["L<tab>` offers: layers and heads, and of each layer how neurons begin."""
        layers = [layer for stack in self.stacks for layer in stack.layers]
        parts = [f"{layer.address}{end}" for layer in layers for end in ("", "N0")]
        return [*parts, *(str(head.address) for head in self.every_head)]

    def head(self, address: str | Address) -> Head:
        """The head at an address: `model.head("L3H7")`."""
        return self._part_of(address, Head, "head", "L3H7")

    def neuron(self, address: str | Address) -> Neuron:
        """The neuron at an address: `model.neuron("L12N345")`."""
        return self._part_of(address, Neuron, "neuron", "L12N345")

    def circuit(self, address: str | Address) -> Circuit:
        """The matrix at an address: `model.circuit("L3H7.VO")`."""
        return self._part_of(address, Circuit, "matrix", "L3H7.VO or L3H7.QK")

    def vector(self, address: str | Address) -> Vector:
        """The vector at an address: `model.vector("L12N345.value")`."""
        return self._part_of(
            address, Vector, "single vector", "L12N345.value, .key or .gate, or a subhead: L3H7.V12"
        )

    def _part_of(self, address: str | Address, kind: type[Part], name: str, example: str) -> Part:
        part = self[address]
        if not isinstance(part, kind):
            raise LexrayError(f"{address} is no {name}; try {example}")
        return part

    def embeddings(self, ids: Sequence[int]) -> Float[Tensor, "n d_model"]:
        """The tokens' output embeddings less the mean embedding."""
        side = self.view(centred=True, folded=False).space.writing
        if not ids:
            return torch.zeros(0, self.d_model)
        if max(ids) >= len(side.rows):
            raise LexrayError(f"{self.name} has no token {max(ids)}: another model's reading?")
        return torch.cat(list(side.only(torch.tensor(list(ids))).columns()))

    def final_norm(self, part: Literal["gain", "bias"] = "gain") -> Vector:
        """The final norm's gain or bias as a readable vector."""
        norm = self.architecture.final_norm
        read = norm and (norm.read_gain if part == "gain" else norm.read_bias)
        tensor = read(self.checkpoint) if read else None
        if tensor is None:
            raise LexrayError(f"{self.name} has no {part} in its final norm")
        gain = self.place(tensor)
        stem = "" if self.decoder is None else "enc."
        return Vector(self, f"{stem}final_norm.{part}", "norm", lambda: gain, "final_norm")


def _inside_head(head: Head, at: Address) -> Head | Circuit | Vector:
    if at.matrix is not None:
        return head.vo if at.matrix == "VO" else head.qk
    if at.subhead is None:
        return head
    assert at.index is not None
    return head.subheads(at.subhead)[at.index]


def _expert(ff: FeedForward | Mixture, at: Address) -> FeedForward:
    if isinstance(ff, FeedForward):
        raise LexrayError(f"{at}: layer {at.layer} has no experts; its neurons are L{at.layer}N0 …")
    if at.expert is not None:
        return ff.experts[at.expert]
    if ff.shared is None:
        raise LexrayError(f"{at}: layer {at.layer} has no shared expert")
    return ff.shared
