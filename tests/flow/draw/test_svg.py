"""The static picture: what is drawn, in which colours, and that nothing in it can break out."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from lexray.errors import LexrayError
from lexray.flow import EdgeKind, FlowGraph, NodeKind
from lexray.flow.draw.palette import (
    PALETTES,
    mix,
    node_fill,
    palette,
    standing,
    strongest,
    wire_style,
)
from tests.flow import synthetic

NAMESPACE = "{http://www.w3.org/2000/svg}"
LIGHT = palette("paper", dark=False)


@pytest.fixture(scope="module")
def graph() -> FlowGraph:
    return synthetic.graph((14, 15))


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_everything_is_drawn(graph: FlowGraph) -> None:
    root = parsed(graph.to_svg())
    assert len(root.findall(f".//{NAMESPACE}rect[@class='node']")) == len(graph.nodes)
    assert len(root.findall(f".//{NAMESPACE}path[@class='wire']")) == len(graph.edges)


def test_closed_blocks_show_what_they_add(graph: FlowGraph) -> None:
    root = parsed(graph.to_svg(open_layers=[]))
    assert len(root.findall(f".//{NAMESPACE}rect[@class='node']")) == 3 + 2 * 2
    texts = [text.text for text in root.iter(f"{NAMESPACE}text")]
    assert texts.count("attention") == texts.count("feed-fwd") == 2


def test_texts_are_texts(graph: FlowGraph) -> None:
    """Vocabularies contain markup; it is shown, never obeyed."""
    root = parsed(graph.to_svg())
    assert {element.tag.removeprefix(NAMESPACE) for element in root.iter()} == {
        "svg", "title", "desc", "rect", "g", "text", "path",
    }  # fmt: skip
    assert any(text.text == "&amp;" for text in root.iter(f"{NAMESPACE}text"))
    evil = replace(graph, run=replace(graph.run, prompt="\x00<b>\ud800&\x1b"))
    assert "<b>" not in evil.to_svg()
    parsed(evil.to_svg())


@pytest.mark.parametrize("name", PALETTES)
@pytest.mark.parametrize("dark", [False, True])
def test_palettes(graph: FlowGraph, name: str, dark: bool) -> None:
    colours = palette(name, dark)
    svg = graph.to_svg(dark=dark, palette=name)
    assert f'fill="{colours.paper}"' in svg
    assert colours.residual_attn in svg
    for fill in (colours.good, colours.neutral, colours.bad, colours.bias):
        assert contrast(fill, colours.ink) > 4.5
    assert contrast(colours.paper, colours.faint) > 4.5


def contrast(a: str, b: str) -> float:
    """The ratio that WCAG defines."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_an_unknown_palette_is_refused(graph: FlowGraph) -> None:
    with pytest.raises(LexrayError, match="colour-blind"):
        graph.to_svg(palette="sepia")


def test_ranks_from_top_to_bottom() -> None:
    size = 50257
    values = [standing(rank, size) for rank in (1, 2, 11, 1001, 25001, 26001, 49001, 50256, 50257)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert values[-1] == -1.0
    assert abs(standing(size // 2, size)) < 0.01
    assert standing(1, 1) == 1.0


def test_colours_mix() -> None:
    assert mix("#000000", "#ffffff", 0.0) == "#000000"
    assert mix("#000000", "#ffffff", 1.0) == mix("#000000", "#ffffff", 7.0) == "#ffffff"
    assert mix("#000000", "#ff8000", 0.5) == "#804000"
    assert mix("#102030", "#ffffff", math.nan) == "#102030"


def test_nodes_are_coloured_by_the_target(graph: FlowGraph) -> None:
    for node in graph.nodes:
        assert node.projection is not None
        fill = node_fill(graph, node, LIGHT)
        if node.kind in (NodeKind.ATTN_BIAS, NodeKind.FF_BIAS):
            assert fill == LIGHT.bias
            continue
        rank = node.projection.places[0].rank
        red, green = int(fill[1:3], 16), int(fill[3:5], 16)
        if rank < 100:
            assert green > red
        elif rank > graph.d_vocab - 100:
            assert red > green
    london = graph.retarget("·London")
    assert [node_fill(graph, n, LIGHT) for n in graph.nodes] != [
        node_fill(london, n, LIGHT) for n in graph.nodes
    ]


def test_widths_are_in_proportion_within_a_kind(graph: FlowGraph) -> None:
    most = strongest(graph)
    for kind in (EdgeKind.SUM, EdgeKind.ATTENTION, EdgeKind.ACTIVATION):
        edges = sorted((e for e in graph.edges if e.kind == kind), key=lambda e: -e.score)
        first, second = (wire_style(graph, edge, most, LIGHT) for edge in edges[:2])
        assert second.width / first.width == pytest.approx(edges[1].score / edges[0].score)


def test_edges_are_coloured_by_what_they_do(graph: FlowGraph) -> None:
    most = strongest(graph)
    for edge in graph.edges:
        colour = wire_style(graph, edge, most, LIGHT).colour
        if edge.kind == EdgeKind.ACTIVATION:
            assert colour == (LIGHT.positive if edge.sign > 0 else LIGHT.negative)
    summed = next(e for e in graph.edges if e.kind == EdgeKind.SUM)
    sure, unsure = (
        wire_style(graph, replace(summed, entropy=entropy), most, LIGHT).colour
        for entropy in (0.1, 10.0)
    )
    assert int(sure[1:3], 16) < int(unsure[1:3], 16)


@pytest.mark.slow
def test_a_difference_is_coloured_by_change() -> None:
    graph = synthetic.difference()
    same = replace(
        graph,
        nodes=tuple(replace(node, other=node.projection) for node in graph.nodes),
        edges=tuple(replace(e, other_score=e.sign * e.score) for e in graph.edges),
    )
    fills = {node_fill(same, n, LIGHT) for n in same.nodes if "bias" not in n.kind}
    assert fills == {LIGHT.neutral}
    assert len({node_fill(graph, node, LIGHT) for node in graph.nodes}) > 20
    assert "compared to" in graph.to_svg()


def test_png_without_a_browser(graph: FlowGraph, tmp_path: Path) -> None:
    path = graph.to_png(tmp_path / "flow.png", open_layers=[], scale=1.0)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    root = parsed(graph.to_svg(open_layers=[]))
    size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert size == (math.ceil(float(root.attrib["width"])), math.ceil(float(root.attrib["height"])))
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_cannot_be_written(graph: FlowGraph, tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="cannot write"):
        graph.to_svg(tmp_path / "nowhere" / "flow.svg")
