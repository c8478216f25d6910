"""A flow graph that shows itself: in notebooks, as a page, a picture, a table, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from lexray.flow import schema
from lexray.flow.caption import caption as write_caption
from lexray.flow.graph import STREAM, FlowGraph, Node
from lexray.result.format import show_model
from lexray.result.table import Cell, Result, Table

if TYPE_CHECKING:
    import networkx
    import plotly.graph_objects as go

    from lexray.flow.attribution import Attribution


class Style(TypedDict, total=False):
    """How a picture is drawn: as in `Flow.to_svg`."""

    open_layers: Sequence[int] | None
    dark: bool
    palette: str
    paper: bool


@dataclass(frozen=True)
class Flow(FlowGraph, Result):
    """What `trace.flow` gives: a flow graph and all the forms in which people look at one.

    >>> graph = model.trace("This movie was").flow(layers=[2])
    >>> graph.to_html("flow.html")
    """

    @classmethod
    def of(cls, graph: FlowGraph) -> Flow:
        return cls(**{field.name: getattr(graph, field.name) for field in fields(graph)})

    @property
    def caption(self) -> str:
        """What happened, in a sentence or two, from the numbers."""
        return write_caption(self)

    def tables(self) -> list[Table]:
        """What the stream read as, and what each kind of node came to."""
        stream = [n for n in self.nodes if n.kind in STREAM]
        size = f"{len(self.nodes)} nodes, {len(self.edges)} edges"
        note = " · ".join(filter(None, [self.caption, show_model(self.run.model), size]))
        return [
            Table(
                ("node", "top", "P(target)", "rank", "norm"),
                tuple(self._row(node) for node in stream),
                title=f"The flow towards {self.target.shown} after {self.run.prompt!r}",
                note=note,
            )
        ]

    def _row(self, node: Node) -> tuple[Cell, ...]:
        place = self.place(node)
        top = " ".join(w.shown for w in node.projection.top[:5]) if node.projection else ""
        return (
            node.id,
            top,
            place.probability if place else None,
            place.rank if place else None,
            node.norm,
        )

    def csv_tables(self) -> list[Table]:
        columns = ("node", "kind", "layer", "label", "address", "top", "P(target)", "rank", "norm")
        rows = tuple(
            (n.id, n.kind.value, n.layer, n.label, n.address, *self._row(n)[1:]) for n in self.nodes
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        """The documented form: see `lexray.flow.schema`."""
        return schema.to_dict(self)

    def to_json(self, *, state: bool = True) -> str:
        """The documented form as text; `from_json` makes an equal graph of it."""
        return schema.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Flow:
        return cls.of(schema.from_json(text))

    def to_attribution(self, slug: str = "") -> Attribution:
        """The graph in the form of circuit-tracer's and Neuronpedia's attribution graphs.

        >>> Path("graph.json").write_text(graph.to_attribution().to_json())
        """
        from lexray.flow.attribution import to_attribution

        return to_attribution(self, slug)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """Nodes and edges with their fields as attributes."""
        from lexray.flow.draw.exports import to_networkx

        return to_networkx(self)

    def to_plotly(self) -> go.Figure:
        """A Sankey diagram, as the original draws it."""
        from lexray.flow.draw.exports import to_plotly

        return to_plotly(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """The interactive page as one text without any outside links; also written to `path`."""
        from lexray.flow.draw.html import page
        from lexray.result.images import write_text

        return write_text(page(self), path)

    def to_svg(
        self,
        path: str | Path | None = None,
        *,
        open_layers: Sequence[int] | None = None,
        dark: bool = False,
        palette: str = "paper",
        paper: bool = False,
    ) -> str:
        """The picture as SVG: which blocks are open (few layers: all) and in which colours.

        `paper`: one column for print, with the few parts that carry most (or those that are
        pinned, see `pin`) and all else together.
        """
        from lexray.flow.draw.paper import paper_drawing
        from lexray.flow.draw.svg import drawing
        from lexray.result.images import write_text

        if paper:
            return write_text(paper_drawing(self, dark=dark), path)
        return write_text(drawing(self, open_layers, dark=dark, palette=palette), path)

    def to_png(self, path: str | Path, *, scale: float = 2.0, **style: Unpack[Style]) -> Path:
        """The same picture as PNG; needs `lexray[png]`, no browser."""
        from lexray.result.images import write_png

        return write_png(self.to_svg(**style), Path(path), scale)

    def to_pdf(self, path: str | Path, **style: Unpack[Style]) -> Path:
        """The same picture as PDF, text as text; needs `lexray[pdf]`."""
        from lexray.result.images import write_pdf

        return write_pdf(self.to_svg(**style), Path(path))

    def widget(self) -> Any:
        """The interactive graph as a notebook widget; needs `lexray[notebook]`."""
        from lexray.flow.draw.widget import widget

        return widget(self)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """In notebooks: the interactive graph, which needs no kernel, and its picture."""
        from lexray.flow.draw.widget import mimebundle

        return {"text/plain": str(self), **mimebundle(self)}
