"""Pairs, directions, roles, relations and links, against what the model says."""

from __future__ import annotations

import pytest

import lexray as lx

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("circuit", ["VO", "QK"])
def test_pairs_and_directions(model: lx.Model, atlas: lx.Atlas, circuit: str) -> None:
    whole = model.circuit(f"L1H2.{circuit}")
    rows = atlas.pairs("L1H2", circuit)  # type: ignore[arg-type]
    found = [(row["row"], row["col"]) for row in rows]
    pairs = whole.top(12)
    assert found == [(pair.row.id, pair.col.id) for pair in pairs]
    assert rows.column("score") == pytest.approx([pair.score for pair in pairs], rel=1e-4)
    lines = atlas.directions("L1H2", circuit)  # type: ignore[arg-type]
    svd = whole.svd(6, 12)
    assert [row["end"] for row in lines] == ["input", "output"] * 6
    for i, direction in enumerate(svd.directions):
        for row, end in zip(
            lines[2 * i : 2 * i + 2], (direction.input, direction.output), strict=True
        ):
            assert row["singular"] == pytest.approx(direction.singular_value, rel=1e-4)
            assert row["top_ids"][:5] == [scored.token.id for scored in end.top[:5]]


def test_heads_have_roles_and_sizes(model: lx.Model, atlas: lx.Atlas) -> None:
    rows = atlas.heads()
    catalogue = model.catalogue()
    assert rows.column("address") == [entry.address for entry in catalogue.entries]
    assert rows.column("does") == [entry.said for entry in catalogue.entries]
    assert rows.column("copying") == pytest.approx([e.copying for e in catalogue.entries], rel=1e-4)
    W = model["L0H1"].W_V.double() @ model["L0H1"].W_O.double()
    assert rows[1]["vo_norm"] == pytest.approx(float(W.norm()), rel=1e-5)


def test_links(model: lx.Model, atlas: lx.Atlas) -> None:
    rows = [row for row in atlas.links() if row["between"] == "neurons"]
    expected = model.wires(5)
    assert [(row["writer"], f"{row['reader']}.{row['via']}") for row in rows[:5]] == [
        (link.writer, link.reader) for link in expected
    ]
    some = atlas.links(rows[0]["writer"])
    assert len(some) > 0
    assert all(rows[0]["writer"] in (row["writer"], row["reader"]) for row in some)
