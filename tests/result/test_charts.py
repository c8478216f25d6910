"""Scales, panels, grids and text: that numbers end up where they belong."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexray.result.charts.axes import Axis, AxisScale, scale_of, ticks
from lexray.result.charts.cells import Cells, Square
from lexray.result.charts.cloud import choose_places, label_boxes, overlap
from lexray.result.charts.panel import DrawnPanel
from lexray.result.charts.panels import Panels
from lexray.result.charts.pen import Mix, Pen, blend
from lexray.result.charts.series import Curve, Dots, Heat, Level, Panel, StandingBars
from lexray.result.letters import fit, measure, wrap
from lexray.result.theme import DARK, LIGHT

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=20), st.booleans())
def test_a_scale_holds_all_values_and_its_ticks(values: list[float], zero: bool) -> None:
    axis = Axis(zero=zero)
    scale = scale_of(axis, values)
    assert all(-1e-9 <= scale.at(value) <= 1 + 1e-9 for value in values)
    marks = ticks(scale, axis, 6)
    assert len(marks) <= 8
    assert all(scale.low - 1e-6 <= at <= scale.high + 1e-6 * abs(scale.high) for at, _ in marks)
    places = [at for at, _ in marks]
    assert places == sorted(places)


@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=20))
def test_a_log_scale(values: list[float]) -> None:
    scale = scale_of(Axis(log=True), values)
    for value in values:
        assert -1e-6 <= scale.at(value) <= 1 + 1e-6
    assert ticks(scale, Axis(log=True), 6)


def test_ticks_are_round() -> None:
    assert [text for _, text in ticks(AxisScale(0, 1), Axis(), 5)] == [
        "0",
        "0.2",
        "0.4",
        "0.6",
        "0.8",
        "1.0",
    ]
    assert [text for _, text in ticks(AxisScale(0.15, 3, True), Axis(log=True), 6)] == [
        "0.2", "0.5", "1", "2"
    ]  # fmt: skip
    assert [text for _, text in ticks(AxisScale(0.5, 2e3, True), Axis(log=True), 6)] == [
        "1", "10", "100", "1000"
    ]  # fmt: skip
    whole = ticks(AxisScale(-0.6, 29.6), Axis(whole=True), 12)
    assert [at for at, _ in whole] == [0, 5, 10, 15, 20, 25]
    assert [text for _, text in ticks(AxisScale(0, 0.1), Axis(percent=True), 5)][1] == "2 %"


def heights(svg: str) -> list[tuple[float, float]]:
    """The circles of a chart: how far right, how far down."""
    return [
        (float(c.get("cx", "")), float(c.get("cy", "")))
        for c in ET.fromstring(svg).iter(f"{SVG}circle")
    ]


def test_points_of_a_line_are_where_the_scale_says() -> None:
    y = [0.0, 1.0, None, 4.0]
    panel = Panel("", (Curve(range(4), y, "a", "positive"),), y=Axis(zero=True))
    chart = Panels("", "", (panel,), 1)
    drawn = DrawnPanel.of(panel, 860.0)
    expected = [(drawn.across(x), drawn.level(v)) for x, v in enumerate(y) if v is not None]
    for found, wanted in zip(heights(chart.to_svg()), expected, strict=True):
        assert found == pytest.approx(wanted, abs=0.06)
    assert drawn.level(0.0) > drawn.level(1.0) > drawn.level(4.0), "up is more"


def test_columns_stand_on_zero_and_are_as_high_as_their_values() -> None:
    columns = StandingBars([0, 1], [2.0, -1.0], "a", "positive")
    other = StandingBars([0, 1], [1.0, math.nan], "b", "negative")
    svg = Panels("", "", (Panel("", (columns, other)),), 1).to_svg()
    rects = [r for r in ET.fromstring(svg).iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    sizes = [float(r.get("height", "")) for r in rects]
    assert len(sizes) == 3, "what is not a number is not drawn"
    assert sizes[0] == pytest.approx(2 * sizes[1], abs=0.2)
    tops = [float(r.get("y", "")) for r in rects]
    assert tops[0] + sizes[0] == pytest.approx(tops[1], abs=0.2), "both on zero"
    lefts = [float(r.get("x", "")) + float(r.get("width", "")) for r in rects]
    assert lefts[0] == pytest.approx(float(rects[2].get("x", "")), abs=0.2), "side by side"


def test_a_panel_of_everything_in_every_form() -> None:
    panels = (
        Panel("lines", (Curve([1, 10], [1, 2], "a", "third", "dash", spread=[(0, 2), (1, 3)]),
                        Level(1.5, "level")), Axis("x", log=True)),
        Panel("dots", (Dots([1, 2], [3.0, None], "d", ["fourth"], ["<b>", "c"], named=True),)),
        Panel("heat", (Heat([[0.0, 1.0], [None, 0.5]], [(0, 1)]),), y=Axis("i", down=True)),
    )  # fmt: skip
    chart = Panels("title", "note", panels)
    for width in (900.0, 360.0):
        root = ET.fromstring(chart.to_svg(width=width))
        assert float(root.get("width", "")) == width
        assert "nan" not in ET.tostring(root, encoding="unicode")
    assert [name for name, _ in chart.legend()] == ["a", "level"]
    assert "<b>" not in chart.to_html()
    assert {trace.type for trace in chart.to_plotly().data} == {"scatter", "heatmap"}
    narrow, wide = (len(chart.to_svg(width=w)) for w in (360.0, 900.0))
    assert narrow > 0 < wide


def test_cells_are_as_deep_as_their_strength() -> None:
    squares = ((Square("a", 0.0, "none"), Square("b", 1.0, "all")),)
    svg = Cells("t", "", (("0", "x"), ("1", "y")), ("L0",), squares, "rank").to_svg()
    fills = {
        r.findtext(f"{SVG}title"): r.get("fill") for r in ET.fromstring(svg).iter(f"{SVG}rect")
    }
    assert fills["none"] == LIGHT.cold
    assert fills["all"] == LIGHT.hot


def test_colours_of_a_page_follow_its_theme() -> None:
    assert Pen(None).colour("ink") == "var(--lx-ink)"
    assert Pen(None).colour(Mix("cold", "hot", 0.25)).startswith("color-mix(in srgb, var(--lx-hot)")
    assert Pen(DARK).colour("ink") == DARK.ink
    assert Pen(LIGHT).colour("#123456") == "#123456"
    assert blend("#000000", "#ffffff", 0.5) == "#808080"


@given(st.text(max_size=40), st.floats(5, 200))
def test_text_that_was_cut_fits(text: str, room: float) -> None:
    assert measure(fit(text, 12, room), 12) <= room
    assert all(measure(line, 12) <= room for line in wrap(text, 12, room))


def test_labels_keep_off_points_and_one_another() -> None:
    at = [(50.0, 50.0), (60.0, 50.0), (50.0, 62.0)]
    boxes = [label_boxes(x, y, "word") for x, y in at]
    chosen = choose_places(at, boxes, (200.0, 200.0))
    taken = [box[place] for box, place in zip(boxes, chosen, strict=True)]
    assert all(overlap(a, b) == 0 for i, a in enumerate(taken) for b in taken[i + 1 :])
