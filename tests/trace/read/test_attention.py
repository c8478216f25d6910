"""Attention patterns: against the module's own, and in every form."""

from __future__ import annotations

import base64
import json
import re

import pytest
import torch

from lexray.errors import LexrayError
from lexray.result.charts.thumbs import shrink
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

IDS = [5, 9, 7, 9, 11]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_patterns_are_the_modules_own(family: str) -> None:
    module = build(family)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        own = module(torch.tensor([IDS]), output_attentions=True).attentions
    found = worded(family).trace(IDS).attention()
    assert len(found.heads) == len(own) * own[0].shape[1]
    for head in found.heads:
        torch.testing.assert_close(
            head.weights, own[head.layer][0, head.head], atol=1e-5, rtol=1e-4
        )


def test_words_are_what_the_lens_reads_of_the_heads() -> None:
    trace = worded("llama").trace(IDS)
    found = trace.attention(position=2, k=3)
    lens = trace.lens("heads", positions=[2], k=3)
    spell = trace.model.vocabulary.shown
    for line, ids in zip(lens.lines, lens.top_ids[:, 0].tolist(), strict=True):
        assert found[line.name].words == tuple(map(spell, ids))
    (at, weight), *_ = found.looks_at(found["L1H0"])
    row = trace[1].pattern[0, 2]
    assert (at, weight) == (int(row.argmax()), pytest.approx(float(row.max())))


def test_some_heads_and_what_is_not_there() -> None:
    found = worded("gpt2").trace(IDS).attention(layers=1, heads=[0, 2])
    assert [head.address for head in found.heads] == ["L1H0", "L1H2"]
    with pytest.raises(LexrayError, match=r"no head 'L0H0' among these: L1H0 … L1H2"):
        found["L0H0"]
    with pytest.raises(LexrayError, match=r"layer"):
        worded("gpt2").trace(IDS).attention(layer=1)


def test_every_form() -> None:
    found = worded("gpt2").trace(IDS).attention()
    data = json.loads(found.to_json())
    assert data["heads"][0]["weights"][3][:4] == pytest.approx(
        found.heads[0].weights[3, :4].tolist(), rel=1e-3
    )
    page = found.to_html()
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    embedded = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    raw = base64.b64decode(embedded["heads"][1]["weights"])
    expected = (255 * found.heads[1].weights).round().byte().flatten()
    assert list(raw) == expected.tolist()
    assert found.plot().to_svg().count("<g") >= len(found.heads)
    assert "looks at" in str(found)
    weights = found.to_pandas()["weight"]
    assert len(weights) == sum(int((head.weights > 0).sum()) for head in found.heads)


def test_hostile_tokens_stay_text() -> None:
    page = worded("gpt2").trace([8, 8, 8]).attention().to_html()
    assert "<script>" not in page.replace("<script type", "")


def test_large_maps_are_drawn_coarser() -> None:
    values = torch.rand(50, 30).tolist()
    coarse = shrink(values, 10)
    assert (len(coarse), len(coarse[0])) == (10, 10)
    whole = torch.tensor(values)
    assert coarse[1][2] == pytest.approx(float(whole[5:10, 6:9].max()))
    assert shrink([], 4) == []
