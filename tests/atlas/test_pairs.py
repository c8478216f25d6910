"""The atlas of an encoder–decoder: both stacks and what lies between them."""

from __future__ import annotations

from pathlib import Path

import pytest

import lexray as lx
from lexray.atlas.plan import Chunk
from tests.cli.running import save_tiny

K = 12
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["t5", "bart"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("atlas") / request.param, request.param)


@pytest.fixture(scope="module")
def pair_atlas(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> lx.Atlas:
    where, text = tmp_path_factory.mktemp("atlas") / "pair", "the cat and the dog walked " * 6
    return lx.Atlas.write(str(pair), where, k=K, text=text)


@pytest.mark.parametrize(
    "address",
    ["enc.L1N3.key", "enc.L0H2.V1", "enc.L1H1.O3", "L1X2.Q2", "L1X2.K5", "L0X1.V1", "L1X0.O4"],
)
def test_lists_are_the_readings(pair: Path, pair_atlas: lx.Atlas, address: str) -> None:
    vector = lx.Model.from_pretrained(pair).vector(address)
    rows = pair_atlas.vector(address)
    for row, way in zip(rows, vector.readings, strict=True):
        reading = getattr(vector, way)(K)
        assert row["top_ids"] == [scored.token.id for scored in reading.top]
        assert row["top_scores"] == pytest.approx([s.score for s in reading.top], rel=2**-12)


@pytest.mark.parametrize("head", ["enc.L1H2", "L1X2", "L0H1"])
def test_pairs_directions_and_roles(pair: Path, pair_atlas: lx.Atlas, head: str) -> None:
    model = lx.Model.from_pretrained(pair)
    for circuit in ("VO", "QK"):
        whole = model.circuit(f"{head}.{circuit}")
        rows = pair_atlas.pairs(head, circuit)  # type: ignore[arg-type]
        assert rows.column("score") == pytest.approx([p.score for p in whole.top(K)], rel=1e-4)
        lines = pair_atlas.directions(head, circuit)  # type: ignore[arg-type]
        first = whole.svd(1, K).directions[0]
        assert lines[0]["top_ids"][:5] == [scored.token.id for scored in first.input.top[:5]]
        assert lines[1]["top_ids"][:5] == [scored.token.id for scored in first.output.top[:5]]
    rows = pair_atlas.heads()
    own = {row["address"]: row for row in rows}
    assert own.keys() == {str(each.address) for each in model.every_head}
    assert own[head]["does"] is not None
    assert pair_atlas.sql("select distinct address from relations").column("address")


def test_everything_is_found_again(pair: Path, pair_atlas: lx.Atlas) -> None:
    model = lx.Model.from_pretrained(pair)
    assert pair_atlas.missing == []
    planned = pair_atlas.manifest.planned
    assert {chunk.stack for chunk in planned} == {"", "enc", "cross"}
    assert all(Chunk.parse(chunk.name) == chunk for chunk in planned)
    counts = {
        row["kind"]: row["n"]
        for row in pair_atlas.sql("select kind, count(distinct address) n from vectors group by 1")
    }
    d = sum(s.architecture.n_heads * s.architecture.d_head * s.n_layers for s in model.stacks)
    crossing = model.architecture.n_heads * model.architecture.d_head * model.n_layers
    assert counts["Q"] == counts["K"] == counts["V"] == counts["O"] == d + crossing
    assert counts["value"] == sum(s.architecture.d_mlp * s.n_layers for s in model.stacks)
    first = pair_atlas.vector("enc.L1N3.value")[0]["top_ids"][0]
    hits = pair_atlas.parameters(first, 10_000, kind="value").column("address")
    assert "enc.L1N3.value" in hits
    assert pair_atlas.neurons(n=None).column("address").count("enc.L1N3") == 1
    assert len(pair_atlas.evidence("enc.L1N3")) > 0
    assert len(pair_atlas.vector("enc.L0.attn_norm")) == 1
    assert pair_atlas.like("L1X2.V1", 3)[0]["address"] != "L1X2.V1"
    again = lx.Atlas.write(str(pair), pair_atlas.where, k=K, layers=[0])
    assert again.manifest.files == pair_atlas.manifest.files
