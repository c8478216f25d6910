"""`lexray align`, as a user runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lexray as lx
from tests.cli.running import answer, lexray, mistake
from tests.saved import save


def opened(path: Path) -> lx.Model:
    return lx.Model.from_pretrained(path)


@pytest.mark.slow
def test_layers(llama: Path, gpt2: Path) -> None:
    found = answer("align", llama, gpt2, "--folded")
    expected = lx.align(*(opened(path).view("raw", folded=True) for path in (llama, gpt2)))
    assert found == expected.to_dict()
    assert [group["group"] for group in found["groups"]] == ["key", "value", "Q", "K", "V", "O"]
    assert found["tokens"]["shared"] == found["tokens"]["a"]
    assert found["a"]["reading"] == found["b"]["reading"] == "folded"
    assert np.array(found["groups"][0]["feature"]["S"]).shape == (2, 2)


def test_options(llama: Path, gpt2: Path) -> None:
    found = answer(
        "align", llama, gpt2, "--among", "keys", "--among", "O", "--no-control", "--alnum"
    )
    assert [group["group"] for group in found["groups"]] == ["key", "O"]
    assert found["groups"][0]["feature"] is None
    assert found["tokens"]["shared"] < found["tokens"]["a"]
    assert found["tokens"]["filter"]
    ran = lexray("align", llama, gpt2, "--among", "V")
    assert ran.code == 0
    assert "share assigned on the diagonal" in ran.out
    assert "V: S in embedding space" in ran.out


def test_files(llama: Path, gpt2: Path, tmp_path: Path) -> None:
    page, plot = tmp_path / "align.html", tmp_path / "maps.html"
    assert lexray("align", llama, gpt2, "-o", page, "--plot", plot).code == 0
    assert 'class="assigned"' in page.read_text()
    assert "<svg" in plot.read_text()
    assert len(plot.read_bytes()) < 500_000
    table = tmp_path / "align.csv"
    assert lexray("align", llama, gpt2, "-o", table).code == 0
    assert table.read_text().startswith("group,space,layer_a,layer_b,S,assigned,diagonal\n")
    assert {p.name for p in tmp_path.iterdir()} == {"align.html", "maps.html", "align.csv"}


def test_an_image_needs_its_package(
    llama: Path, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    said = mistake("align", llama, gpt2, "--among", "V", "--plot", tmp_path / "maps.png")
    assert "maps.png was not written, maps.svg could be" in said
    assert "lexray[png]" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_partners(llama: Path, gpt2: Path) -> None:
    found = answer("align", llama, gpt2, "--of", "L1N3.value", "-n", 4, "-k", 3)
    expected = lx.partners(opened(llama), "L1N3.value", opened(gpt2), 4, tokens=3)
    assert found == expected.to_dict()
    assert len(found["partners"]) == 4
    assert len(found["partners"][0]["parts"][0]["top"]) == 3
    heads = answer("align", gpt2, llama, "--of", "L1H2", "--one-to-one", "--layers", 1, "--ascii")
    (partner,) = heads["partners"]
    assert partner["address"].startswith("L1H")
    assert [part["part"] for part in partner["parts"]] == ["VO", "QK"]
    assert partner["parts"][0]["pairs"]
    assert "cosine" in lexray("align", llama, gpt2, "--of", "L1H3.QK", "--offset", -2).out


@pytest.mark.slow
def test_mistakes(llama: Path, gpt2: Path, tmp_path: Path) -> None:
    for option in ("--one-to-one", "--layers=0", "-n=3", "-k=3"):
        assert "say which with --of" in mistake("align", llama, gpt2, *option.split("="))
    assert "--plot is for whole layers" in mistake(
        "align", llama, gpt2, "--of", "L0H1", "--plot", tmp_path / "x.html"
    )
    assert "plots end in .html" in mistake("align", llama, gpt2, "--plot", tmp_path / "x.txt")
    assert "there is no folder" in mistake("align", llama, gpt2, "--plot", tmp_path / "a/x.html")
    assert "no group 'heads'" in mistake("align", llama, gpt2, "--among", "heads")
    assert "has no gate vectors" in mistake("align", llama, gpt2, "--among", "gates")
    assert "no head, neuron or subhead" in mistake("align", llama, gpt2, "--of", "L1")
    assert "'OTHER'" in mistake("align", llama)
    save("gpt2", tmp_path)
    assert "no token in common" in mistake("align", llama, tmp_path)
