"""The page in Chromium: every gesture, and that nothing leaves it. Needs a chromium on the path."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lexray.flow import Edge, FlowGraph
from lexray.flow.compare import subtract
from lexray.flow.draw.html import module, style
from lexray.flow.draw.layout import layout
from lexray.flow.draw.palette import node_fill, palette, strongest, wire_style
from lexray.flow.draw.shapes import show_share
from lexray.flow.flow import Flow
from lexray.result.format import show_percent
from tests.flow import synthetic

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs one"),
]
Opener = Callable[..., Any]
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens a graph's page; at the end, nothing was complained of and nothing was requested."""
    said: list[str] = []
    asked: list[str] = []
    pages = []

    def opened(graph: FlowGraph, state: str = "", **options: Any) -> Any:
        path = tmp_path / f"{len(pages)}.html"
        graph.to_html(path)
        page = browser.new_page(
            viewport={"width": 1400, "height": 800}, reduced_motion="reduce", **options
        )
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri() + state)
        page.wait_for_selector("[data-node]", state="attached")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []
    assert all(url.startswith(tmp_path.as_uri()) for url in asked)
    assert len(asked) == len(pages)


@pytest.fixture(scope="module")
def graph() -> FlowGraph:
    return synthetic.graph()


@pytest.fixture(scope="module")
def many() -> FlowGraph:
    return synthetic.graph((3, 4, 5), heads=2, neurons=(3, 2), embed=True)


def at(graph: FlowGraph, id: str) -> str:
    """The selector of a node."""
    return f'[data-node="{graph.nodes.index(graph[id])}"]'


def transform(page: Any) -> str:
    return str(page.get_attribute(".lf-world", "transform"))


def drawn_by_python(graph: FlowGraph, **options: Any) -> ElementTree.Element:
    return ElementTree.fromstring(graph.to_svg(**options))


SHAPES = """() => [...document.querySelectorAll(".lf-segment")].flatMap((segment) => {
  const [shift, down] = segment.getAttribute("transform").match(/-?[\\d.]+/g).map(Number);
  return [...segment.querySelectorAll("[data-node]")].map((group) => {
    const rect = group.querySelector("rect");
    const number = (name) => Number(rect.getAttribute(name));
    return {
      node: Number(group.dataset.node), x: shift + number("x"), y: down + number("y"),
      width: number("width"), height: number("height"), fill: rect.getAttribute("fill"),
      texts: [...group.querySelectorAll("text")].map((text) => [
        shift + Number(text.getAttribute("x")), down + Number(text.getAttribute("y")),
        text.textContent,
        Number(text.getAttribute("font-size")),
      ]),
    };
  });
})""".replace("\\\\", "\\")


BLOCK = """() => [...document.querySelectorAll(".lf-segment [data-node] > rect")].map((rect) => {
  const number = (name) => Number(rect.getAttribute(name));
  return { node: Number(rect.parentNode.dataset.node), x: number("x"), y: number("y"),
    width: number("width"), height: number("height") }; })"""
"""Boxes in the coordinates of their blocks."""


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
    page.click('[aria-label="show everything"]')
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


def numbers(transform: str) -> list[float]:
    return [
        float(n)
        for n in transform.replace("translate(", "").replace("scale(", "").replace(")", "").split()
    ]


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
    said = page.evaluate("document.activeElement.getAttribute('aria-label')")
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


def test_a_difference_graph(show: Opener) -> None:
    graph = synthetic.difference()
    page = show(graph)
    colours = palette("paper", False)
    for shape in page.evaluate(SHAPES):
        assert shape["fill"] == node_fill(graph, graph.nodes[shape["node"]], colours)
    page.click(at(graph, "L14.H3"))
    assert "other run" in page.locator(".lf-panel").inner_text()


def test_widths_of_a_difference_are_differences_of_shares(show: Opener) -> None:
    one = weighed()
    other = replace(one, edges=tuple(
        edge if edge.added is None
        else replace(edge, added=tuple(-0.5 * share for share in edge.added[::-1]))
        for edge in one.edges
    ))  # fmt: skip
    graph = Flow.of(subtract(one, other))
    page = show(graph, "#open=3")
    colours = palette("paper", dark=False)
    for target in graph.candidates[:2]:
        page.select_option("[aria-label='target word']", label=target.shown)
        same = graph.retarget(target.id)
        most, drawn = strongest(same), page.evaluate(WIDTHS)
        assert len({width for _, width in drawn.values()}) > 5
        for i, (stroke, width) in drawn.items():
            style = wire_style(same, graph.edges[int(i)], most, colours)
            assert stroke == style.colour
            assert float(width) == pytest.approx(style.width, abs=0.011)


