"""The graph in notebooks: a widget if anywidget is there, else the page in a frame."""

from __future__ import annotations

from typing import Any

from lexray.errors import LexrayError
from lexray.flow.draw.html import module, page, page_data, style
from lexray.flow.graph import FlowGraph
from lexray.result.page import embed_json, escape

HEIGHT = 640


def widget(graph: FlowGraph) -> Any:
    """An anywidget that shows the graph; `.target` and `.selected` follow what is chosen in it."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise LexrayError(
            "the widget needs anywidget (pip install 'lexray[notebook]'); without it "
            "to_html(path) writes a page, and notebooks show that page in a frame"
        ) from error

    class FlowWidget(anywidget.AnyWidget):  # type: ignore[misc]  # untyped base
        _esm = module()
        _css = style()
        data = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        target = traitlets.Unicode("").tag(sync=True)
        selected = traitlets.Unicode("").tag(sync=True)

    return FlowWidget(data=embed_json(page_data(graph)), target=graph.target.shown)


def mimebundle(graph: FlowGraph, **options: Any) -> Any:
    try:
        shown = widget(graph)
    except LexrayError:
        return {"text/plain": str(graph), "text/html": frame(graph)}
    return shown._repr_mimebundle_(**options)


def frame(graph: FlowGraph) -> str:
    """The page inside another one."""
    return (
        f'<iframe srcdoc="{escape(page(graph))}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {HEIGHT}px; border: 0" title="lexray flow graph"></iframe>'
    )
