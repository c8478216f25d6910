"""Live modules: the tensors themselves, whatever they are wrapped in, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.checkpoint.opening import open_checkpoint
from lexray.errors import LexrayError
from tests.checkpoint.test_lora import ATTENTION, assert_merged, shake, tiny

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_disk_equals_memory(tmp_path: Path, family: str) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    disk, memory = open_checkpoint(tmp_path), ModuleCheckpoint(model)
    assert set(disk.names()) <= set(memory.names())
    for name in disk.names():
        assert disk.info(name).shape == memory.info(name).shape
        assert disk.info(name).dtype == memory.info(name).dtype
        assert disk.read(name).equal(memory.read(name))
    assert disk.config["model_type"] == memory.config["model_type"] == family


def test_names_are_those_of_the_state_dict_and_nothing_is_copied() -> None:
    model = tiny("gpt2")
    checkpoint = ModuleCheckpoint(model)
    state = model.state_dict()
    assert set(checkpoint.names()) == set(state)
    for name, tensor in state.items():
        found = checkpoint.read(name)
        assert found.data_ptr() == tensor.data_ptr()
        assert not found.requires_grad
    part = checkpoint.read("transformer.wte.weight", slice(2, 4))
    assert part.data_ptr() == model.transformer.wte.weight[2:].data_ptr()
    assert checkpoint.read("lm_head.weight").data_ptr() == model.transformer.wte.weight.data_ptr()


def test_slices_are_counted() -> None:
    checkpoint = ModuleCheckpoint(tiny("llama"))
    assert checkpoint.bytes_read == 0
    checkpoint.read("lm_head.weight", slice(0, 2))
    assert checkpoint.bytes_read == 2 * 8 * 4


def test_it_follows_the_model() -> None:
    model = tiny("llama")
    checkpoint = ModuleCheckpoint(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(7)
    assert checkpoint.read("model.norm.weight").unique().tolist() == [7]


def test_persistent_buffers_only() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.ones(2))
    module.register_buffer("passing", torch.ones(2), persistent=False)
    module.inner = nn.BatchNorm1d(2)
    assert set(ModuleCheckpoint(module).names()) == set(module.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, torch.compile, lambda m: torch.compile(nn.DataParallel(m))]
)
def test_wrappers_are_seen_through(wrap: Any) -> None:
    model = tiny("llama")
    checkpoint = ModuleCheckpoint(wrap(model))
    assert set(checkpoint.names()) == set(model.state_dict())
    assert checkpoint.config["model_type"] == "llama"


@pytest.mark.slow
def test_compiled_layers() -> None:
    model = tiny("llama")
    names = set(model.state_dict())
    model.model.layers[1] = torch.compile(model.model.layers[1])
    assert set(ModuleCheckpoint(model).names()) == names


def lora(family: str, **options: Any) -> Any:
    options = {"target_modules": ATTENTION[family], "r": 3, "lora_alpha": 5} | options
    model = get_peft_model(tiny(family), LoraConfig(**options))
    shake(model)
    return model


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
    ],
)
def test_lora_is_merged_on_reading(family: str, options: dict[str, Any]) -> None:
    model = lora(family, **options)
    checkpoint = ModuleCheckpoint(model)
    assert set(checkpoint.names()) == set(tiny(family).state_dict())
    assert_merged(checkpoint, model)


def test_lora_on_embeddings_and_biases() -> None:
    model = lora("llama", target_modules=["embed_tokens"])
    assert_merged(ModuleCheckpoint(model), model)
    model = lora("llama", target_modules=["q_proj"], lora_bias=True)
    assert_merged(ModuleCheckpoint(model), model)


def test_an_adapted_head_is_no_longer_tied() -> None:
    model = lora("gpt2", target_modules=["wte"])
    checkpoint = ModuleCheckpoint(model)
    assert checkpoint.config["tie_word_embeddings"] is False
    assert not checkpoint.read("lm_head.weight").equal(checkpoint.read("transformer.wte.weight"))
    assert checkpoint.read("lm_head.weight").equal(tiny("gpt2").lm_head.weight)


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}])
def test_disabled_and_merged_adapters(options: dict[str, Any]) -> None:
    model, plain = lora("llama", **options), tiny("llama").state_dict()
    with model.disable_adapter():
        checkpoint = ModuleCheckpoint(model)
        assert all(checkpoint.read(name).equal(plain[name]) for name in plain)
    checkpoint = ModuleCheckpoint(model)
    model.merge_adapter()
    name = "model.layers.0.self_attn.q_proj.weight"
    inner = model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    assert checkpoint.read(name).data_ptr() == inner.data_ptr()
    assert not checkpoint.read(name).equal(plain[name])


def test_adapters_added_by_transformers() -> None:
    model = tiny("llama")
    model.add_adapter(LoraConfig(target_modules=["q_proj"], r=2))
    shake(model)
    checkpoint = ModuleCheckpoint(model)
    layer = model.model.layers[0].self_attn.q_proj
    expected = layer.base_layer.weight + layer.get_delta_weight("default")
    found = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (IA3Config(target_modules=["k_proj"], feedforward_modules=[]), "type .*IA3"),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), "type .*PROMPT_TUNING"),
    ],
)
def test_other_adapters_are_refused(config: Any, complaint: str) -> None:
    model = get_peft_model(tiny("llama"), config)
    with pytest.raises(LexrayError, match=complaint):
        ModuleCheckpoint(model)


def test_injected_ia3_and_two_adapters_at_once_are_refused() -> None:
    injected = get_peft_model(
        tiny("llama"), IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    )
    with pytest.raises(LexrayError, match="not plain LoRA"):
        ModuleCheckpoint(injected.base_model.model)
    model = lora("llama")
    model.add_adapter("second", LoraConfig(target_modules=["q_proj"], r=2))
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(LexrayError, match=r"default.*second.*merge_and_unload"):
        ModuleCheckpoint(model)


def test_the_adapter_in_use_is_read() -> None:
    model = lora("llama", target_modules=["q_proj"])
    model.add_adapter("second", LoraConfig(target_modules=["q_proj"], r=2))
    model.set_adapter("second")
    shake(model)
    checkpoint = ModuleCheckpoint(model)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    expected = layer.base_layer.weight + layer.get_delta_weight("second")
    found = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
    assert torch.allclose(found, expected, atol=1e-6)


def test_meta_tensors_are_refused() -> None:
    with pytest.raises(LexrayError, match=r"model\.embed_tokens\.weight .* meta device"):
        ModuleCheckpoint(tiny("llama").to("meta"))


class Params4bit(nn.Parameter):
    """Stands in for the quantised parameters of bitsandbytes."""

    __module__ = "bitsandbytes.nn.modules"


class DTensor(torch.Tensor):
    __module__ = "torch.distributed.tensor"


def test_quantised_and_sharded_parameters_are_refused() -> None:
    model = tiny("llama")
    model.lm_head.weight = Params4bit(torch.ones(3))
    with pytest.raises(LexrayError, match=r"lm_head\.weight .* bitsandbytes.*Params4bit"):
        ModuleCheckpoint(model)
    model.lm_head.weight = nn.Parameter(torch.ones(3).as_subclass(DTensor))
    with pytest.raises(LexrayError, match="DTensor"):
        ModuleCheckpoint(model)
    model.lm_head.weight = nn.Parameter(torch.ones(0))
    model.lm_head.weight.ds_id = 3
    with pytest.raises(LexrayError, match="DeepSpeed or FSDP"):
        ModuleCheckpoint(model)
    model.lm_head = nn.LazyLinear(3)
    with pytest.raises(LexrayError, match="UninitializedParameter"):
        ModuleCheckpoint(model)


def test_modules_without_a_config_or_a_tensor() -> None:
    checkpoint = ModuleCheckpoint(nn.Linear(2, 2))
    assert checkpoint.name == "Linear"
    with pytest.raises(LexrayError, match="a Linear has no config"):
        _ = checkpoint.config
    with pytest.raises(LexrayError, match="no tensor 'w'"):
        checkpoint.read("w")
