"""The page in Chromium: every gesture, and that nothing leaves it. Needs a chromium on the path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lexray.flow import FlowGraph
from lexray.flow.draw.layout import layout
from lexray.flow.draw.palette import node_fill, palette, strongest, wire_style
from tests.flow import synthetic
from tests.flow.draw.chromium import (
    NAMESPACE,
    NEEDS_CHROMIUM,
    SHAPES,
    Opener,
    at,
    drawn_by_python,
    numbers,
    transform,
)

pytestmark = NEEDS_CHROMIUM


@pytest.mark.parametrize("state", ["", "#open=", "#open=3.5"])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_draws_what_the_svg_draws(
    show: Opener, many: FlowGraph, state: str, dark: bool
) -> None:
    page = show(many, state, color_scheme="dark" if dark else "light")
    layers = [3, 5] if state.endswith("3.5") else []
    picture = layout(many)
    pieces = picture.place(layers, 1400 / 0.75 - 60)
    expected = {box.node: (p.x, p.y, box) for p in pieces for box in p.form.boxes if not p.again}
    assert any(piece.y > 0 for piece in pieces) == (len(layers) == 2)
    shapes = page.evaluate(SHAPES)
    assert {shape["node"] for shape in shapes} == set(expected)
    colours = palette("paper", dark)
    for shape in shapes:
        x, y, box = expected[shape["node"]]
        sides = [shape[name] for name in ("x", "y", "width", "height")]
        assert sides == pytest.approx([x + box.x, y + box.y, box.width, box.height], abs=0.11)
        assert [text[2] for text in shape["texts"]] == [label.text for label in box.labels]
        for text, label in zip(shape["texts"], box.labels, strict=True):
            assert text[:2] == pytest.approx([x + label.x, y + label.y], abs=0.11)
        assert shape["fill"] == node_fill(many, many.nodes[box.node], colours)
    svg = drawn_by_python(many, open_layers=layers, dark=dark)
    paths = svg.findall(f".//{NAMESPACE}path[@class='wire']")
    wires = page.eval_on_selector_all(
        ".lf-wire",
        "all => all.map((w) => ['d', 'stroke', 'stroke-width'].map((n) => w.getAttribute(n)))",
    )
    assert sorted(map(tuple, wires)) == sorted(
        (path.attrib["d"], path.attrib["stroke"], path.attrib["stroke-width"]) for path in paths
    )


def test_text_fits_its_box(show: Opener, graph: FlowGraph) -> None:
    """With the fonts that are really there, text is as wide as reckoned, or narrower."""
    outside = show(graph).evaluate(
        """() => [...document.querySelectorAll("[data-node]")].filter((group) => {
          const box = group.querySelector("rect").getBBox();
          return [...group.querySelectorAll("text")].some((text) => {
            const at = text.getBBox();
            const plain = /^[\\x20-\\x7e·…]+$/.test(text.textContent);
            return plain && (at.x < box.x || at.x + at.width > box.x + box.width);
          });
        }).map((group) => group.textContent)"""
    )
    assert outside == []


def test_a_word_without_end_stays_in_a_phone(show: Opener) -> None:
    """In the caption, which may name any token of the prompt, and in the page as a whole."""
    graph = synthetic.speaking(0)
    tokens = tuple(f"{'x' * 150}{i}" for i in range(len(graph.run.tokens)))
    page = show(replace(graph, run=replace(graph.run, tokens=tokens)))
    page.set_viewport_size({"width": 390, "height": 844})
    assert "xxx" in page.locator(".lf-said").inner_text()
    wide = "(e) => [e.scrollWidth, e.clientWidth]"
    for part in (".lf-said", "html"):
        needed, there = page.eval_on_selector(part, wide)
        assert needed <= there <= 390


def test_hover_shows_the_reading_and_lights_the_paths(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.hover(at(graph, "L14.H3"))
    tip = page.locator(".lf-tip")
    assert tip.is_visible()
    node = graph["L14.H3"]
    assert node.projection is not None
    words = tip.locator(".lf-bar-word").all_text_contents()
    assert words == [word.shown for word in node.projection.top]
    text = tip.inner_text()
    assert "L14H3" in text
    assert f"rank {node.projection.places[0].rank:,}".replace(",", "\u2009") in text
    lit = page.locator(".lf-box.lf-lit").evaluate_all(
        "all => all.map((g) => Number(g.dataset.node))"
    )
    ids = {graph.nodes[i].id for i in lit}
    assert {"L14.H3", "L14.H3.query", "L14.concat", "L14.attn_out", "L14.mid", "L14.in"} <= ids
    assert not {"L14.H2", "L14.ff_out"} & ids
    page.mouse.move(700, 790)
    assert not tip.is_visible()
    assert page.locator(".lf-lit").count() == 0


def test_hover_on_an_edge_shows_its_score(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    index = next(i for i, e in enumerate(graph.edges) if e.kind == "residual_attn")
    box = page.locator(f'[data-edge="{index}"]').bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    text = page.locator(".lf-tip").inner_text()
    assert "skip past attention" in text
    assert "L14.in → L14.mid" in text


def test_click_pins_the_panel(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.click(at(graph, "L14.O3"))
    panel = page.locator(".lf-panel")
    node = graph["L14.O3"]
    assert node.static is not None
    assert node.projection is not None
    words = panel.locator(".lf-bar-word").all_text_contents()
    both = (node.projection, node.static)
    assert words == [w.shown for seen in both for w in (*seen.top, *seen.bottom)]
    for word in graph.candidates:
        assert word.shown in panel.inner_text()
    panel.locator(".lf-link").first.click()
    assert "L14.concat" in panel.inner_text()
    page.keyboard.press("Escape")
    assert not panel.is_visible()


def test_search_finds_words_in_all_readings(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.keyboard.press("/")
    page.locator(".lf-stage").focus()
    page.keyboard.press("/")
    page.keyboard.type("nagasaki")
    expected = {
        i
        for i, node in enumerate(graph.nodes)
        if node.projection and "·Nagasaki" in [word.shown for word in node.projection.top]
    }
    found = page.locator(".lf-found").evaluate_all("all => all.map((g) => Number(g.dataset.node))")
    assert set(found) == expected
    assert page.locator(".lf-found-count").inner_text() == str(len(expected))
    page.keyboard.press("Enter")
    assert page.locator(".lf-selected").count() == 1
    page.fill(".lf-search input", "")
    assert page.locator(".lf-found").count() == 0


def test_search_opens_the_block_of_what_it_found(show: Opener, many: FlowGraph) -> None:
    page = show(many, "#find=Tokyo")
    page.locator(".lf-search input").focus()
    for _ in range(int(page.locator(".lf-found-count").inner_text())):
        page.keyboard.press("Enter")
        assert page.locator(".lf-selected").count() == 1


def test_filters(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.click("text=Filter")

    def visible(kind: str) -> int:
        chosen = [i for i, node in enumerate(graph.nodes) if node.kind == kind]
        return sum(page.locator(f'[data-node="{i}"]').is_visible() for i in chosen)

    assert visible("o_neuron") == 25
    page.uncheck('.lf-kinds input[value="o_neuron"]')
    assert visible("o_neuron") == 0
    page.check('.lf-kinds input[value="o_neuron"]')
    page.select_option('[data-filter="head"]', "3")
    assert (visible("head"), visible("value")) == (1, 2)
    page.select_option('[data-filter="head"]', "")
    page.select_option('[data-filter="sign"]', "-1")
    assert (visible("o_neuron"), visible("ff_value"), visible("head")) == (7, 7, 10)
    page.select_option('[data-filter="sign"]', "")
    page.locator('input[aria-label="least score"]').fill("50")
    most = strongest(graph)
    expected = sum(edge.score >= 0.5 * most[edge.kind, False] for edge in graph.edges)
    wires = page.locator(".lf-wire:not(.lf-gone)").count()
    assert 0 < wires <= expected < len(graph.edges)


def test_zoom_and_pan(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    first = transform(page)
    stage = page.locator(".lf-stage").bounding_box()
    middle = stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2
    page.mouse.move(*middle)
    page.mouse.wheel(0, -400)
    page.wait_for_function(
        "before => document.querySelector('.lf-world').getAttribute('transform') !== before",
        arg=first,
    )
    page.click('[title="show everything"]')
    assert transform(page) == first
    page.click('[aria-label="zoom in"]')
    assert transform(page) != first
    page.locator(".lf-stage").focus()
    page.keyboard.press("0")
    assert transform(page) == first
    for key, back in (("ArrowLeft", "ArrowRight"), ("ArrowUp", "ArrowDown"), ("+", "-")):
        page.keyboard.press(key)
        assert transform(page) != first
        page.keyboard.press(back)
        assert numbers(transform(page)) == pytest.approx(numbers(first), abs=0.02)
    page.mouse.move(stage["x"] + 20, stage["y"] + stage["height"] - 20)
    page.mouse.down()
    page.mouse.move(stage["x"] + 120, stage["y"] + stage["height"] - 60)
    page.mouse.up()
    moved = [a - b for a, b in zip(numbers(transform(page)), numbers(first), strict=True)]
    assert moved == pytest.approx([100, -40, 0], abs=0.05)


def test_another_target_recolours_without_rerunning(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.select_option('select[aria-label="target word"]', label="·London")
    london = graph.retarget("·London")
    colours = palette("paper", False)
    for shape in page.evaluate(SHAPES):
        assert shape["fill"] == node_fill(london, london.nodes[shape["node"]], colours)
    page.click(at(graph, "L14.H3"))
    place = london.place(london["L14.H3"])
    assert place is not None
    assert f"{place.rank:,}".replace(",", "\u2009") in page.locator(".lf-panel dl").inner_text()


def test_blocks_open_and_close(show: Opener, many: FlowGraph) -> None:
    page = show(many)
    closed = page.locator("[data-node]").count()
    assert page.locator(at(many, "L4.H1")).count() == 0
    page.click('[data-layer="4"]')
    assert page.locator(at(many, "L4.H1")).is_visible()
    assert page.locator(at(many, "L3.H1")).count() == 0
    page.locator('[data-layer="4"]').focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-node]").count() == closed
    page.click("text=Open all")
    assert page.locator(".lf-segment [data-node]").count() == len(many.nodes)
    page.click("text=Close all")
    assert page.locator("[data-node]").count() == closed


def test_light_dark_and_palettes(show: Opener, graph: FlowGraph) -> None:
    page = show(graph, color_scheme="dark")

    def colours() -> tuple[str, str]:
        wire = page.locator('[data-edge="0"]').get_attribute("stroke")
        return page.locator(".lexray-flow").get_attribute("data-theme"), wire

    def expected(name: str, dark: bool) -> str:
        return wire_style(graph, graph.edges[0], strongest(graph), palette(name, dark)).colour

    assert colours() == ("dark", expected("paper", True))
    page.click('[aria-label="light or dark"]')
    assert colours() == ("light", expected("paper", False))
    page.select_option('select[aria-label="palette"]', "colour-blind")
    assert colours() == ("light", expected("colour-blind", False))


def test_the_address_keeps_the_state(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.select_option('select[aria-label="target word"]', label="·Osaka")
    page.click('[aria-label="light or dark"]')
    page.fill(".lf-search input", "kyoto")
    page.click(at(graph, "L14.H3"))
    shapes, address = page.evaluate(SHAPES), page.url
    again = show(graph, "#" + address.partition("#")[2])
    assert again.evaluate(SHAPES) == shapes
    assert "L14H3" in again.locator(".lf-panel").inner_text()
    assert again.locator(".lf-found").count() > 0
    assert again.locator(".lexray-flow").get_attribute("data-theme") == "dark"


def test_nonsense_in_the_address_is_ignored(show: Opener, graph: FlowGraph) -> None:
    page = show(
        graph,
        "#open=x.99&target=nobody&theme=pink&palette=__proto__&node=no&least=x&head=&hide=a.b",
    )
    assert page.locator("[data-node]").count() == 4  # the block is closed, as no layer x is open


def test_keyboard_reaches_nodes(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.locator(".lf-stage").focus()
    for _ in range(3):
        page.keyboard.press("Tab")
    said = page.evaluate("document.activeElement.getAttribute('aria-description')")
    assert "L14." in said
    assert page.locator(".lf-lit").count() > 0
    page.keyboard.press("Enter")
    assert page.locator(".lf-panel").is_visible()


def test_the_legend_explains_every_kind_of_line(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.click("text=Legend")
    text = page.locator(".lf-legend").inner_text()
    for word in ("residual stream", "attention", "neuron", "norm", "bias", "Wider", "Green"):
        assert word in text
    page.keyboard.press("Escape")
    assert not page.locator(".lf-legend").is_visible()


def test_tokens_with_markup_are_shown_as_they_are(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    dialogs: list[Any] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog))
    page.fill(".lf-search input", "<script>")
    page.keyboard.press("Enter")
    assert "<script>alert(1)</script>" in page.locator(".lf-panel").inner_text()
    assert page.locator("script").count() == 2
    assert not dialogs


def test_a_click_on_the_canvas_draws_no_ring(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    stage = page.locator(".lf-stage").bounding_box()
    page.mouse.click(stage["x"] + 30, stage["y"] + stage["height"] - 10)
    rings = page.evaluate(
        """() => [document.activeElement, document.querySelector(".lf-svg")]
          .map((element) => getComputedStyle(element).outlineStyle)"""
    )
    assert rings == ["none", "none"]
    page.keyboard.press("Tab")
    assert "data-node" in page.evaluate("document.activeElement.outerHTML.split('>')[0]")


@pytest.mark.parametrize("name", ["Filter", "Legend"])
def test_escape_closes_and_releases_the_button(show: Opener, graph: FlowGraph, name: str) -> None:
    page = show(graph)
    button = page.get_by_text(name, exact=True)
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert button.get_attribute("aria-expanded") == "false"
    assert not page.locator(f".lf-{name.lower()}{'s' * (name == 'Filter')}").is_visible()