def test_thousands_of_nodes_move_as_one(show: Opener) -> None:
    """A turn of the wheel touches a handful of elements, however many there are."""
    graph = synthetic.graph(range(20), listed=2)
    assert len(graph.nodes) > 2900
    page = show(graph)
    page.click("text=Open all")
    touched = page.evaluate(
        """() => { const stage = document.querySelector(".lf-stage");
        const watch = new MutationObserver(() => {});
        watch.observe(document.body, { attributes: true, childList: true, subtree: true });
        for (let i = 0; i < 20; i++) {
          const turn = { deltaY: i % 2 ? 90 : -90, clientX: 600, clientY: 300, cancelable: true };
          stage.dispatchEvent(new WheelEvent("wheel", turn)); }
        return watch.takeRecords().length; }"""
    )
    assert 1 <= touched <= 20 * 5
    at_rest = "() => document.querySelector('.lf-svg').style.transform === ''"
    page.wait_for_function(at_rest)
    assert page.locator(".lf-segment [data-node]").count() == len(graph.nodes)


def test_the_module_serves_the_widget(browser: Any, tmp_path: Path, graph: FlowGraph) -> None:
    """As anywidget calls it: the default export's render, with a model that holds the data."""
    from lexray.flow.draw.html import page_data

    (tmp_path / "data.json").write_text(json.dumps(page_data(graph)), "utf-8")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content("<div id=host></div>")
    page.add_style_tag(content=style())
    drive = """
      const set = {};
      const model = {
        get: (name) => (name === "height" ? 500 : DATA),
        set: (name, value) => { set[name] = value; },
        save_changes() {}, on() {}, off() {},
      };
      const blob = new Blob([SOURCE], { type: "text/javascript" });
      const { default: widget } = await import(URL.createObjectURL(blob));
      const stop = widget.render({ model, el: document.getElementById("host") });
      const enter = new KeyboardEvent("keydown", { key: "Enter", bubbles: true });
      document.querySelector('[data-node="4"]').dispatchEvent(enter);
      const nodes = document.querySelectorAll("[data-node]").length;
      const height = document.querySelector(".lexray-flow").offsetHeight;
      stop();
      return { nodes, height, set, left: document.querySelectorAll("[data-node]").length };
    """
    out = page.evaluate(
        f"async ([SOURCE, DATA]) => {{ {drive} }}",
        [module(), (tmp_path / "data.json").read_text("utf-8")],
    )
    page.close()
    assert errors == []
    assert out["nodes"] == len(graph.nodes)
    assert out["height"] == 500
    assert out["set"] == {"selected": graph.nodes[4].id}
    assert out["left"] == 0


def test_numbers_are_shown_as_in_python(browser: Any) -> None:
    shares = [
        0.0,
        3e-6,
        1.2e-4,
        0.0009,
        0.00123,
        0.0077,
        0.01234,
        0.0994,
        0.0996,
        0.2541,
        1.0,
        12.3,
    ]
    page = browser.new_page()
    source = module().replace("export default", "globalThis.widget =")
    source = (
        source.replace("export function", "function") + "globalThis.shown = [percent, cardShare];"
    )
    page.evaluate(f"(() => {{ {source} }})()")
    shown = page.evaluate("(all) => all.map((x) => shown.map((by) => by(x)))", shares)
    page.close()
    assert shown == [[show_percent(x), show_share(x)] for x in shares]


def weighed() -> FlowGraph:
    """A graph whose addends know what they bring to every candidate's logit."""
    graph = synthetic.graph((3, 4), heads=3, neurons=(3, 2))
    n = len(graph.candidates)
    adds = {"sum", "others", "bias", "residual_attn", "residual_ff"}
    values = {node.id for node in graph.nodes if node.kind == "value"}

    def shares(i: int, edge: Edge) -> tuple[float, ...] | None:
        if edge.kind not in adds and edge.source not in values:
            return None
        return tuple((-1) ** (i + j) * (1 + i % 7) / (1 + j) for j in range(n))

    edges = tuple(replace(edge, added=shares(i, edge)) for i, edge in enumerate(graph.edges))
    return replace(graph, edges=edges)


