"""The transformers module that lexray fills, against the one transformers loads by itself."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForPreTraining,
    BertModel,
    Gemma3TextConfig,
    GPT2Model,
    PreTrainedModel,
)

from lexray.checkpoint.base import Checkpoint
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.open import shipped_models
from lexray.trace.record.module import module_names
from tests.checkpoint.hub.server import serve
from tests.checkpoint.test_lora import adapted, shake, tiny
from tests.families import zoo
from tests.families.gguf import test_names as gguf_files
from tests.saved import save

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([[5, 11, 3, 29, 36, 7, 20], [8, 1, 30, 2, 17, 16, 4]])
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may ask anyone but this machine."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"asked {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)


def logits(module: Any, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        found: Tensor = module(ids).logits
    return found


def same(ours: Any, theirs: Any, ids: Tensor = IDS) -> None:
    assert not ours.training
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    if ours.config.model_type != "falcon":  # which cannot switch
        ours.set_attn_implementation(theirs.config._attn_implementation)
    torch.testing.assert_close(logits(ours, ids), logits(theirs, ids), atol=1e-5, rtol=0)


@pytest.mark.parametrize("variant", zoo.VARIANTS, ids=str)
def test_every_family(variant: zoo.Variant, tmp_path: Path) -> None:
    save(variant.name, tmp_path)
    theirs = zoo.class_of(variant).from_pretrained(tmp_path)
    ours = Model.from_pretrained(tmp_path).module()
    assert type(ours) is type(theirs)
    same(ours, theirs)
    for (name, mine), (other, his) in zip(
        ours.named_buffers(), theirs.named_buffers(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(mine, his, rtol=0, atol=0)


@pytest.mark.parametrize("variant", zoo.VARIANTS, ids=str)
def test_names_lead_to_the_same_numbers(variant: zoo.Variant, tmp_path: Path) -> None:
    save(variant.name, tmp_path)
    model = Model.from_pretrained(tmp_path)
    module, checkpoint = model.module(), model.checkpoint
    names, parameters = module_names(model, module), module.state_dict()
    assert names.keys() == set(checkpoint.names())
    for name, inner in names.items():
        if "experts" not in name and list(names.values()).count(inner) == 1:
            stored, own = checkpoint.read(name), parameters[inner]
            if (
                variant.name == "nomic-bert" and "Wqkv" in name
            ):  # three parameters, of which the first
                stored = stored[: len(own)]
            torch.testing.assert_close(own, stored, rtol=0, atol=0)


@pytest.mark.parametrize("variant", gguf_files.VARIANTS, ids=str)
def test_gguf(variant: zoo.Variant, tmp_path: Path) -> None:
    file = gguf_files.converted(variant.name).save(tmp_path / "model.gguf")
    same(gguf_files.opened(file).module(), gguf_files.build(variant.name))


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "bert"])
def test_shards_and_bin_files(name: str, tmp_path: Path) -> None:
    module = zoo.build(name)
    module.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    same(Model.from_pretrained(tmp_path / "shards").module(), module)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "config.json").write_bytes(
        (tmp_path / "shards" / "config.json").read_bytes()
    )
    torch.save(module.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    same(Model.from_pretrained(tmp_path / "bin").module(), module)


def test_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = save("qwen3", tmp_path / "repos" / "org" / "tiny")
    with serve(tmp_path / "repos") as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        same(Model.from_pretrained("org/tiny", remote=True).module(), module)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_lora_is_pefts_merged_model(family: str, tmp_path: Path) -> None:
    targets = ["c_attn", "c_fc"] if family == "gpt2" else ["q_proj", "down_proj"]
    base, adapter, peft = adapted(tmp_path, family, target_modules=targets)
    ids = torch.tensor([[1, 5, 12, 3]])
    merged = peft.merge_and_unload().eval()
    same(Model.from_pretrained(base, adapter=adapter).module(), merged, ids)


@pytest.mark.parametrize("task", [TaskType.SEQ_CLS, TaskType.TOKEN_CLS])
def test_adapter_with_a_classifier(task: TaskType, tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "base")
    autos = {
        TaskType.SEQ_CLS: AutoModelForSequenceClassification,
        TaskType.TOKEN_CLS: AutoModelForTokenClassification,
    }
    base = autos[task].from_pretrained(tmp_path / "base", num_labels=3, pad_token_id=0)
    base.name_or_path = str(tmp_path / "base")
    peft = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], task_type=task))
    shake(peft)
    peft.save_pretrained(tmp_path / "adapter")
    assert isinstance(peft, PeftModel)
    adapter = tmp_path / "adapter"
    model = Model.from_pretrained(tmp_path / "base", adapter=adapter, config={"pad_token_id": 0})
    ours = model.module()
    same(ours, peft.merge_and_unload().eval(), torch.tensor([[1, 5, 12, 3]]))
    assert logits(ours, torch.tensor([[1, 5, 12, 3]])).shape[-1] == 3


def test_a_live_module_is_itself() -> None:
    module = zoo.build("llama")
    model = Model.from_module(module)
    assert model.module() is module
    assert model.view(folded=True).module() is module


def test_one_module_for_all_views(tmp_path: Path) -> None:
    save("gpt2", tmp_path)
    model = Model.from_pretrained(tmp_path)
    assert model.view(folded=True).module() is model.module()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
def test_no_second_copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter lies where the checkpoint read it to, and was read once."""
    save(name, tmp_path)
    model = Model.from_pretrained(tmp_path)
    before, places = model.checkpoint.bytes_read, set()
    read = Checkpoint.read_unchecked

    def noted(self: Checkpoint, name: str, *index: slice) -> Tensor:
        tensor = read(self, name, *index)
        places.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(Checkpoint, "read_unchecked", noted)
    parameters = list(model.module().parameters())
    assert {parameter.data_ptr() for parameter in parameters} == places
    size = sum(model.checkpoint.size(name) for name in model.checkpoint.names())
    assert model.checkpoint.bytes_read - before == size


