"""Charts: what they draw, that tokens stay literal, that pages need no network, all their forms."""

from __future__ import annotations

import html
import re
import sys
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pypdfium2
import pytest
import torch

from lexray import filters, plots
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.charts.chart import Chart
from lexray.result.pairs import Pair, Pairs
from lexray.result.readings import Reading, Scored, Source, Token
from lexray.result.theme import DARK, LIGHT
from lexray.view import View
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

HOSTILE = ["<b>bold</b>", "<script>alert(1)</script>", "&lt;", "$x$", '<a href="x">', "<br>"]
SVG = "{http://www.w3.org/2000/svg}"


@cache
def model() -> Model:
    return worded("llama")


def made(tokens: list[str], scores: list[float] | None = None) -> Reading:
    scores = [1.0 / (i + 1) for i in range(len(tokens))] if scores is None else scores
    top = tuple(
        Scored(Token(i, t, t), s) for i, (t, s) in enumerate(zip(tokens, scores, strict=True))
    )
    return Reading(Source("<i>m</i>", None, "L0N0.value", View()), "value", top, top, 0.0)


def made_pairs(reading: Reading) -> Pairs:
    tokens = [scored.token for scored in reading.top]
    pairs = tuple(Pair(1.0, a, b) for a in tokens for b in tokens)
    return Pairs(reading.source, "VO", pairs, "largest", 0.0, 0.0)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def tags(figure: go.Figure) -> set[str]:
    """Everything in the figure that plotly would take for a tag."""
    return set(re.findall(r"<[^>]*>", str(figure.to_dict()))) - {"<extra>", "</extra>"}


def unescaped(labels: Any) -> list[str]:
    return [html.unescape(label).replace("\xa0", "") for label in labels]


def test_bars_show_both_ends() -> None:
    reading = model()["L0N3.value"].top(8)
    chart = reading.plot()
    top, bottom = chart.lists
    assert [bar.total for bar in top.bars] == [s.score for s in reading.top]
    assert [bar.total for bar in bottom.bars] == [s.score for s in reading.bottom]
    drawn = texts(chart.to_svg(width=2000))
    assert all(token in drawn for token in reading.tokens)
    figure = chart.to_plotly()
    assert [list(trace.x) for trace in figure.data] == [
        [s.score for s in end] for end in (reading.top, reading.bottom)
    ]
    assert unescaped(figure.layout.yaxis.ticktext) == reading.tokens
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "the best is above"


def test_bars_are_as_long_as_their_scores() -> None:
    chart = made(["a", "b", "c"], [3.0, 1.5, -0.75]).plot()
    bars = [r for r in ET.fromstring(chart.to_svg()).iter(f"{SVG}rect") if r.get("rx") == "2"]
    widths = [float(bar.get("width", "")) for bar in bars[:3]]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[0] == pytest.approx(4 * widths[2], abs=0.2)
    left = [float(bar.get("x", "")) for bar in bars[:3]]
    assert left[0] == left[1] == pytest.approx(left[2] + widths[2], abs=0.11), "from zero"


@pytest.mark.slow
def test_tokens_appear_literally() -> None:
    reading = made(HOSTILE)
    ours = {"<b>", "</b>"}  # around plotly's title
    for chart in (reading.plot(), plots.token_map(reading, model()), made_pairs(reading).plot()):
        assert set(HOSTILE) <= set(texts(chart.to_svg(width=2000)))
        assert "<i>m" not in chart.to_html()
        assert "<script" not in chart.to_html()
        figure = chart.to_plotly()
        assert tags(figure) <= ours
        assert "$" not in str(figure.to_dict()["data"])
        assert "L0N0" in figure.layout.title.text
        assert "&lt;i&gt;m" in figure.layout.title.subtitle.text


def test_the_map_is_the_plane_of_the_centred_embeddings() -> None:
    reading = model()["L0N3.value"].top(12)
    points = reading.map(model()).points
    ids = [s.token.id for s in reading.top]
    E = build("llama").get_parameter("lm_head.weight").detach().double()[ids]
    X = E - E.mean(0)
    _, vectors = torch.linalg.eigh(X.T @ X)
    x, y = [p.x for p in points], [p.y for p in points]
    for axis, direction in ((x, vectors[:, -1]), (y, vectors[:, -2])):
        direction = direction * direction[direction.abs().argmax()].sign()
        torch.testing.assert_close(torch.tensor(axis).double(), X @ direction)
    assert [p.label for p in points] == reading.tokens
    (drawn,) = reading.map(model()).to_plotly().data
    assert list(drawn.x) == x
    assert drawn.marker.size[0] == max(drawn.marker.size)
    assert reading.map(model()) == reading.map(model().view(folded=True, calibrated=True))