WIDTHS = """() => Object.fromEntries([...document.querySelectorAll("[data-edge]")].map(
  (w) => [w.dataset.edge, [w.getAttribute("stroke"), w.getAttribute("stroke-width")]]))"""


def test_widths_are_parts_of_the_logit_of_whatever_is_the_target(show: Opener) -> None:
    graph = weighed()
    page = show(graph)
    colours = palette("paper", dark=False)
    for target in (graph.candidates[0], graph.candidates[1]):
        page.select_option("[aria-label='target word']", label=target.shown)
        same = graph.retarget(target.id)
        most = strongest(same)
        for i, (stroke, width) in page.evaluate(WIDTHS).items():
            style = wire_style(same, graph.edges[int(i)], most, colours)
            assert stroke == style.colour
            assert float(width) == pytest.approx(style.width, abs=0.011)
    by_logit = page.evaluate(WIDTHS)
    page.select_option("[aria-label='what widths and colours mean']", "norm")
    plain = replace(graph, edges=tuple(replace(edge, added=None) for edge in graph.edges))
    most = strongest(plain)
    for i, (_, width) in page.evaluate(WIDTHS).items():
        style = wire_style(plain, plain.edges[int(i)], most, colours)
        assert float(width) == pytest.approx(style.width, abs=0.011)
    assert page.evaluate(WIDTHS) != by_logit
    assert "by=norm" in page.url


def test_the_prompt_shows_where_heads_look(show: Opener) -> None:
    graph = weighed()
    page = show(graph)
    chips = page.locator(".lf-chip")
    assert chips.all_text_contents() == list(graph.run.tokens)
    looked = {node.position for node in graph.nodes if node.kind == "value"}
    arcs = page.locator(".lf-arcs path").count()
    assert 0 < arcs <= len(looked)
    other = next(i for i in range(len(graph.run.tokens)) if i != graph.run.position)
    chips.nth(other).click()
    assert f"--position {other}" in page.inner_text(".lf-notice")
    chips.nth(graph.run.position).click()
    assert page.is_hidden(".lf-notice")


def test_quiet_blocks_are_folded_and_unfold(show: Opener) -> None:
    graph = synthetic.graph(tuple(range(20)), heads=1, neurons=(1, 1))
    page = show(graph)
    picture = layout(graph)
    assert len(picture.quiet) == 12
    drawn = {box.node for piece in picture.place([]) for box in piece.form.boxes}
    seen = page.evaluate(
        "[...document.querySelectorAll('[data-node]')].map((g) => +g.dataset.node)"
    )
    assert set(seen) == drawn
    folds = page.locator("[data-fold]")
    before, count = len(seen), folds.count()
    assert count == len(picture.folds([]))
    folds.first.click()
    assert page.locator("[data-fold]").count() == count - 1
    assert page.locator("[data-node]").count() > before
    assert "loud=" in page.url


PLACED = """() => [...document.querySelectorAll(".lf-segment, .lf-again")]
  .filter((g) => g.childNodes.length)
  .map((g) => { const [x, y] = g.getAttribute("transform").match(/-?[\\d.]+/g).map(Number);
    return [g.classList.contains("lf-again"), x, y]; })"""


@pytest.mark.parametrize("width", [390, 1440, 3840])
def test_all_blocks_open_can_be_read(show: Opener, width: int) -> None:
    """Rows as in Python, as wide as the window at a scale at which words can be read; every row but
    the first begins with the station that ended the one above, which answers like the other."""
    graph = synthetic.graph(tuple(range(9)), heads=3, neurons=(5, 3))
    page = show(graph)
    page.set_viewport_size({"width": width, "height": 1000})
    page.click("text=Open all")
    k = float(transform(page).split("scale(")[1].rstrip(")"))
    picture = layout(graph)
    widest = max(s.open.width for s in picture.segments if s.open is not None)
    stage = page.locator(".lf-stage").bounding_box()
    wide = stage["width"] / 0.75 - 60
    assert k >= 0.99 * min(0.75, stage["width"] / (widest + 2 * 98 + 60))
    pieces = picture.place(picture.openable, wide)
    found = sorted(map(tuple, page.evaluate(PLACED)))
    for one, two in zip(found, sorted((p.again, p.x, p.y) for p in pieces), strict=True):
        assert one == pytest.approx(two, abs=0.11)
    again = page.locator(".lf-again [data-node]")
    assert again.count() == sum(p.again for p in pieces) > 0
    index = int(again.first.get_attribute("data-node"))
    fills = page.eval_on_selector_all(
        f'[data-node="{index}"] > rect', "all => all.map((r) => r.getAttribute('fill'))"
    )
    assert len(fills) == 2
    assert len(set(fills)) == 1
    page.evaluate(f"document.querySelector('.lf-again [data-node=\"{index}\"]').focus()")
    page.keyboard.press("Enter")
    assert page.locator(f'[data-node="{index}"].lf-selected').count() == 2


