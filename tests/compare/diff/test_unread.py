"""What changed and is in no list of words is told, with how far it moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lexray as lx
from lexray.compare.diff import unread
from tests.saved import save

SAID = "in no list of words"


def scale(folder: Path, part: str, factor: float) -> int:
    """Multiplies the tensors with `part` in their names; how many these are."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    chosen = [name for name in tensors if part in name]
    for name in chosen:
        tensors[name] = tensors[name] * factor
    save_file(tensors, path, {"format": "pt"})
    return len(chosen)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gemma3n", "laurel.linear_left"),
        ("qwen3-next", "linear_attn.out_proj"),
        ("deepseek-v3", "kv_a_proj_with_mqa.weight"),
        ("gpt-oss", "sinks"),
        ("gemma4", "layer_scalar"),
    ],
)
def test_it_is_told_by_how_much(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "NUMBERS_AT_ONCE", 7)
    for folder in ("base", "tuned"):
        save(name, tmp_path / folder, dtype=torch.float32)
    assert scale(tmp_path / "tuned", part, 1.25)
    notes = [note for note in lx.diff(tmp_path / "base", tmp_path / "tuned").notes if SAID in note]
    assert len(notes) == 1
    assert f"{part.removesuffix('.weight')}" in notes[0]
    assert "by 25 %" in notes[0]
    assert notes[0].count(" by ") == 1


@pytest.mark.slow
def test_nothing_is_told_of_what_is_the_same_or_listed(tmp_path: Path) -> None:
    for folder in ("base", "tuned"):
        save("gemma3n", tmp_path / folder, dtype=torch.float32)
    assert not any(SAID in note for note in lx.diff(tmp_path / "base", tmp_path / "tuned").notes)
    assert scale(tmp_path / "tuned", "mlp.down_proj", 1.25)
    assert not any(SAID in note for note in lx.diff(tmp_path / "base", tmp_path / "tuned").notes)


def test_of_many_kinds_the_most_moved_are_named(tmp_path: Path) -> None:
    for folder in ("base", "tuned"):
        save("gemma3n", tmp_path / folder, dtype=torch.float32)
    for i, part in enumerate(("altup", "laurel", "per_layer")):
        assert scale(tmp_path / "tuned", part, 1.1 + 0.1 * i)
    (note,) = (n for n in lx.diff(tmp_path / "base", tmp_path / "tuned").notes if SAID in n)
    assert note.count(" by ") == unread.MOST
    assert note.endswith(" more")
    assert note.index("by 30 %") < note.index("by 20 %")
