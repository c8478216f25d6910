"""Heads by what they do for some words, against every entry of their matrices in float64."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import lexray as lx
from lexray.model.model import Model

MODEL = Model.from_pretrained("demo")
HE, SHE = [" he", " his", " him"], [" she", " her"]


@cache
def dense_scores(matrix: str) -> dict[str, float]:
    """Of every head, from all entries of its matrix."""
    scores = {}
    ids = MODEL.space.list_ids(None)
    place = {int(t): i for i, t in enumerate(range(MODEL.d_vocab) if ids is None else ids)}
    for head in MODEL.heads:
        circuit = head.vo if matrix == "VO" else head.qk
        A, B = (x.double() for x in circuit.factors())
        M = A @ B.T
        Z = (M - M.mean()) / M.std(correction=0)
        rows, cols = ([place[MODEL.vocabulary.id(w)] for w in words] for words in (HE, SHE))
        scores[str(head.address)] = float(Z[rows][:, cols].mean())
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["VO", "QK"])
@pytest.mark.parametrize("negative", [False, True])
def test_against_all_entries(matrix: str, negative: bool) -> None:
    found = MODEL.heads.top(20, rows=HE, cols=SHE, matrix=matrix, negative=negative)  # type: ignore[arg-type]
    assert len(found) == len(MODEL.heads) == 20
    scores = dense_scores(matrix)
    order = sorted(scores, key=lambda name: scores[name], reverse=not negative)
    assert [hit.address for hit in found] == order
    for hit in found:
        assert hit.score == pytest.approx(scores[hit.address], rel=1e-6, abs=1e-9)
        assert {p.row.text for p in hit.pairs} <= set(HE)
        assert {p.col.text for p in hit.pairs} <= set(SHE)


@pytest.mark.slow
def test_one_side_and_lookup() -> None:
    found = MODEL.heads.top(3, cols=SHE)
    assert found.rows == "any token"
    assert MODEL.lookup(SHE, "heads").top(3) == found
    assert "written among ·she, ·her" in str(found)
    assert MODEL.heads[-1].address == MODEL["L3H4"].address
    assert repr(MODEL.heads) == "<20 heads of demo: .top(rows=[…], cols=[…])>"


def test_mistakes() -> None:
    with pytest.raises(lx.LexrayError, match="for which words"):
        MODEL.heads.top(3)
    with pytest.raises(lx.LexrayError, match="at least 1"):
        MODEL.heads.top(0, rows=HE)
    with pytest.raises(lx.LexrayError, match="no head 20"):
        MODEL.heads[20]
    torch.testing.assert_close(MODEL.heads[3].W_V, MODEL["L0H3"].W_V)
