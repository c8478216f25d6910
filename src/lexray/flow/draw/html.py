"""The interactive page: one file that needs nothing else, drawn by `static/flow.js`."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

from lexray.flow.draw.layout import TOP, Layout, layout
from lexray.flow.draw.legend import entries
from lexray.flow.draw.palette import for_page
from lexray.flow.draw.shapes import BOLD, FONT, SIZES, Box, Form, Label
from lexray.flow.draw.svg import BAND, QUIET, prompt_shown
from lexray.flow.graph import FlowGraph
from lexray.flow.schema import SURROGATE, to_dict

DIGITS = 5
"""Significant digits of numbers in the page; JSON has all."""


def page(graph: FlowGraph) -> str:
    """The graph as an HTML text without outside links; works from a file, without network."""
    title = html.escape(f"{prompt_shown(graph.run)} → {graph.target.shown} · lexray flow")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{title.encode('utf-8', 'replace').decode()}</title>\n"
        f"<style>\nhtml, body {{ height: 100%; margin: 0 }}\n{static('flow.css')}</style>\n"
        '</head>\n<body>\n<div id="flow" style="height: 100%"></div>\n'
        f'<script type="application/json" id="data">{embedded(page_data(graph))}</script>\n'
        f'<script type="module">\n{static("flow.js")}\n'
        'render(document.getElementById("flow"), '
        'JSON.parse(document.getElementById("data").textContent), { hash: true });\n'
        "</script>\n</body>\n</html>\n"
    )


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser itself keeps the page from reaching outside."""


@cache
def static(name: str) -> str:
    return files("lexray.flow").joinpath("static", name).read_text("utf-8")


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element, whatever its texts contain."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def page_data(graph: FlowGraph) -> dict[str, Any]:
    """What `render` in flow.js takes: the graph, its positioned shapes, and how to paint them."""
    arrangement = layout(graph)
    return {
        "graph": _rounded(to_dict(graph)),
        "prompt": prompt_shown(graph.run),
        "layout": _layout(arrangement),
        "paint": for_page(),
        "text": {"font": FONT, "sizes": SIZES, "bold": sorted(BOLD), "quiet": QUIET},
        "legend": [
            {"text": entry.long, "colours": entry.colours, "node": entry.is_node}
            for entry in entries(graph)
        ],
    }


def _layout(arrangement: Layout) -> dict[str, Any]:
    return {
        "top": TOP,
        "band": BAND,
        "open": list(arrangement.at_first),
        "free": list(arrangement.free),
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


def _box(box: Box) -> list[Any]:
    sides = map(_short, (box.x, box.y, box.width, box.height))
    return [box.node, *sides, [_label(label) for label in box.labels]]


def _label(label: Label) -> list[Any]:
    return [_short(label.x), _short(label.y), label.role, label.text, label.anchor]


def _short(value: float) -> float:
    return round(value, 1)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
