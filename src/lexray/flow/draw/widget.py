"""The graph in notebooks: a cell that draws itself from what it holds, or a widget with traits.

A widget lives as long as its kernel, since notebooks do not save widgets by themselves. So what a
graph shows of itself is a cell of HTML that holds everything: it draws after a reload, without a
kernel, and in what nbconvert makes of the notebook. Where scripts may not run, a picture stays.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from uuid import uuid4

from lexray.errors import LexrayError
from lexray.flow.caption import caption
from lexray.flow.draw.html import module, page_data, style
from lexray.flow.draw.svg import drawing
from lexray.flow.graph import FlowGraph
from lexray.result.page import Script, embed_json, escape

HEIGHT = 640


def mimebundle(graph: FlowGraph) -> dict[str, str]:
    """What a notebook keeps of a graph."""
    return {"text/html": cell(graph), "image/svg+xml": picture(graph)}


def picture(graph: FlowGraph) -> str:
    return drawing(graph, dark=False, palette="paper")


def cell(graph: FlowGraph) -> str:
    """The interactive graph as a part of a page: its style, its data and its script.

    It has a name of its own, so that a graph may be shown twice. Until the script has run, and
    where it may not, the static picture stands in its place.
    """
    name = f"lexray-{uuid4().hex}"
    image = b64encode(picture(graph).encode("utf-8", "replace")).decode()
    start = (
        f'const data = JSON.parse(document.getElementById("{name}-data").textContent);\n'
        f'show(document.getElementById("{name}"), data, {{ height: {HEIGHT} }});\n'
    )
    return "\n".join(
        [
            f"<style>{style()}</style>",
            f'<div id="{name}"><img alt="{escape(caption(graph))}" '
            f'style="max-width: 100%" src="data:image/svg+xml;base64,{image}"></div>',
            str(Script(embed_json(page_data(graph)), "application/json", f"{name}-data")),
            str(Script(module() + start, "module")),
        ]
    )


def widget(graph: FlowGraph) -> Any:
    """An anywidget that shows the graph; `.target` and `.selected` follow what is chosen in it."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise LexrayError(
            "the widget needs anywidget (pip install 'lexray[notebook]'); without it to_html(path) "
            "writes a page, and a notebook shows the graph itself"
        ) from error

    class FlowWidget(anywidget.AnyWidget):  # type: ignore[misc]  # untyped base
        _esm = module()
        _css = style()
        data = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        target = traitlets.Unicode("").tag(sync=True)
        selected = traitlets.Unicode("").tag(sync=True)

    return FlowWidget(data=embed_json(page_data(graph)), target=graph.target.shown)
