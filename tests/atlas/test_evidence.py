"""Evidence of all neurons and heads at once is the evidence of each."""

from __future__ import annotations

from pathlib import Path

import pytest

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.cli.running import TEXT
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

TEXT_RUN = (TEXT + "\n") * 3


@pytest.fixture(scope="module")
def seen(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> lx.Atlas:
    """First without evidence, then with it."""
    folder = tmp_path_factory.mktemp("evidence") / "atlas"
    lx.Atlas.write(str(llama), folder, kinds=["values"], k=6, layers=[1])
    return lx.Atlas.write(str(llama), folder, kinds=["values"], k=6, layers=[1], text=TEXT_RUN)


@pytest.mark.slow
def test_of_neurons(model: lx.Model, seen: lx.Atlas) -> None:
    for address in ("L1N0", "L1N13"):
        expected = model.evidence(address, TEXT_RUN, n=8)
        rows = seen.evidence(address)
        assert rows.column("activation") == pytest.approx(
            [s.activation for s in expected.snippets], rel=1e-4
        )
        assert rows[0]["before"] == "".join(t.text for t in expected.snippets[0].before)
        areas = {row["reading"]: row["area"] for row in seen.agreement(address)}
        assert areas == pytest.approx({a.reading: a.area for a in expected.agreements}, abs=1e-3)


def test_of_heads(model: lx.Model, seen: lx.Atlas) -> None:
    for circuit in ("VO", "QK"):
        expected = model.evidence(f"L1H2.{circuit}", TEXT_RUN, n=8)
        rows = [row for row in seen.evidence("L1H2") if row["part"] == circuit]
        assert [row["activation"] for row in rows] == pytest.approx(
            [s.activation for s in expected.snippets], rel=1e-4
        )
        looked = [s.looked_at.id for s in expected.snippets if s.looked_at]
        assert [row["looked_at"] for row in rows] == looked
        (area,) = [row["area"] for row in seen.agreement("L1H2") if row["part"] == circuit]
        assert area == pytest.approx(expected.agreement, abs=1e-3)


@pytest.mark.slow
def test_experts_are_told_apart(tmp_path: Path) -> None:
    model = Model(ModuleCheckpoint(build("mixtral")), vocabulary=vocabulary(37))
    text = model.vocabulary.decode([5 + i * i % 31 for i in range(200)])
    atlas = lx.Atlas.write(model, tmp_path, kinds=["values"], k=5, layers=[0], text=text)
    expected = model.evidence("L0E2N3", text, n=8)
    assert atlas.evidence("L0E2N3").column("activation") == pytest.approx(
        [s.activation for s in expected.snippets], rel=1e-4
    )


def test_another_text_is_refused(llama: Path, seen: lx.Atlas) -> None:
    with pytest.raises(LexrayError, match="another atlas"):
        lx.Atlas.write(str(llama), seen.where, kinds=["values"], k=6, text="another text of words")
    again = lx.Atlas.write(str(llama), seen.where, kinds=["values"], k=6, layers=[1])
    assert again.missing == []
