"""How an alignment shows itself: tables, data frames, JSON, pages and heat maps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from lexray.compare.align.alignment import Alignment, GroupAlignment
from lexray.compare.align.similarity import Similarity
from lexray.compare.align.tokens import SharedTokens
from lexray.result.plots import save_plot
from lexray.result.readings import Source
from lexray.view import View


def made(shape: tuple[int, int], control: bool = True, name: str = "<i>a</i>") -> Alignment:
    draw = np.random.default_rng(0)
    ids = torch.arange(9)
    groups = tuple(
        GroupAlignment(
            kind,  # type: ignore[arg-type]
            Similarity("embedding", draw.random(shape)),
            Similarity("feature", draw.random(shape)) if control else None,
        )
        for kind in ("key", "Q")
    )
    sources = [Source(each, None, "", View()) for each in (name, "b")]
    return Alignment(sources[0], sources[1], SharedTokens(ids, ids, (9, 9)), groups)


def test_tables_show_s_and_both_assignments() -> None:
    alignment = made((4, 4))
    summary, key, query = alignment.tables()
    assert [row[0] for row in summary.rows] == ["key", "Q"]
    assert summary.rows[0][1] == f"{100 * alignment[0].embedding.share:.0f} %"
    assert summary.rows[0][3] == "25 %"
    assert len(key.rows) == len(query.rows) == 4
    assert key.columns == (" ", "L0", "L1", "L2", "L3", "assigned", "in feature space")
    for (i, j), row in zip(alignment[0].embedding.assignment, key.rows, strict=True):
        assert row[1 + i] == f"{alignment[0].embedding.S[i, i]:.3f}"
        assert row[5] == (f"L{j}" if i == j else f"L{j} ×")


def test_deep_models_are_shaded() -> None:
    alignment = made((3, 40))
    table = alignment.tables()[1]
    assert table.columns == (" ", "L0 … L39", "assigned", "in feature space")
    S = alignment[0].embedding.S
    i, j = (int(n) for n in np.unravel_index(S.argmax(), S.shape))
    shades = str(table.rows[i][1])
    assert len(shades) == 80
    assert shades[2 * j : 2 * j + 2] == "██"
    assert max(map(len, str(alignment).splitlines())) <= 100
    assert "diagonal: same relative depth" in str(alignment)


def test_rows_without_a_partner_stay_empty() -> None:
    table = made((5, 3)).tables()[1]
    assert sum(row[4] == "" for row in table.rows) == 2


def test_data_frame_and_json() -> None:
    alignment = made((3, 5))
    frame = alignment.to_pandas()
    assert len(frame) == 2 * 2 * 15
    one = frame[(frame.group == "Q") & (frame.space == "feature")]
    assert one.S.tolist() == alignment["Q"].feature.S.flatten().tolist()
    assert one.assigned.sum() == one.diagonal.sum() == 3
    data = json.loads(alignment.to_json())
    assert data["diagonal"] == [[0, 0], [1, 2], [2, 4]]
    group = data["groups"][0]
    assert group["group"] == "key"
    assert np.array(group["embedding"]["S"]).shape == (3, 5)
    assert group["embedding"]["assignment"] == [list(p) for p in alignment[0].embedding.assignment]
    assert group["feature"]["diagonal_share"] == alignment[0].feature.share
    assert alignment.to_csv().count("\n") == 61


@pytest.mark.parametrize("shape", [(4, 4), (3, 30)])
def test_a_page_frames_the_assigned_cells(shape: tuple[int, int]) -> None:
    page = made(shape).to_html()
    assert page.count('class="assigned"') == 4 * min(shape)
    assert page.count("lexray-grid") > 4
    assert "<script" not in page
    assert "<i>a</i>" not in page
    numbers = re.findall(r"--heat[^>]+>0\.\d{3}</td>", page)
    assert bool(numbers) == (shape[1] <= 12)


def panels(figure: go.Figure) -> tuple[list[Any], list[Any]]:
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    dots = [trace for trace in figure.data if trace.type == "scatter"]
    return maps, dots


@pytest.mark.slow
def test_heat_maps() -> None:
    alignment = made((4, 6))
    chart = alignment.plot()
    figure = chart.to_plotly()
    maps, dots = panels(figure)
    assert len(maps) == len(dots) == 4
    similarities = [group.spaces[row] for row in (0, 1) for group in alignment]
    for drawn, marks, similarity in zip(maps, dots, similarities, strict=True):
        assert np.array(drawn.z).tolist() == similarity.S.tolist()
        assert set(zip(marks.y, marks.x, strict=True)) == set(similarity.assignment)
        assert drawn.xaxis == marks.xaxis
    assert maps[0].xaxis != maps[1].xaxis, "feature space lies below"
    titles = [panel.title.partition(",")[0] for panel in chart.panels]
    assert titles == ["FF keys", "W_Q"] * 2
    assert figure.layout.yaxis.autorange == "reversed", "layer 0 is above"
    assert "<i>" not in str(figure.to_dict())
    assert len(made((4, 6), control=False).plot().panels) == 2


def test_heat_maps_are_saved(tmp_path: Path) -> None:
    page = save_plot(made((2, 2)).plot(), tmp_path / "maps.html").read_text()
    assert page.count("<rect") == 2 * 4 * 4, "four panels of four cells, for a screen and a phone"
    assert "<script" not in page
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
