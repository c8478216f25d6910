"""What an atlas holds is what the model says when it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lexray as lx
from lexray.atlas.schema import round_scores
from lexray.space.untrained import untrained
from lexray.view import VIEWS
from tests.families.zoo import VARIANTS, make

K = 12


@pytest.mark.parametrize("view", ["standard", "raw"])
@pytest.mark.parametrize(
    "address",
    ["L0N3.key", "L1N19.gate", "L1N7.value", "L0H3.Q2", "L1H2.K5", "L1H0.V1", "L0H1.O4"],
)
def test_lists_are_the_readings(model: lx.Model, atlas: lx.Atlas, address: str, view: str) -> None:
    seen = model.with_view(VIEWS[view])
    rows = lx.Atlas(atlas.where, view).vector(address)
    vector = seen.vector(address)
    expected = {way: getattr(vector, way)(K) for way in vector.readings}
    assert [row["side"] for row in rows] == _sides(vector, view)
    for row, reading in zip(rows, expected.values(), strict=True):
        assert row["top_ids"] == [scored.token.id for scored in reading.top]
        assert row["bottom_ids"] == [scored.token.id for scored in reading.bottom]
        scores = [scored.score for scored in reading.top]
        np.testing.assert_allclose(row["top_scores"], scores, rtol=2**-12)
        assert row["legibility"] == pytest.approx(reading.legibility, abs=1e-6)
        assert row["norm"] == pytest.approx(float(vector.tensor.float().norm()), rel=1e-5)


def _sides(vector: Any, view: str) -> list[str]:
    if vector.kind in ("value", "O"):
        return ["writes"]
    if view == "raw":
        return ["reads"]
    return list(vector.readings) if len(vector.readings) == 2 else ["sees"]


def test_shared_keys_and_values_are_there_once(model: lx.Model, atlas: lx.Atlas) -> None:
    counts = {
        (row["kind"], row["side"]): row["n"]
        for row in atlas.sql(
            "select kind, side, count(*) n from vectors where view = 'raw' group by all"
        )
    }
    a = model.architecture
    heads, width = a.n_heads * a.d_head * 2, a.n_kv_heads * a.d_head * 2
    assert counts["Q", "reads"] == counts["O", "writes"] == heads
    assert counts["K", "reads"] == counts["V", "reads"] == width
    assert counts["value", "writes"] == 2 * a.d_mlp


def test_other_families(tmp_path: Path) -> None:
    """Experts, a router, biases and norms."""
    variants = {variant.name: variant for variant in VARIANTS}
    for name in ("mixtral", "gpt2"):
        model = lx.Model.from_module(make(variants[name]))
        atlas = lx.Atlas.write(model, tmp_path / name, k=5, kinds=["keys", "values", "others"])
        kinds = atlas.sql("select kind, count(*) n from vectors group by 1 order by 1")
        found = dict(zip(kinds.column("kind"), kinds.column("n"), strict=True))
        if name == "mixtral":
            assert found["router"] == 5 * model.n_layers
            assert found["value"] == 5 * model.d_mlp * model.n_layers
            row = atlas.vector("L1E3N4.value")[0]
            reading = model.vector("L1E3N4.value").top(5)
        else:
            assert found["bias"] == 2 * model.n_layers
            assert found["norm"] == 4 * model.n_layers + 2
            row = atlas.vector("L1.b_out")[0]
            reading = model["L1.b_out"].top(5)
            assert len(atlas.vector("final_norm.gain")) == 1
        assert row["top_ids"] == [scored.token.id for scored in reading.top]


def test_scores_are_rounded_to_the_nearest() -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate(
        [generator.normal(0, 10.0**power, 500).astype(np.float32) for power in (-6, 0, 6)]
        + [np.array([0.0, np.inf, -np.inf, 3.4e38], dtype=np.float32)]
    )
    rounded = round_scores(values)
    exact = values.astype(np.float64)
    finite = np.isfinite(exact) & (exact != 0)
    grid = 2.0 ** (np.floor(np.log2(np.abs(exact[finite]))) - 12)
    np.testing.assert_allclose(rounded[finite], np.round(exact[finite] / grid) * grid, rtol=1e-7)
    np.testing.assert_array_equal(rounded[~finite], values[~finite])


def test_tokens(model: lx.Model, atlas: lx.Atlas) -> None:
    rows = atlas.tokens()
    norms = model.unembedding().float().norm(dim=1)
    assert len(rows) == model.d_vocab
    assert [row["text"] for row in rows[:300]] == model.vocabulary.all_texts[:300]
    torch.testing.assert_close(torch.tensor(rows.column("norm")), norms)
    aside = [row["id"] for row in rows if row["untrained"]]
    assert aside == sorted(untrained(model))