PANELS = """() => [...document.querySelectorAll(".lf-ground")].map((r) =>
  ["x", "y", "width", "height"].map((n) => Number(r.getAttribute(n))))"""


@pytest.mark.parametrize("shape", ["sequential", "parallel"])
def test_panels_hold_what_a_filter_leaves(show: Opener, shape: str) -> None:
    """Side by side they begin and end alike, one below the other they do not touch; every box that
    is left stands in one."""
    graph = synthetic.graph((3,), shape, heads=5, neurons=(12, 6))
    page = show(graph)
    before = page.evaluate(PANELS)
    page.click("text=Filter")
    page.uncheck('.lf-kinds input[value="ff_key"]')
    page.uncheck('.lf-kinds input[value="o_neuron"]')
    page.uncheck('.lf-kinds input[value="key"]')
    page.evaluate(
        """() => { const r = document.querySelector("[aria-label='least score']");
        r.value = 60; r.dispatchEvent(new Event("input")); }"""
    )
    panels = page.evaluate(PANELS)
    assert len(panels) == len(before) == 2
    assert panels != before
    (x, y, wide, high), (x2, y2, _, high2) = panels
    if shape == "sequential":
        assert (y, high) == pytest.approx((y2, high2))
        assert x + wide <= x2
    else:
        assert y + high <= y2 or y2 + high2 <= y
    stream = {i for i, node in enumerate(graph.nodes) if node.kind in ("residual", "mid")}
    inner = [s for s in page.evaluate(BLOCK) if s["node"] not in stream]
    assert len(inner) > 6
    for s in inner:
        assert any(
            px <= s["x"] and s["x"] + s["width"] <= px + pw
            and py <= s["y"] and s["y"] + s["height"] <= py + ph
            for px, py, pw, ph in panels
        )  # fmt: skip


def test_pins_are_saved_with_the_graph(show: Opener, tmp_path: Path) -> None:
    graph = weighed()
    page = show(graph, "#open=3")
    page.locator(at(graph, "L3.H0")).click(force=True)
    page.fill(".lf-pin input", "mine")
    page.click(".lf-pin button")
    assert page.locator(".lf-pinned").count() == 1
    with page.expect_download() as download:
        page.click("[aria-label='save the graph and its pins as JSON']")
    path = tmp_path / "saved.json"
    download.value.save_as(path)
    saved = Flow.from_json(path.read_text())
    assert [(pin.name, pin.nodes) for pin in saved.pins] == [("mine", ("L3.H0",))]
    assert "mine" in saved.to_svg(paper=True)


def test_the_panel_pushes_the_picture_aside(show: Opener, graph: FlowGraph) -> None:
    page = show(graph)
    page.locator("[data-node]").first.click(force=True)
    stage, panel = (page.locator(name).bounding_box() for name in (".lf-stage", ".lf-panel"))
    assert stage["x"] + stage["width"] <= panel["x"] + 1


def test_filters_lay_the_picture_out_again(show: Opener, graph: FlowGraph) -> None:
    """Without the rows of W_O the block is narrower, nothing overlaps, lines end at their boxes."""
    page = show(graph)
    width = "document.querySelector('.lf-stream').getAttribute('width')"
    before = float(page.evaluate(width))
    shapes = page.evaluate(SHAPES)
    page.click("text=Filter")
    page.uncheck('.lf-kinds input[value="o_neuron"]')
    page.uncheck('.lf-kinds input[value="query"]')
    page.uncheck('.lf-kinds input[value="key"]')
    assert float(page.evaluate(width)) < before - 250
    boxes = page.evaluate(SHAPES)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            below = a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
            assert apart or below, (a["node"], b["node"])
    for id in ("o_neuron", "others"):
        page.set_checked(f'.lf-kinds input[value="{id}"]', id == "o_neuron")
    page.check('.lf-kinds input[value="others"]')
    page.check('.lf-kinds input[value="query"]')
    page.check('.lf-kinds input[value="key"]')
    assert page.evaluate(SHAPES) == shapes, "as it was"
