"""How lenses are shown, and what they refuse."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModel

from lexray.choice import numbers
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.read.grid import Grid, GridCell, clip
from lexray.trace.read.score import token_ids
from lexray.trace.read.targets import token_id
from lexray.trace.read.vectors import KINDS, what_for
from lexray.trace.trace import Trace
from tests.families.test_pairs import worded_pair
from tests.families.zoo import build
from tests.trace.read.traced import IDS, traced
from tests.vocabulary.vocabularies import worded

# ---------------------------------------------------------------------- how it is shown


def test_cells_and_lines() -> None:
    found = traced("gpt2").lens(target="law", layers=[1], positions=[2, -1])
    assert found.names == ["L1"]
    assert found.positions == (2, 6)
    (token, p), *_ = found.top("L1", -1)
    assert (token.id, p) == (int(found.top_ids[0, 1, 0]), float(found.top_probs[0, 1, 0]))
    with pytest.raises(LexrayError, match="no line 'L7'; it has 1, from L1 to L1"):
        found.top("L7")
    with pytest.raises(LexrayError, match="no position 3; it has 2, 6"):
        found.top(0, 3)


def test_every_form() -> None:
    found = traced("gpt2").lens(target="<script>", k=3)
    data = json.loads(found.to_json())
    assert data["target"] == {"id": 8, "text": "<script>"}
    assert [line["name"] for line in data["lines"]] == ["embed", "L0", "L1"]
    cell = data["lines"][2]["cells"][4]
    assert found.target_ranks is not None
    assert cell["target"]["rank"] == int(found.target_ranks[2, 4]) + 1
    assert cell["top"][0]["probability"] == float(found.top_probs[2, 4, 0])
    frame = found.to_pandas()
    assert len(frame) == 3 * len(IDS) * 3
    assert set(frame.columns) > {"line", "position", "probability", "entropy", "target_rank"}
    page = found.to_html()
    assert "<script>" not in page
    assert page.count("rgba(") == 2 * 3 * len(IDS)
    chart = found.plot()
    strengths = [[cell.strength for cell in line] for line in found.grids()[1].cells]
    assert [[square.strength for square in line] for line in chart.squares] == strengths
    assert list(chart.names) == ["embed", "L0", "L1"], "the order of the table"
    assert "<script>" not in chart.to_svg()
    (heat,) = chart.to_plotly().data
    assert [list(line) for line in heat.z] == strengths
    assert "<script>" not in str(heat.text)


def test_long_prompts_show_the_last_positions_that_fit() -> None:
    trace = traced("llama").model.trace([i % 30 + 3 for i in range(40)])
    text = str(trace.lens())
    assert max(map(len, text.splitlines())) <= 100
    assert "earlier positions left out for lack of width" in text
    assert " 39 " in text
    assert " 3 " not in text.splitlines()[2]
    wide = Console(width=2000, record=True, force_terminal=True, color_system="truecolor")
    with wide.capture() as captured:
        wide.print(trace.lens())
    assert "left out" not in captured.get()
    assert "\x1b[" in captured.get()


def test_one_position_needs_no_grid() -> None:
    found = traced("llama").lens(positions=-1)
    assert len(found.tables()) == 1
    assert found.grids() == []


def test_grids() -> None:
    cells = tuple(GridCell("x" * 10, p) for p in (0.0, 0.5, 1.0))
    grid = Grid("title", "", ("a", "b", "c"), ("L0",), (cells,), "a note")
    assert grid.fitting(100) is grid
    narrow = grid.fitting(34)
    assert narrow.columns == ("b", "c")
    assert narrow.note == "a note · 1 earlier position left out for lack of width"
    assert grid.fitting(1).columns == ("c",)
    assert clip("日本日本日本日本日本") == "日本日本日本 …"


# ---------------------------------------------------------------------- whole words


def test_the_score_of_a_word_of_several_tokens() -> None:
    trace = traced("gpt2")
    found = trace.score("abc")
    word = trace.model.vocabulary.encode("abc")
    assert len(word) == 3
    with torch.no_grad():
        logits = build("gpt2")(torch.tensor([[*IDS, *word]])).logits[0].log_softmax(-1)
    expected = [float(logits[len(IDS) - 1 + i, token]) for i, token in enumerate(word)]
    assert [scored.score for scored in found.tokens] == pytest.approx(expected, abs=1e-4)
    assert found.log_probability == pytest.approx(sum(expected), abs=1e-4)
    assert trace.score([9]).probability == pytest.approx(
        float(trace.logits[-1].softmax(-1)[9]), abs=1e-5
    )
    assert trace.score(9) == trace.score([9]) == trace.score(trace.model.space.token(9))
    assert "the whole word" in str(found)
    assert len(json.loads(found.to_json())["tokens"]) == 3
    with pytest.raises(LexrayError, match="has no tokens"):
        trace.score("")
    with pytest.raises(LexrayError, match="predicts masked tokens"):
        traced("bert").score("a")


# ---------------------------------------------------------------------- mistakes


def refused(message: str, trace: Trace, *arguments: Any, **options: Any) -> None:
    with pytest.raises(LexrayError, match=message):
        trace.lens(*arguments, **options)


@pytest.mark.parametrize("wrong", ["01", 1.5, [1.5], ["f"], None])
def test_what_is_no_number(wrong: Any) -> None:
    with pytest.raises(LexrayError, match="heads are given as a number, a list of numbers or a sl"):
        numbers(wrong, "head")
    with pytest.raises(LexrayError, match="a target is a token's text or its id, not "):
        token_id(wrong)
    with pytest.raises(LexrayError, match="a word is a text, a token or token ids, not "):
        token_ids(wrong)


def test_mistakes() -> None:
    trace = traced("gpt2")
    refused(f"cannot read 'head'; of= takes some of {', '.join(KINDS)}", trace, "head")
    refused("a lens cannot read", trace, [])
    refused("no layer 7: the layers are 0–1", trace, layers=[0, 7])
    refused("no position 9", trace, positions=[9])
    refused("no head 3", trace, "heads", heads=3)
    refused("neurons are listed at one position, not at 2", trace, "neurons", positions=[1, 2])
    refused("there is no position 7", trace, "keys", query=7)
    refused("looks at no later keys", trace, "keys", query=1, positions=[3])
    refused("k must be at least 1", trace, k=0)
    refused("asked for the 0 strongest neurons", trace, "neurons", neurons=0)
    refused("asked for the -1 strongest neurons", trace, "neurons", neurons=-1)
    refused("'fg' is 2 tokens", trace, target="fg")
    assert "f is the first of f + g" in trace.lens(target="fg", first=True).note
    refused("no transform in its LM head", trace, transform=True)
    model = trace.model
    refused("layer 0 was not kept", model.trace(IDS, layers=[1]), layers=[0])
    refused("what=", model.trace(IDS, what="residual"), "heads")
    with pytest.raises(LexrayError, match="the prompt is empty"):
        model.trace("").lens()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_trace_has_to_keep(kind: str) -> None:
    what = what_for([kind])
    if kind.startswith(("self", "cross")):
        trace = worded_pair("bart").trace(IDS, target=IDS[:3], what=what, layers=[1])
    else:
        having = {"mixer": "falcon-h1", "mixer_in": "falcon-h1", "laurel": "gemma3n"}
        name = having.get(kind, "gemma2")
        trace = worded(name).trace(IDS, what=what, layers=[1])
    positions = -1 if kind == "neurons" else None
    assert len(trace.lens(kind, positions=positions).lines) >= 1


def test_what_a_model_does_not_have() -> None:
    with pytest.raises(LexrayError, match=r"has no mixer in layers 0, 1"):
        traced("gemma2").lens("mixer")


def test_a_body_without_a_head() -> None:
    """Tied embeddings read it all the same; without an unembedding there is nothing to read by."""
    tied = Model.from_module(AutoModel.from_config(build("gpt2").config).eval())
    assert len(tied.trace(IDS).lens().lines) == 3
    untied = Model.from_module(AutoModel.from_config(build("llama").config).eval())
    refused("the output embedding", untied.trace(IDS))


def test_a_target_is_coloured_by_the_log_of_its_rank() -> None:
    """Cells of rank 1 are darkest, ranks in the lower half of the vocabulary have no colour."""
    model = worded("gpt2")
    found = model.trace(IDS).lens(target=9)
    assert found.target_ranks is not None
    size = model.space.n_rows
    cells = found.grids()[1].cells
    for line, ranks in zip(cells, found.target_ranks.tolist(), strict=True):
        for cell, above in zip(line, ranks, strict=True):
            expected = max(0.0, 1 - math.log1p(above) / math.log1p(size / 2))
            assert cell.strength == pytest.approx(expected if above <= size - 1 - above else 0.0)
            assert cell.text.endswith(f"#{above + 1}")
    colours = [[square.strength for square in line] for line in found.plot().squares]
    assert colours == [[cell.strength for cell in line] for line in cells]
