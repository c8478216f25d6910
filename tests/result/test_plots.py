"""Figures: what they draw, that tokens stay literal, and that a page needs no network."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

from lexray import filters, plots
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.readings import Pair, Pairs, Reading, Scored, Source, Token
from lexray.view import View
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

HOSTILE = ["<b>bold</b>", "<script>alert(1)</script>", "&lt;", "$x$", '<a href="x">', "<br>"]


@cache
def model() -> Model:
    return worded("llama")


def made(tokens: list[str], scores: list[float] | None = None) -> Reading:
    scores = [1.0 / (i + 1) for i in range(len(tokens))] if scores is None else scores
    top = tuple(
        Scored(Token(i, t, t), s) for i, (t, s) in enumerate(zip(tokens, scores, strict=True))
    )
    return Reading(Source("<i>m</i>", None, "L0N0.value", View()), "value", top, top, 0.0)


def tags(figure: go.Figure) -> set[str]:
    """Everything in the figure that plotly would take for a tag."""
    return set(re.findall(r"<[^>]*>", str(figure.to_dict()))) - {"<extra>", "</extra>"}


def unescaped(labels: Any) -> list[str]:
    return [html.unescape(label).replace("\xa0", "") for label in labels]


def test_bars_show_both_ends() -> None:
    reading = model()["L0N3.value"].top(8)
    figure = reading.plot()
    assert isinstance(figure, go.Figure)
    top, bottom = figure.data
    assert list(top.x) == [s.score for s in reading.top]
    assert list(bottom.x) == [s.score for s in reading.bottom]
    assert top.marker.color != bottom.marker.color
    assert unescaped(figure.layout.yaxis.ticktext) == reading.tokens
    assert unescaped(figure.layout.yaxis2.ticktext) == [s.token.shown for s in reading.bottom]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "the best is above"


def test_tokens_appear_literally() -> None:
    reading = made(HOSTILE)
    pairs = Pairs(
        reading.source,
        "VO",
        tuple(Pair(1.0, a.token, b.token) for a in reading.top for b in reading.top),
        "largest",
        0.0,
        0.0,
    )
    ours = {"<b>", "</b>"}  # around the title
    for figure in (reading.plot(), plots.token_map(reading, model()), pairs.plot()):
        assert tags(figure) <= ours
        assert "$" not in str(figure.to_dict()["data"])
        title = figure.layout.title.text
        assert "L0N0" in title
        assert "&lt;i&gt;m" in figure.layout.title.subtitle.text
    assert unescaped(reading.plot().layout.yaxis.ticktext) == HOSTILE
    assert sorted(unescaped(pairs.plot().data[-1].text)) == sorted(HOSTILE)


def test_the_map_is_the_plane_of_the_centred_embeddings() -> None:
    reading = model()["L0N3.value"].top(12)
    (points,) = reading.map(model()).data
    ids = [s.token.id for s in reading.top]
    E = build("llama").get_parameter("lm_head.weight").detach().double()[ids]
    X = E - E.mean(0)
    _, vectors = torch.linalg.eigh(X.T @ X)
    for axis, direction in ((points.x, vectors[:, -1]), (points.y, vectors[:, -2])):
        direction = direction * direction[direction.abs().argmax()].sign()
        torch.testing.assert_close(torch.tensor(axis).double(), X @ direction)
    assert list(points.marker.color) == [s.score for s in reading.top]
    assert points.marker.size[0] == max(points.marker.size)
    assert unescaped(points.text) == reading.tokens
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
    for figure in (reading.plot(), reading.map(model())):
        assert "NaN" not in figure.to_json()
        assert all(len(trace.x) == n for trace in figure.data)


def test_scores_that_are_all_alike_or_zero() -> None:
    for scores in ([0.0] * 3, [-2.0] * 3):
        reading = made(HOSTILE[:3], scores)
        low, high = reading.plot().layout.xaxis.range
        assert low < high
        assert min(reading.map(model()).data[0].marker.size) > 0


def test_a_map_through_another_model() -> None:
    token = Token(99, "far", "far")
    source = Source("m", None, "L0N0", View())
    reading = Reading(source, "value", (Scored(token, 1.0),), (Scored(token, 1.0),), 0.0)
    with pytest.raises(LexrayError, match="no token 99: another model's reading"):
        reading.map(model())


def test_threads_join_rows_and_columns() -> None:
    pairs = model()["L0H1"].qk.top(30, sign="absolute", filter=filters.ascii)
    figure = pairs.plot()
    *lines, beads, left, right = figure.data
    assert len(lines) == 30 == len(beads.x)
    assert set(unescaped(left.text)) == {p.row.shown for p in pairs}
    assert set(unescaped(right.text)) == {p.col.shown for p in pairs}
    at = [dict(zip(unescaped(side.text), side.y, strict=True)) for side in (left, right)]
    for pair, line in zip(reversed(pairs.pairs), lines, strict=True):
        assert line.y[0] == pytest.approx(at[0][pair.row.shown])
        assert line.y[-1] == pytest.approx(at[1][pair.col.shown])
        assert line.line.color == (plots.POSITIVE if pair.score >= 0 else plots.NEGATIVE)
    assert lines[-1].line.width == max(line.line.width for line in lines)
    assert "the first 5 of 30 pairs" in pairs.plot(5).layout.title.subtitle.text
    assert len(pairs.plot(5).data) == 5 + 3
    assert [a.text for a in figure.layout.annotations] == ["query", "key"]
    empty = Pairs(pairs.source, "VO", (), "largest", 0.0, 0.0).plot()
    assert "NaN" not in empty.to_json()


def test_a_page_needs_no_network(tmp_path: Path) -> None:
    path = plots.save_plot(made(HOSTILE).plot(), tmp_path / "bars.html")
    page = path.read_text()
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
    assert "alert(1)</script>" not in page
    assert "Plotly.newPlot" in page
    assert "sendChartToCloud" in page.rpartition("Plotly.newPlot")[2], "the button is taken away"


def test_images_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("Image export requires the kaleido package\nand more")

    monkeypatch.setattr(go.Figure, "write_image", fails)
    with pytest.raises(LexrayError, match=r"(?s)bars.html could be.*kaleido.*Chrome.*requires"):
        plots.save_plot(made(["a"]).plot(), tmp_path / "bars.png")
    with pytest.raises(LexrayError, match=r"bars.txt: plots are saved as \.html or"):
        plots.save_plot(made(["a"]).plot(), str(tmp_path / "bars.txt"))
