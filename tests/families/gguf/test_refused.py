"""GGUF files that are refused: what they are, what is missing, whom they resemble."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.gguf.variants import build, called, converted, opened
from tests.families.gguf.writer import Converted
from tests.families.oracles import ORACLES


@pytest.mark.parametrize(
    ("architecture", "kind", "says"),
    [
        ("clip", "mmproj", "turns pictures or sounds into vectors"),
        ("clip", "model", "turns pictures into vectors"),
        ("llama", "adapter", "a LoRA adapter in llama.cpp's format"),
        ("llama", "imatrix", "a list of how much each weight mattered"),
    ],
)
def test_files_that_are_no_models_say_what_they_are(
    architecture: str, kind: str, says: str, path: Path
) -> None:
    Converted(architecture, {"general.type": kind}, {"v.blk.0.ln1.bias": torch.ones(3)}).save(path)
    with pytest.raises(LexrayError, match=f"{says}.*open the GGUF file of the model itself"):
        opened(path)


def test_companions_in_a_folder_are_named_and_left(tmp_path: Path) -> None:
    converted("llama").save(tmp_path / "tiny-Q8_0.gguf")
    converted("gpt2").save(tmp_path / "mmproj-tiny-f16.gguf")
    converted("gpt2").save(tmp_path / "tiny.imatrix.gguf")
    model = Model.from_pretrained(tmp_path)
    assert model.family.name == "llama"
    assert "mmproj-tiny-f16.gguf, tiny.imatrix.gguf" in " ".join(model.checkpoint.notes)
    for part in (1, 2):
        converted("gpt2").save(tmp_path / f"tiny-F16-{part:05}-of-00002.gguf")
    with pytest.raises(LexrayError) as error:
        Model.from_pretrained(tmp_path)
    assert "2 GGUF models (tiny-F16-00001-of-00002.gguf in 2 parts, tiny-Q8_0.gguf)" in str(
        error.value
    )


def test_an_unknown_architecture_is_told_whom_it_resembles(path: Path) -> None:
    called(converted("llama"), "brandnew").save(path)
    with pytest.raises(LexrayError) as error:
        opened(path)
    assert "'brandnew'" in str(error.value)
    assert "It resembles 'llama', whose names are those of 18 of its 18" in str(error.value)
    assert "family='llama' (--family llama)" in str(error.value)
    module = build("llama")
    tried = Model.from_pretrained(path, family="llama").view("raw")
    for oracle in ("OV", "rotation", "FF", "unembedding"):
        ORACLES[oracle](module, Model.from_module(module).view("raw"), tried)


def test_an_unknown_architecture_is_not_forced_into_a_family(path: Path) -> None:
    called(converted("olmo2"), "brandnew").save(path)
    with pytest.raises(LexrayError, match=r"nor as one of the family 'opt'.*It resembles"):
        Model.from_pretrained(path, family="opt")
    with pytest.raises(LexrayError, match="unknown family 'nonsense'"):
        Model.from_pretrained(path, family="nonsense")


@pytest.mark.parametrize("architecture", ["mamba", "gptj"])
def test_unknown_architectures_are_refused_by_name(architecture: str, path: Path) -> None:
    Converted(architecture, {}, {"token_embd.weight": torch.zeros(3, 4)}).save(path)
    with pytest.raises(LexrayError) as error:
        opened(path)
    assert repr(architecture) in str(error.value)
    assert "falcon, falcon-h1, gemma, gemma-embedding, gemma2" in str(error.value)
    assert "Try the model's safetensors" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "llama-yarn",
        "mixtral",
        "qwen2-moe",
        "gemma2",
        "phi3",
        "gpt2",
        "neox",
        "falcon-7b",
        "cohere2",
        "deepseek-v3",
        "qwen3.5",
        "qwen3-next",
        "granite4",
        "jamba",
        "nemotron-h",
        "lfm2-moe",
        "falcon-h1",
        "gpt-oss",
        "exaone4",
        "glm",
        "ernie-moe",
        "dbrx",
        "glm5",
        "mistral4",
        "minicpm3",
        "mimo2",
        "gemma4",
        "gemma4-moe",
        "kimi-linear",
    ],
)
def test_missing_or_senseless_metadata(name: str, path: Path) -> None:
    """Any key may be missing, of another type or absurd: it is refused by name, or does no harm."""
    whole = converted(name)
    keys = [key for key in whole.metadata if key.startswith(f"{whole.architecture}.")]
    for key in keys:
        for value in (None, "seven", 0, 2**32 - 1, [2, 2], -1.5):
            metadata = whole.metadata | {key: value}
            spoilt = {k: v for k, v in metadata.items() if v is not None}
            replace(whole, metadata=spoilt).save(path)
            said = refusal(path)
            assert said is None or key in said or "metadata" in said, f"{key} = {value}: {said}"


def refusal(path: Path) -> str | None:
    try:
        opened(path)
    except LexrayError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama", "block_count"),
        ("llama", "embedding_length"),
        ("llama", "attention.head_count"),
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("mixtral", "feed_forward_length"),
        ("mixtral", "expert_count"),
        ("mixtral", "expert_used_count"),
        ("neox", "rope.dimension_count"),
        ("phi", "rope.dimension_count"),
        ("stablelm", "rope.dimension_count"),
        ("cohere", "logit_scale"),
        ("cohere2", "attention.sliding_window"),
    ],
)
def test_needed_metadata_is_asked_for_by_name(name: str, key: str, path: Path) -> None:
    lacking = converted(name)
    del lacking.metadata[lacking.key(key)]
    lacking.save(path)
    with pytest.raises(LexrayError, match=f"lacks the metadata {lacking.key(key)}"):
        opened(path)


def test_sizes_per_layer_are_refused(path: Path) -> None:
    uneven = converted("llama")
    uneven.metadata["llama.attention.head_count_kv"] = [2, 1]
    uneven.save(path)
    with pytest.raises(LexrayError, match=r"llama\.attention\.head_count_kv differs from layer"):
        opened(path)


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        ("llama", "blk.0.attn_q.scale", "blk.0.attn_q.scale has 24 factors"),
        ("llama", "blk.0.attn_norm_2.scale", "blk.0.attn_norm_2.scale, which lexray does not know"),
        ("qwen3-moe", "blk.0.ffn_up_shexp.weight", "ffn_up_shexp.weight should be a matrix"),
        ("qwen3-moe", "blk.0.ffn_down_shexp.weight", "ffn_down_shexp.weight, which.*qwen3moe"),
        ("llama", "blk.1.attn_sinks.weight", "blk.1.attn_sinks.weight, which lexray does not know"),
        ("llama", "blk.2.attn_q.weight", "blk.2.attn_q.weight, which lexray does not know"),
    ],
)
def test_unknown_tensors_are_refused(name: str, tensor: str, says: str, path: Path) -> None:
    strange = converted(name)
    strange.tensors[tensor] = torch.ones(24)
    strange.save(path)
    with pytest.raises(LexrayError, match=says):
        opened(path)


def test_a_mixture_without_a_router_is_no_mixture(path: Path) -> None:
    """Its config tells experts that none of its tensors knows."""
    whole = converted("llama4")
    for name in [name for name in whole.tensors if "ffn_gate_inp" in name]:
        del whole.tensors[name]
    whole.save(path)
    with pytest.raises(LexrayError, match="called llama4, but nothing in it tells its num_experts"):
        opened(path)
