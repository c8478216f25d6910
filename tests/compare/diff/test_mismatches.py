"""Models that differ in more than their numbers: heads, tokens, depth, strangers."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import nn

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.diff import diff
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.vocabulary.sources import JsonSource
from lexray.vocabulary.vocabulary import Vocabulary
from tests.compare.diff.changing import by_address, changed, embedding, opened
from tests.families.zoo import GPT2, LLAMA, Variant, build, make
from tests.vocabulary.vocabularies import vocabulary


def test_a_classification_head() -> None:
    def change(module: Any) -> None:
        module.classifier = nn.Linear(24, 2)
        module.classifier.weight.copy_(embedding(opened(build("gpt2")))[:, [14, 15]].T)
        module.config.id2label = {0: "bad", 1: "good"}

    base, tuned = changed("gpt2", change)
    found = diff(base, tuned, k=4)
    rows = by_address(found)
    assert set(rows) == {"classifier.weight[0]", "classifier.weight[1]"}
    row = rows["classifier.weight[1]"]
    assert (row.label, row.relative, row.group) == ("good", None, "classifier")
    scores = tuned.checkpoint.read("classifier.weight")[1].double() @ embedding(base)
    assert row.top[0].token.id == int(scores.argmax())
    assert row.top[0].score == pytest.approx(float(scores.max()), rel=1e-4)
    assert any("classifier.weight is new" in note for note in found.notes)
    assert any("no classifier.weight" in note for note in diff(tuned, base).notes)
    moved = copy.deepcopy(tuned.checkpoint._module)  # type: ignore[attr-defined]
    with torch.no_grad():
        moved.classifier.weight[0] += 1
    again = diff(tuned, opened(moved))
    assert [c.address for c in again.changes] == ["classifier.weight[0]"]
    assert again.changes[0].relative is not None


def test_added_tokens() -> None:
    bigger = make(Variant("gpt2", "gpt2", GPT2 | {"vocab_size": 40}))
    state = build("gpt2").state_dict()
    with torch.no_grad():
        for name, tensor in bigger.state_dict().items():
            if name in state and state[name].shape == tensor.shape:
                tensor.copy_(state[name])
        bigger.transformer.wte.weight[:37] = build("gpt2").transformer.wte.weight
        bigger.transformer.wte.weight[4] += 1
    base = opened(build("gpt2"))
    extra = vocabulary(37, ("new1", "new2", "<b>"))
    tuned = Model(ModuleCheckpoint(bigger), vocabulary=extra).view("raw")
    found = diff(base, tuned)
    assert [c.address for c in found.changes] == ["W_E[4]"]
    assert any("3 tokens are only in the tuned model: new1, new2, <b>" in x for x in found.notes)
    back = diff(tuned, base)
    assert [c.address for c in back.changes] == ["W_E[4]"]
    assert any("3 tokens are only in the base model" in x for x in back.notes)


def test_tokens_are_matched_by_text() -> None:
    """The same tokens under other ids."""
    order = torch.randperm(37, generator=torch.Generator().manual_seed(5))
    module = copy.deepcopy(build("gpt2"))
    names = [vocabulary(37)._source.tokens[i] for i in order.tolist()]
    with torch.no_grad():
        module.transformer.wte.weight.copy_(build("gpt2").transformer.wte.weight[order])
        at = order.tolist().index(22)
        module.transformer.wte.weight[at] *= 2
    tokenizer = Tokenizer(BPE({str(name): i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    data = json.dumps(json.loads(tokenizer.to_str())).encode()
    tuned = Model(
        ModuleCheckpoint(module), vocabulary=Vocabulary(JsonSource("moved", lambda: data, None))
    ).view("raw")
    found = diff(opened(build("gpt2")), tuned)
    assert [c.address for c in found.changes] == ["W_E[22]"]
    assert found.changes[0].relative == pytest.approx(1.0, rel=1e-5)
    assert any("another id" in note for note in found.notes)


def test_other_depth() -> None:
    deeper = make(Variant("llama", "llama", LLAMA | {"num_hidden_layers": 3}))
    state = deeper.state_dict()
    with torch.no_grad():
        for name, tensor in build("llama").state_dict().items():
            state[name].copy_(tensor)
        state["model.layers.1.mlp.down_proj.weight"][:, 3] += 1
    for found in (
        diff(opened(build("llama")), opened(deeper)),
        diff(opened(deeper), opened(build("llama"))),
    ):
        assert [c.address for c in found.changes] == ["L1N3.value"]
        assert any("the first 2 are compared" in note for note in found.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rounding_is_no_change(dtype: torch.dtype) -> None:
    def change(module: Any) -> None:
        module.model.layers[0].mlp.down_proj.weight[:, 3] += 1
        module.to(dtype)

    base, tuned = changed("llama", change)
    found = diff(base, tuned)
    assert [c.address for c in found.changes] == ["L0N3.value"]
    short = str(dtype).removeprefix("torch.")
    assert any(short in note and "rounding" in note for note in found.notes)


def test_values_that_are_no_numbers() -> None:
    def change(module: Any) -> None:
        module.model.layers[0].mlp.down_proj.weight[:, 3] = float("nan")

    told = r"tensor model\.layers\.0\.mlp\.down_proj\.weight .* 24 NaN .* first at \[0, 3\]"
    with pytest.raises(LexrayError, match=told):
        diff(*changed("llama", change))


def test_other_neurons() -> None:
    wide = make(Variant("llama", "llama", LLAMA | {"intermediate_size": 22}))
    with torch.no_grad():
        for name, tensor in build("llama").state_dict().items():
            if wide.state_dict()[name].shape == tensor.shape:
                wide.state_dict()[name].copy_(tensor)
    found = diff(opened(build("llama")), opened(wide))
    assert found.changes == ()
    assert any("20 × 24 and 22 × 24" in note for note in found.notes)


def test_strangers() -> None:
    base = opened(build("llama"))
    wide = opened(make(Variant("llama", "llama", LLAMA | {"hidden_size": 32})))
    with pytest.raises(LexrayError, match=r"width 24.*width 32.*lexray align"):
        diff(base, wide)
    with pytest.raises(LexrayError, match="GPT-2"):
        diff(base, opened(build("gpt2")))
    other = Model(ModuleCheckpoint(build("llama")), vocabulary=lx.Vocabulary.numbered(37)).view(
        "raw"
    )
    with pytest.raises(LexrayError, match="share only 0 %"):
        diff(base, other)
    with pytest.raises(LexrayError, match="nor do they share"):
        diff(other, wide)


def test_models_of_two_seeds_are_said_to_be_strangers() -> None:
    other = copy.deepcopy(build("llama"))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter[torch.randperm(len(parameter))].flip(-1))
    found = diff(opened(build("llama")), opened(other), n=2)
    assert any("lexray align" in note for note in found.notes)


def test_questions_that_make_no_sense() -> None:
    base = opened(build("gpt2"))
    with pytest.raises(LexrayError, match="no group 'nonsense' of parameters; there are keys"):
        diff(base, base, groups=["nonsense"])
    with pytest.raises(LexrayError, match="at least 1"):
        diff(base, base, n=0)