def test_signs_do_not_depend_on_the_order_of_tokens() -> None:
    X = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    points, shares = plots.principal_plane(X)
    turned, same = plots.principal_plane(X.flip(0))
    torch.testing.assert_close(points, turned.flip(0))
    assert shares == pytest.approx(same)
    assert 1 > shares[0] > shares[1] > 0


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_tokens(n: int) -> None:
    reading = made(HOSTILE[:n])
    for chart in (reading.plot(), reading.map(model()), made_pairs(reading).plot()):
        assert "nan" not in chart.to_svg()
        assert "NaN" not in chart.to_plotly().to_json()


def test_scores_that_are_all_alike_or_zero() -> None:
    for scores in ([0.0] * 3, [-2.0] * 3):
        reading = made(HOSTILE[:3], scores)
        for chart in (reading.plot(), reading.map(model())):
            sizes = re.findall(r' (?:width|height|r)="(-?[0-9.a-z]+)"', chart.to_svg())
            assert all(float(size) >= 0 for size in sizes)


def test_a_map_through_another_model() -> None:
    token = Token(99, "far", "far")
    source = Source("m", None, "L0N0", View())
    reading = Reading(source, "value", (Scored(token, 1.0),), (Scored(token, 1.0),), 0.0)
    with pytest.raises(LexrayError, match="no token 99: another model's reading"):
        reading.map(model())


def test_threads_join_rows_and_columns() -> None:
    pairs = model()["L0H1"].qk.top(30, sign="absolute", filter=filters.ascii)
    chart = pairs.plot()
    assert set(chart.left.values()) == {p.row.shown for p in pairs}
    assert set(chart.right.values()) == {p.col.shown for p in pairs}
    said = {title.text for title in ET.fromstring(chart.to_svg()).iter(f"{SVG}title")}
    for pair in pairs:
        assert any(s and s.startswith(f"{pair.row.shown} → {pair.col.shown}: ") for s in said)
    figure = chart.to_plotly()
    *lines, left, right = figure.data
    at = [dict(zip(unescaped(side.text), side.y, strict=True)) for side in (left, right)]
    for pair, line in zip(reversed(pairs.pairs), lines, strict=True):
        assert line.y[0] == pytest.approx(at[0][pair.row.shown])
        assert line.y[-1] == pytest.approx(at[1][pair.col.shown])
        assert line.line.color == (LIGHT.positive if pair.score >= 0 else LIGHT.negative)
    assert lines[-1].line.width == max(line.line.width for line in lines)
    assert "the first 5 of 30 pairs" in pairs.plot(5).note
    assert len(pairs.plot(5).threads) == 5
    assert chart.sides == ("query", "key")


def test_a_page_is_small_and_needs_no_network(tmp_path: Path) -> None:
    path = plots.save_plot(made(HOSTILE).plot(), tmp_path / "bars.html")
    page = path.read_text()
    assert len(page) < 60_000
    assert "script-src" not in page
    assert not re.findall(r"<(?:script|link|img)", page)
    assert "var(--lx-positive)" in page, "the reader's theme"
    assert page.count("<svg") == 2, "for a screen and for a phone"


def test_files_have_the_theme_that_was_asked_for(tmp_path: Path) -> None:
    chart = made(["a", "b"]).plot()
    assert LIGHT.paper in chart.to_svg()
    assert DARK.paper in chart.to_svg(dark=True)
    assert "var(" not in chart.to_svg()
    assert chart.to_png(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_pdf_holds_text_and_its_fonts(tmp_path: Path) -> None:
    chart = made(["·Tokyo", "λόγος", "<b>"]).plot()
    document = pypdfium2.PdfDocument(chart.to_pdf(tmp_path / "x.pdf"))
    text = "".join(document[0].get_textpage().get_text_range().split())
    assert "Tokyo" in text
    assert "λόγος" in text
    assert document[0].get_size()[0] == pytest.approx(0.75 * 900)


@pytest.mark.parametrize(
    ("package", "ending", "extra"), [("resvg_py", "png", "png"), ("typst", "pdf", "pdf")]
)
def test_images_say_what_they_need(
    package: str, ending: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LexrayError, match=rf"bars\.svg could be.*lexray\[{extra}\]"):
        made(["a"]).plot().save(tmp_path / f"bars.{ending}")
    with pytest.raises(LexrayError, match=r"bars.txt: plots are saved as \.html"):
        plots.save_plot(made(["a"]).plot(), str(tmp_path / "bars.txt"))
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_only_to_plotly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    chart: Chart = made(["a"]).plot()
    assert chart.to_svg().startswith("<svg")
    with pytest.raises(LexrayError, match=r"lexray\[plotly\]"):
        chart.to_plotly()
