"""A model at a glance: one figure for every head and every neuron, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.model.layer import Layer
from lexray.model.sweep import each_top
from lexray.progress import track
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.space.legibility import WINDOW

By = Literal["legibility", "norm"]
Parts = Literal["heads", "neurons"]
PAIRS = 15
"""So many pairs of a head's VO are read for its legibility."""


@dataclass(frozen=True)
class Overview(Result):
    """The answer of `lx.overview`."""

    source: Source
    by: By
    parts: Parts
    layers: tuple[str, ...]
    """By their addresses."""
    figures: tuple[tuple[float, ...], ...]
    """Of each of these layers, one for each head or neuron."""
    largest: tuple[str | None, ...]
    """Which has the largest, of each layer."""

    def tables(self) -> list[Table]:
        rows: list[tuple[Cell, ...]] = [
            (layer, len(own), sum(own) / max(1, len(own)), max(own, default=None), which)
            for layer, own, which in zip(self.layers, self.figures, self.largest, strict=True)
        ]
        columns = ("layer", self.parts, f"mean {self.by}", "largest", "which")
        return [Table(columns, tuple(rows), f"{self.by} of {self.parts}", str(self.source))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "by": self.by,
            "parts": self.parts,
            "layers": {
                layer: [float(f"{x:.4g}") for x in own]
                for layer, own in zip(self.layers, self.figures, strict=True)
            },
        }


def overview(
    model: Anatomy,
    by: By = "legibility",
    parts: Parts = "heads",
    layers: Some = None,
) -> Overview:
    """How legible, or how large, all heads or neurons are.

    Heads: the legibility of VO's best pairs of different tokens, or ‖W_V W_O‖; those of a decoder's
    cross-attention stand behind its own. Neurons: that of the value, expert after expert in
    mixtures, the shared one last. Of an encoder–decoder the encoder's layers come first; `layers`
    chooses among the decoder's (`model.encoder` is the encoder by itself).

    >>> lx.overview(model, "norm", "neurons").figures[2][77]
    """
    if by not in get_args(By) or parts not in get_args(Parts):
        said = f"{', '.join(get_args(By))} of {', '.join(get_args(Parts))}"
        raise LexrayError(f"there is no overview of {parts!r} by {by!r}; there are {said}")
    chosen = [model.layers[i] for i in choose(layers, model.n_layers, "layer")]
    if layers is None:
        chosen = [layer for stack in model.stacks for layer in stack.layers]
    measure = _MEASURES[by, parts]
    figures = tuple(
        tuple(measure(layer)) for layer in track(chosen, len(chosen), f"reading {parts}")
    )
    largest = tuple(
        _name(layer, parts, max(range(len(own)), key=own.__getitem__)) if own else None
        for layer, own in zip(chosen, figures, strict=True)
    )
    addresses = tuple(str(layer.address) for layer in chosen)
    return Overview(model.space.source(""), by, parts, addresses, figures, largest)


def _name(layer: Layer, parts: Parts, i: int) -> str:
    """The address of a layer's i-th head or neuron, in the order of the figures."""
    if parts == "heads":
        return str(layer.every_head[i].address)
    for ff in layer.feed_forwards:
        if i < ff.d_mlp:
            return f"{ff.address}N{i}"
        i -= ff.d_mlp
    raise LexrayError(f"{layer.address} has no such neuron")


def _legible_heads(layer: Layer) -> list[float]:
    circuits = [head.vo for head in layer.every_head]
    return [pairs.legibility for pairs in each_top(circuits, PAIRS, exclude_same=True)]


def _large_heads(layer: Layer) -> list[float]:
    return [_size(head) for head in layer.every_head]


def _size(head: Head) -> float:
    """‖W_V W_O‖ from d_head × d_head matrices."""
    W_V, W_O = at_least_float32(head.W_V), at_least_float32(head.W_O)
    return float(((W_V.T @ W_V) * (W_O @ W_O.T)).sum().clamp(min=0).sqrt())


def _legible_neurons(layer: Layer) -> list[float]:
    scores: list[float] = []
    for group in layer.groups("value"):
        top = group.space.top(group.tensor, "value", WINDOW)
        scores += group.space.legibility(top.top_ids, "value").tolist()
    return scores


def _large_neurons(layer: Layer) -> list[float]:
    norms: list[float] = []
    for group in layer.groups("value"):
        norms += at_least_float32(group.tensor).norm(dim=1).tolist()
    return norms


_MEASURES = {
    ("legibility", "heads"): _legible_heads,
    ("norm", "heads"): _large_heads,
    ("legibility", "neurons"): _legible_neurons,
    ("norm", "neurons"): _large_neurons,
}
