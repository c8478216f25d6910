"""A flow graph in a few lines: how the target fares along the stream, and who moved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lexray.flow.caption import caption
from lexray.flow.graph import FlowGraph, Node, Standing
from lexray.flow.schema import to_dict
from lexray.result.format import show_model
from lexray.result.table import Cell, Result, Table
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.walk import pulls
from lexray.trace.recording import Recording

LEGEND = "heads, neurons: what they added to its logit"


@dataclass(frozen=True)
class Mover:
    """A head or a neuron, and what it added to the target's logit."""

    name: str
    added: float

    def __str__(self) -> str:
        return f"{self.name} {self.added:+.2f}"


@dataclass(frozen=True)
class Summary(Result):
    """A graph's stream, and for each block the heads and neurons that moved the target most."""

    graph: FlowGraph
    heads: Mapping[int, tuple[Mover, ...]]
    neurons: Mapping[int, tuple[Mover, ...]]

    def tables(self) -> list[Table]:
        graph = self.graph
        rows = tuple(self._row(layer) for layer in graph.layers)
        runs = [repr(run.prompt) for run in (graph.run, graph.other) if run is not None]
        other = ("out, other", "rank, other") if graph.is_difference else ()
        columns = ("block", "in", "mid", "out", "rank", *other, "reads out as", "heads", "neurons")
        note = graph.options.get("note", "")
        parts = [
            caption(graph),
            show_model(graph.run.model),
            LEGEND,
            note,
        ]
        title = f"P({graph.target.shown}) after {' and '.join(runs)}"
        return [Table(columns, rows, title, " · ".join(filter(None, parts)))]

    def _row(self, layer: int) -> tuple[Cell, ...]:
        after = self._node(f"L{layer + 1}.in")
        before, mid = (self._chance(self._node(f"L{layer}.{name}")) for name in ("in", "mid"))
        place, there = self._place(after), self._place(after, other=True)
        other = (there.probability if there else None, there.rank if there else None)
        tokens = after.projection.top[:4] if after and after.projection else ()
        return (
            f"L{layer}",
            before,
            mid,
            self._chance(after),
            place.rank if place else None,
            *(other if self.graph.is_difference else ()),
            " ".join(word.shown for word in tokens),
            _list(self.heads.get(layer, ())),
            _list(self.neurons.get(layer, ())),
        )

    def _node(self, id: str) -> Node | None:
        return next((node for node in self.graph.nodes if node.id == id), None)

    def _place(self, node: Node | None, other: bool = False) -> Standing | None:
        return None if node is None else self.graph.place(node, other)

    def _chance(self, node: Node | None) -> float | None:
        place = self._place(node)
        return place.probability if place else None

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self.graph)


def _list(movers: Sequence[Mover]) -> str:
    return ", ".join(map(str, movers))


def summarise(trace: Recording, graph: FlowGraph, n: int = 2) -> Summary:
    """The graph's stream, and for each block the n heads and neurons that moved the target most,
    for or against it: what each added to its logit, with the norms on the way as they were."""
    moment = Moment.of(trace, graph.run.position - graph.run.n_source)
    layers = [layer for layer in graph.layers if layer in trace.layers]
    heads: dict[int, tuple[Mover, ...]] = {}
    neurons: dict[int, tuple[Mover, ...]] = {}
    for layer, pull in pulls(moment, graph.target.id, layers).items():
        step = Step.of(moment, layer)
        named = {f"H{i}": x for i, x in enumerate(step.heads_along(pull.attention).tolist())}
        if pull.cross is not None:
            along = step.cross.heads_along(pull.cross).tolist()
            named |= {f"X{i}": x for i, x in enumerate(along)}
        best = sorted(named.items(), key=lambda item: -abs(item[1]))[:n]
        heads[layer] = tuple(Mover(name, added) for name, added in best)
        by_neuron = _most(step.neurons_along(pull.ff), n)
        names = step.neurons(i for i, _ in by_neuron)
        neurons[layer] = tuple(
            Mover(f"{owner.removeprefix(str(step.layer.address))}N{i}", added)
            for (owner, i), (_, added) in zip(names, by_neuron, strict=True)
        )
    return Summary(graph, heads, neurons)


def _most(added: Float[Tensor, "n"], n: int) -> list[tuple[int, float]]:
    """The n largest in size, and where they are."""
    order = added.abs().argsort(descending=True, stable=True)[:n]
    return list(zip(order.tolist(), added[order].tolist(), strict=True))