def test_dtypes(tmp_path: Path) -> None:
    save("llama", tmp_path, dtype=torch.bfloat16)
    kept = Model.from_pretrained(tmp_path).module()
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.bfloat16}
    wide = Model.from_pretrained(tmp_path, dtype=torch.float32).module()
    same(wide, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert logits(wide).dtype == torch.float32


def spoil(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "lm_head.weight"),
        ("gpt2", "transformer.ln_f.bias"),
        ("bert", "cls.predictions.transform.dense.weight"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    spoil(tmp_path, lambda tensors: tensors.pop(tensor))
    with pytest.raises(LexrayError, match=f"no tensor (for {tensor}|'{tensor}')"):
        Model.from_pretrained(tmp_path).module()


def test_a_missing_expert_is_noticed(tmp_path: Path) -> None:
    save("mixtral", tmp_path)
    name = "model.layers.0.block_sparse_moe.experts.4.w2.weight"
    spoil(tmp_path, lambda t: t.pop(name))
    with pytest.raises(LexrayError, match=f"no tensor '{name}'"):
        Model.from_pretrained(tmp_path).module()


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path)
    name = "model.layers.0.self_attn.q_proj.bias"
    spoil(tmp_path, lambda tensors: tensors.update({name: torch.ones(24)}))
    with pytest.raises(LexrayError, match=f"no place for {name}"):
        Model.from_pretrained(tmp_path).module()


def test_what_readings_do_not_use_may_be_left_over(tmp_path: Path) -> None:
    """BERT comes with the second head of its pre-training."""
    torch.manual_seed(0)
    both = BertForPreTraining(BertConfig(**zoo.BERT)).eval()
    both.save_pretrained(tmp_path)
    ours = Model.from_pretrained(tmp_path).module()
    with torch.no_grad():
        torch.testing.assert_close(logits(ours), both(IDS).prediction_logits)


def test_a_body_with_a_tied_head_gets_its_head(tmp_path: Path) -> None:
    whole = zoo.build("gpt2")
    body = whole.transformer
    assert isinstance(body, GPT2Model)
    body.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["GPT2Model"]
    same(Model.from_pretrained(tmp_path).module(), whole)


def test_a_body_without_a_head_stays_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    body = BertModel(BertConfig(**zoo.BERT)).eval()
    body.save_pretrained(tmp_path)
    ours: Any = Model.from_pretrained(tmp_path).module()
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS).last_hidden_state, body(IDS).last_hidden_state)


@pytest.mark.parametrize("inside", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_multimodal_checkpoint(inside: str, tmp_path: Path) -> None:
    whole: PreTrainedModel = zoo.build("gemma3")
    assert isinstance(whole.config, Gemma3TextConfig)
    tensors = {
        name.replace("model.", inside, 1): tensor.clone()
        for name, tensor in whole.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(tensors | {"vision_tower.patch.weight": torch.ones(3)}, tmp_path / WEIGHTS)
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": whole.config.to_dict(),
        "vision_config": {"hidden_size": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    same(Model.from_pretrained(tmp_path).module(), whole)


def test_the_sentiment_model_has_no_final_norm() -> None:
    model = Model.from_pretrained("demo-sentiment", dtype=torch.float32)
    theirs = AutoModelForTokenClassification.from_pretrained(
        shipped_models()["demo-sentiment"], dtype=torch.float32
    ).eval()
    with_norm = logits(theirs)
    theirs.transformer.ln_f = nn.Identity()
    same(model.module(), theirs)
    assert (logits(model.module()) - with_norm).abs().max() > 0.01


def test_identity_without_a_norm_is_refused(tmp_path: Path) -> None:
    save("olmo", tmp_path)
    config = {"lexray_final_norm": "identity"}
    with pytest.raises(LexrayError, match="no final norm with a gain"):
        Model.from_pretrained(tmp_path, config=config).module()


def test_code_of_the_author_is_not_run(tmp_path: Path) -> None:
    module = save("llama", tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
    path.write_text(json.dumps(config))
    same(Model.from_pretrained(tmp_path).module(), module)


def test_another_types_checkpoint_is_run_as_its_family(tmp_path: Path) -> None:
    module = save("llama", tmp_path)
    config = {"model_type": "my_llama", "architectures": ["MyLlama"]}
    model = Model.from_pretrained(tmp_path, family="llama", config=config)
    same(model.module(), module)


def test_senseless_configs_are_refused(tmp_path: Path) -> None:
    save("gpt2", tmp_path)
    with pytest.raises(LexrayError, match="config"):
        Model.from_pretrained(tmp_path, config={"attn_pdrop": "much"}).module()
