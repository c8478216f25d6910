"""The interactive page: one file that needs nothing else, drawn by `static/flow.js`."""

from __future__ import annotations

from typing import Any

from lexray.flow.caption import caption
from lexray.flow.draw import legend
from lexray.flow.draw.layout import BETWEEN, FOLD, TOP, Layout, layout
from lexray.flow.draw.palette import for_page
from lexray.flow.draw.shapes import BOLD, FONT, SIZES, Form, Label, NodeBox
from lexray.flow.draw.svg import BAND, QUIET, about, show_prompt
from lexray.flow.graph import FlowGraph
from lexray.flow.schema import to_dict
from lexray.result import page as shell
from lexray.result.assets import join_modules, read_asset

DIGITS = 5
"""Significant digits of numbers in the page; JSON has all."""


def page(graph: FlowGraph) -> str:
    """The graph as an HTML text without outside links; works from a file, without network."""
    title = f"{show_prompt(graph.run)} → {graph.target.shown} · lexray flow"
    start = (
        'show(document.getElementById("flow"), '
        'JSON.parse(document.getElementById("data").textContent), { hash: true });\n'
    )
    return shell.page(
        title,
        '<div id="flow"></div>',
        style=WHOLE_WINDOW + style(),
        scripts=(
            shell.Script(shell.embed_json(page_data(graph)), "application/json", "data"),
            shell.Script(module() + start, "module"),
        ),
    )


WHOLE_WINDOW = "html, body, #flow { height: 100%; margin: 0; }\n"


def module() -> str:
    """The renderer, one ES module of those in `static`."""
    return join_modules("lexray.flow", "static/flow.js")


def style() -> str:
    return read_asset("lexray.flow", "static/flow.css")


def page_data(graph: FlowGraph) -> dict[str, Any]:
    """What `show` in flow.js takes: the graph, its positioned shapes, and how to paint them."""
    arrangement = layout(graph)
    return {
        "graph": _round(to_dict(graph)),
        "prompt": show_prompt(graph.run),
        "about": about(graph),
        "caption": caption(graph),
        "layout": _layout(arrangement),
        "paint": for_page(),
        "said": legend.for_page(),
        "text": {"font": FONT, "sizes": SIZES, "bold": sorted(BOLD), "quiet": QUIET},
        "legend": [
            {"text": entry.long, "colours": entry.colours, "node": entry.is_node}
            for entry in legend.entries(graph)
        ],
    }


def _layout(arrangement: Layout) -> dict[str, Any]:
    return {
        "top": TOP,
        "band": BAND,
        "open": list(arrangement.at_first),
        "free": list(arrangement.free),
        "quiet": list(arrangement.quiet),
        "fold": FOLD,
        "between": BETWEEN,
        "segments": [
            {
                "kind": segment.kind,
                "layer": segment.layer,
                "closed": _form(segment.closed),
                "open": _form(segment.open) if segment.open else None,
            }
            for segment in arrangement.segments
        ],
    }


def _form(form: Form) -> dict[str, Any]:
    return {
        "width": _short(form.width),
        "bottom": _short(form.bottom),
        "boxes": [_box(box) for box in form.boxes],
        "wires": [[wire.edge, wire.path] for wire in form.wires],
        "panels": [
            [*map(_short, (panel.x, panel.y, panel.width, panel.height)), panel.part]
            for panel in form.panels
        ],
        "labels": [_label(label) for label in form.labels],
    }


def _box(box: NodeBox) -> list[Any]:
    sides = map(_short, (box.x, box.y, box.width, box.height))
    return [box.node, *sides, [_label(label) for label in box.labels]]


def _label(label: Label) -> list[Any]:
    return [_short(label.x), _short(label.y), label.role, label.text, label.anchor]


def _short(value: float) -> float:
    return round(value, 1)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_round(item) for item in value]
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    return value
