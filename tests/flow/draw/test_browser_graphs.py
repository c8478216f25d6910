"""The page in Chromium with graphs of many kinds: differences, thousands of nodes, quiet blocks."""

from __future__ import annotations

import json
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
from tests.flow.draw.chromium import (
    BLOCK,
    NEEDS_CHROMIUM,
    SHAPES,
    Opener,
    at,
    transform,
)

pytestmark = NEEDS_CHROMIUM


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
        page.click("[title='save the graph and its pins as JSON']")
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
