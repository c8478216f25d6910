"""What is read: adapters by their factors, and never more than a layer at a time."""

from __future__ import annotations

import gc
import warnings
import weakref
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from peft import LoraConfig, get_peft_model
from torch import Tensor

from lexray.checkpoint.base import Box
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.diff import diff
from lexray.compare.diff.result import Diff
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.open import open_source
from tests.families.gguf.writer import convert
from tests.families.zoo import LLAMA, Variant, build, make
from tests.saved import words, write_tokenizer
from tests.vocabulary.vocabularies import vocabulary

GROUPS = ["Q", "V", "O", "values", "VO"]
TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}


def adapted(folder: Path, name: str, **options: Any) -> tuple[Path, Path, Path]:
    """Folders of a base, an adapter and the merged model."""
    module = deepcopy(build(name))
    module.save_pretrained(folder / "base")
    write_tokenizer(folder / "base", words(37))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS[name], **options)
        peft = get_peft_model(module, config)
        torch.manual_seed(2)
        for parameter in peft.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn_like(parameter) / 4
        peft.save_pretrained(folder / "adapter")
        peft.merge_and_unload().save_pretrained(folder / "merged")
    write_tokenizer(folder / "merged", words(37))
    return folder / "base", folder / "adapter", folder / "merged"


def assert_same(a: Diff, b: Diff) -> None:
    ours, theirs = ({c.address: c for c in x.changes} for x in (a, b))
    assert set(ours) == set(theirs)
    for address, change in ours.items():
        other = theirs[address]
        assert change.absolute == pytest.approx(other.absolute, rel=1e-3)
        assert change.relative == pytest.approx(other.relative, rel=1e-3)
        assert [s.score for s in change.top] == pytest.approx(
            [s.score for s in other.top], rel=1e-2, abs=1e-4
        )
        assert [p.score for p in change.pairs] == pytest.approx(
            [p.score for p in other.pairs], rel=1e-2, abs=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "folded"),
    [({}, False), ({}, True), ({"use_dora": True}, False)],
    ids=["lora", "folded", "dora"],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_adapter_equals_the_merged_model(
    tmp_path: Path, name: str, options: dict[str, Any], folded: bool
) -> None:
    base, adapter, merged = adapted(tmp_path, name, **options)
    first = Model.from_pretrained(base).view("raw").view(folded=folded)
    found, expected = (diff(first, x, n=2000, k=1) for x in (adapter, merged))
    assert len(found.changes) > 50
    assert_same(found, expected)


def test_an_adapter_is_read_by_its_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it leaves alone is read, and no changed matrix is ever made."""
    base, adapter, _ = adapted(tmp_path, "llama")
    first = Model.from_pretrained(base).view("raw")
    tuned = Model.from_pretrained(base, adapter=adapter).view("raw")
    read: list[str] = []
    for checkpoint, label in (
        (first.checkpoint, ""),
        (tuned.checkpoint, "tuned "),
        (tuned.checkpoint.base, "under "),  # type: ignore[attr-defined]
    ):

        def watched(
            name: str, *index: slice, plain: Any = checkpoint.read_unchecked, label: str = label
        ) -> Tensor:
            read.append(label + name)
            return plain(name, *index)  # type: ignore[no-any-return]

        monkeypatch.setattr(checkpoint, "read_unchecked", watched)
    before = tuned.checkpoint.base.bytes_read  # type: ignore[attr-defined]
    found = diff(first, tuned, groups=["keys", "gates", "values", "Q", "K", "V", "O", "norms"])
    assert {c.group for c in found.changes} == {"Q", "V", "values"}
    touched = ("q_proj", "v_proj", "down_proj")
    unread = [name for name in read if not any(x in name for x in touched)]
    # the embedding that reads the differences, and both, which tell what training never touched
    assert set(unread) == {"lm_head.weight", "model.embed_tokens.weight"}
    assert not [name for name in read if name.startswith(("tuned ", "under "))]
    assert tuned.checkpoint.base.bytes_read == before  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_adapter_on_another_base(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, "llama")
    tuned = Model.from_pretrained(base, adapter=adapter).view("raw")
    with pytest.raises(LexrayError, match="adapter itself"):
        diff(tuned, adapter)
    back = diff(tuned, base, n=2000, k=1, groups=GROUPS)
    there = diff(base, adapter, n=2000, k=1, groups=GROUPS)
    assert {c.address for c in back.changes} == {c.address for c in there.changes}


def test_an_adapter_of_the_embedding(tmp_path: Path) -> None:
    """Its rows' lengths come from the factors too."""
    TARGETS["gpt2"].append("wte")
    try:
        base, adapter, _ = adapted(tmp_path, "gpt2")
    finally:
        TARGETS["gpt2"].remove("wte")
    tuned = Model.from_pretrained(base, adapter=adapter).view("raw")
    found = diff(base, tuned, n=2000, groups=["embedding"])
    delta = (tuned.W_E - Model.from_pretrained(base).view("raw").W_E).double()
    assert len(found.changes) == 37
    for change in found.changes:
        assert change.token is not None
        expected = float(delta[change.token.id].norm())
        assert change.absolute == pytest.approx(expected, rel=1e-4)


class Watched(ModuleCheckpoint):
    """Copies what is read, and knows how much of it is still alive."""

    alive = 0
    peak = 0

    def _read(self, name: str, box: Box) -> Tensor:
        tensor = super()._read(name, box).clone()
        size = tensor.numel() * tensor.element_size()
        Watched.alive += size
        Watched.peak = max(Watched.peak, Watched.alive)
        weakref.finalize(tensor.untyped_storage(), _freed, size)
        return tensor


def _freed(size: int) -> None:
    Watched.alive -= size


@pytest.mark.slow
def test_one_layer_at_a_time() -> None:
    """With more layers, no more is held."""
    peaks = []
    for layers in (2, 5):
        sizes = LLAMA | {"num_hidden_layers": layers, "intermediate_size": 400}
        module = make(Variant("llama", "llama", sizes))
        other = deepcopy(module)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        gc.collect()
        Watched.alive = Watched.peak = 0
        base, tuned = (
            Model(Watched(x), vocabulary=vocabulary()).view("raw") for x in (module, other)
        )
        assert diff(base, tuned, n=3, k=2).moved > 0
        peaks.append(Watched.peak)
        whole = sum(p.numel() * 4 for p in module.parameters())
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < whole / 2


@pytest.mark.parametrize("kind", [None, GGMLQuantizationType.F16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_another_container(tmp_path: Path, name: str, kind: Any) -> None:
    """A GGUF file, whose tensors have other names, an order of their own and another dtype."""
    module = deepcopy(build(name))
    base = Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary()).view("raw")
    with torch.no_grad():
        value = "transformer.h.1.mlp.c_proj" if name == "gpt2" else "model.layers.1.mlp.down_proj"
        weight = module.get_submodule(value).weight
        (weight if name == "gpt2" else weight.T)[5] += 1
    path = convert(module).save(tmp_path / "model.gguf", kind)
    tuned = Model(open_source(path), vocabulary=vocabulary()).view("raw")
    found = diff(base, tuned)
    assert [change.address for change in found.changes] == ["L1N5.value"]
    assert any("rounding" in note for note in found.notes) is (kind is not None)
