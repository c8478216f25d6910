"""The graph for other tools: networkx, and plotly's Sankey diagram as the original draws it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from lexray.errors import LexrayError
from lexray.flow.draw.palette import node_fill, palette, strength, strongest, wire_style
from lexray.flow.graph import FlowGraph, Node
from lexray.result.format import show_percent

if TYPE_CHECKING:
    import networkx
    import plotly.graph_objects as go


def to_networkx(graph: FlowGraph) -> networkx.MultiDiGraph:
    """Every field of nodes and edges is an attribute; the graph's own hold model and target."""
    try:
        import networkx
    except ImportError as error:
        raise LexrayError(
            "to_networkx needs networkx (pip install 'lexray[graph]'); to_json holds the same"
        ) from error
    out = networkx.MultiDiGraph(
        model=graph.run.model,
        prompt=graph.run.prompt,
        position=graph.run.position,
        target=graph.target.shown,
    )
    for node in graph.nodes:
        fields = {name: value for name, value in vars(node).items() if name != "id"}
        place = graph.place(node)
        rank, probability = (place.rank, place.probability) if place else (None, None)
        fields |= {"kind": node.kind.value, "rank": rank, "probability": probability}
        out.add_node(node.id, **fields)
    for edge in graph.edges:
        fields = {name: value for name, value in asdict(edge).items() if name not in _ENDS}
        out.add_edge(edge.source, edge.target, **fields | {"kind": edge.kind.value})
    return out


_ENDS = ("source", "target")


def to_plotly(graph: FlowGraph) -> go.Figure:
    """A Sankey diagram: widths by score within each kind of edge."""
    from lexray.result.charts.plotly import import_plotly, literal

    go = import_plotly()

    colours, most = palette("paper", dark=False), strongest(graph)
    place = {node.id: i for i, node in enumerate(graph.nodes)}
    styles = [wire_style(graph, edge, most, colours) for edge in graph.edges]
    figure = go.Figure(
        go.Sankey(
            arrangement="snap",
            node={
                "label": [literal(_first(node)) for node in graph.nodes],
                "color": [node_fill(graph, node, colours) for node in graph.nodes],
                "customdata": [literal(_say(graph, node)) for node in graph.nodes],
                "hovertemplate": "%{customdata}<extra></extra>",
                "pad": 6,
                "thickness": 14,
                "line": {"width": 0},
            },
            link={
                "source": [place[edge.source] for edge in graph.edges],
                "target": [place[edge.target] for edge in graph.edges],
                "value": [style.width for style in styles],
                "color": [style.colour for style in styles],
                "customdata": [
                    literal(f"{e.source} → {e.target} ({e.kind}): {strength(graph, e):.4g}")
                    for e in graph.edges
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            },
        )
    )
    title = f"The flow towards {graph.target.shown} after {graph.run.prompt!r}"
    figure.update_layout(title={"text": literal(title)}, height=900, font={"size": 11})
    return figure


def _first(node: Node) -> str:
    return node.projection.top[0].shown if node.projection and node.projection.top else node.label


def _say(graph: FlowGraph, node: Node) -> str:
    place = graph.place(node)
    words = " ".join(w.shown for w in node.projection.top) if node.projection else ""
    status = (
        f"; {graph.target.shown}: rank {place.rank}, {show_percent(place.probability)}"
        if place
        else ""
    )
    return f"{node.id}: {words}{status}"
