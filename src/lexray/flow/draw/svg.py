"""The picture as static SVG: the shapes of `layout`, a line about the prompt, and a legend."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Mapping

from lexray.flow.caption import caption
from lexray.flow.draw.layout import TOP, WIDE, Layout, PlacedForm, layout
from lexray.flow.draw.legend import entries
from lexray.flow.draw.palette import Palette, mix, node_fill, palette, strongest, wire_style
from lexray.flow.draw.shapes import BOLD, FONT, SIZES, Backdrop, Form, Label, NodeBox, text_width
from lexray.flow.draw.wires import free_path, n
from lexray.flow.graph import EdgeKind, FlowGraph, Node, NodeKind, Run
from lexray.result.format import show_model, show_percent

MARGIN = 36.0
HEADER, FOOTER = 64.0, 58.0
BAND = 14.0
"""The height of the residual stream."""
QUIET = {"tag": 0.66, "caption": 0.66, "share": 0.72, "line": 0.8}
"""How strongly text in a node shows, where less than fully."""


def drawing(
    graph: FlowGraph, layers: Collection[int] | None = None, *, dark: bool, palette: str
) -> str:
    """The whole picture with these blocks open."""
    return _Drawing(graph, layers, dark, palette).text()


class _Drawing:
    def __init__(
        self, graph: FlowGraph, layers: Collection[int] | None, dark: bool, name: str
    ) -> None:
        self.graph = graph
        self.colours: Palette = palette(name, dark)
        self.layout: Layout = layout(graph)
        self.pieces: list[PlacedForm] = self.layout.place(self.layout.choose_open(layers), WIDE)
        self.most = strongest(graph)

    def text(self) -> str:
        inner = max((piece.x + piece.form.width for piece in self.pieces), default=0.0)
        words = self._header()
        legend, legend_width = self._legend()
        header_width = max((label.x + label.width for label in words), default=0.0)
        overhang = 48.0
        width = max(inner + 2 * overhang, legend_width, header_width) + 2 * MARGIN
        bottom = max((piece.y + piece.form.bottom for piece in self.pieces), default=0.0)
        height = HEADER - TOP + bottom + FOOTER + MARGIN
        left = MARGIN + max(overhang, (width - 2 * MARGIN - inner) / 2)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{n(width)}" height="{n(height)}" '
            f'viewBox="0 0 {n(width)} {n(height)}" font-family="{html.escape(FONT)}" role="img">',
            f"<title>{escape_xml(self._title())}</title>",
            f"<desc>{escape_xml(caption(self.graph))}</desc>",
            f'<rect width="100%" height="100%" fill="{self.colours.paper}"/>',
            self._group(MARGIN, 0.0, (self._label(label) for label in words)),
            self._group(left, HEADER - TOP, self._picture()),
            self._group(MARGIN, height - MARGIN, legend),
            "</svg>\n",
        ]
        return "\n".join(parts)

    def _title(self) -> str:
        return f"The flow towards {self.graph.target.shown} after {self.graph.run.prompt}"

    def _header(self) -> list[Label]:
        run = self.graph.run
        first = Label(0.0, 46.0, "title", f"{show_prompt(run)}  →  {self.graph.target.shown}")
        return [first, Label(0.0, 66.0, "heading", about(self.graph))]

    def _picture(self) -> Iterable[str]:
        yield from self._bands()
        for edge, path in self._free():
            yield self._wire(edge, path)
        for piece in self.pieces:
            yield self._group(piece.x, piece.y, self._form(piece.form, piece.again))

    def _bands(self) -> Iterable[str]:
        ends = {piece.y: piece.x + piece.form.width for piece in self.pieces}
        for y, width in ends.items():
            yield (
                f'<rect class="stream" x="0" y="{n(y - BAND / 2)}" width="{n(width)}" '
                f'height="{n(BAND)}" rx="{n(BAND / 2)}" fill="{self.colours.stream}"/>'
            )

    def _free(self) -> Iterable[tuple[int, str]]:
        """Edges between pieces: from the right of one box to the left of another."""
        where: Mapping[str, tuple[PlacedForm, NodeBox]] = {
            self.graph.nodes[box.node].id: (piece, box)
            for piece in self.pieces
            for box in piece.form.boxes
            if not piece.again
        }
        for index in self.layout.free:
            edge = self.graph.edges[index]
            if edge.source in where and edge.target in where:
                (one, a), (two, b) = where[edge.source], where[edge.target]
                start, stop = (one.x + a.right, one.y + a.middle), (two.x + b.x, two.y + b.middle)
                yield index, free_path(*start, *stop)

    def _form(self, form: Form, again: bool) -> Iterable[str]:
        yield from (self._panel(panel) for panel in form.panels)
        yield from (self._wire(wire.edge, wire.path) for wire in form.wires)
        yield from (self._box(box, again) for box in form.boxes)
        yield from (self._label(label) for label in form.labels)

    def _panel(self, panel: Backdrop) -> str:
        fill = self.colours.panel_ff if panel.part == "ff" else self.colours.panel
        return (
            f'<rect class="panel" x="{n(panel.x)}" y="{n(panel.y)}" width="{n(panel.width)}" '
            f'height="{n(panel.height)}" rx="14" fill="{fill}"/>'
        )

    def _wire(self, index: int, path: str) -> str:
        edge = self.graph.edges[index]
        style = wire_style(self.graph, edge, self.most, self.colours)
        dash = ' stroke-dasharray="4 3"' if edge.kind == EdgeKind.OTHERS else ""
        return (
            f'<path class="wire" d="{path}" fill="none" stroke="{style.colour}" '
            f'stroke-width="{style.width:.2f}" stroke-opacity="{style.opacity}"{dash}/>'
        )

    def _box(self, box: NodeBox, again: bool) -> str:
        node = self.graph.nodes[box.node]
        fill = node_fill(self.graph, node, self.colours)
        edge = mix(fill, self.colours.ink, 0.16)
        radius = min(9.0, box.height / 2)
        rect = (
            f'<rect class="{"again" if again else "node"}" x="{n(box.x)}" y="{n(box.y)}" '
            f'width="{n(box.width)}" height="{n(box.height)}" rx="{n(radius)}" fill="{fill}" '
            f'stroke="{edge}"{_dash(node, again)}/>'
        )
        said = f"<title>{escape_xml(self._said(node))}</title>"
        return f"<g>{said}{rect}{''.join(map(self._label, box.labels))}</g>"

    def _said(self, node: Node) -> str:
        seen = node.projection or node.other
        words = " ".join(word.shown for word in seen.top[:5]) if seen else ""
        return f"{node.id}: {words}" if words else node.id

    def _label(self, label: Label) -> str:
        outside = label.role in ("title", "heading", "part")
        fill = self.colours.faint if outside and label.role != "title" else self.colours.ink
        weight = ' font-weight="600"' if label.role in BOLD else ""
        quiet = f' fill-opacity="{QUIET[label.role]}"' if label.role in QUIET else ""
        anchor = f' text-anchor="{label.anchor}"' if label.anchor != "start" else ""
        return (
            f'<text x="{n(label.x)}" y="{n(label.y)}" font-size="{SIZES[label.role]:g}" '
            f'fill="{fill}"{weight}{quiet}{anchor}>{escape_xml(label.text)}</text>'
        )

    def _legend(self) -> tuple[list[str], float]:
        out: list[str] = []
        x = 0.0
        for entry in entries(self.graph):
            for i, key in enumerate(entry.colours):
                colour = getattr(self.colours, key)
                if entry.is_node:
                    stroke = mix(colour, self.colours.ink, 0.16)
                    out.append(
                        f'<rect x="{n(x + 15 * i)}" y="-10" width="13" height="13" rx="4" '
                        f'fill="{colour}" stroke="{stroke}"/>'
                    )
                else:
                    out.append(
                        f'<rect x="{n(x + 13 * i)}" y="-6" width="13" height="5" fill="{colour}"/>'
                    )
            x += 15 * len(entry.colours) + 4
            out.append(self._label(Label(x, 1.0, "heading", entry.short)))
            x += text_width(entry.short, "heading") + 22
        return out, x

    def _group(self, x: float, y: float, parts: Iterable[str]) -> str:
        return f'<g transform="translate({n(x)} {n(y)})">\n' + "\n".join(parts) + "\n</g>"


def about(graph: FlowGraph) -> str:
    """Whose flow it is, in a line."""
    said, other = _describe(graph.run), graph.other
    said += f" · compared to {_describe(other)}: {other.prompt[-80:]}" if other else ""
    return f"{said} · {how_read(graph)}"


def how_read(graph: FlowGraph) -> str:
    """How vectors became words, and which words are listed."""
    source = graph.run.source
    words = f"only {source.filter}" if source.filter else "all words listed"
    return f"read: {source.view}, {words}"


def _describe(run: Run) -> str:
    at = run.position - run.n_source
    said, best = f"{show_model(run.model)}, position {at}", run.prediction
    return said + (f", says {best.shown} ({show_percent(best.weight)})" if best else "")


def show_prompt(run: Run, most: int = 90) -> str:
    """What was read up to the position: the text itself, or its tokens if it goes on."""
    whole = run.position == len(run.tokens) - 1
    parts = run.tokens[: run.n_source], run.tokens[run.n_source : run.position + 1]
    text = run.prompt if whole else " → ".join("".join(part) for part in parts if part)
    text = text.strip().replace("\n", "↵")
    return text if len(text) <= most else "…" + text[1 - most :]


def _dash(node: Node, again: bool) -> str:
    return ' stroke-dasharray="4 3"' if again or node.kind == NodeKind.OTHERS else ""


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape_xml(text: str) -> str:
    """Text for XML: no markup, and none of the characters that XML cannot hold."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
