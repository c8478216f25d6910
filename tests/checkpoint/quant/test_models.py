"""Whole quantised models: everything reads and runs as from the same weights de-quantised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lexray as lx
from lexray.model.info import info
from lexray.model.model import Model
from tests.checkpoint.quant.writers import FORMATS, write

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
CASES = [*(f"llama {form}" for form in FORMATS), "qwen3 fp8", "gpt_oss mxfp4"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quantised")
    for case in CASES:
        kind, form = case.split()
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES | (EXPERTS if kind == "gpt_oss" else {}))
        model = AutoModelForCausalLM.from_config(config).eval()
        write(model, form, root / f"{kind} {form}", root / f"{kind} {form} plain")
    return root


def both(folders: Path, case: str) -> tuple[Model, Model]:
    return Model.from_pretrained(folders / case), Model.from_pretrained(folders / f"{case} plain")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_readings_are_those_of_the_plain_weights(folders: Path, case: str) -> None:
    one, other = both(folders, case)
    assert set(one.checkpoint.names()) == set(other.checkpoint.names())
    for name in other.checkpoint.names():
        torch.testing.assert_close(
            one.checkpoint.read(name), other.checkpoint.read(name), rtol=1e-6, atol=1e-8
        )
    for part in ("W_Q", "W_K", "W_V", "W_O"):
        found = getattr(one["L1H3"], part)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, getattr(other["L1H3"], part), rtol=1e-6, atol=1e-8)
    pairs = one["L1H3"].vo.top(10), other["L1H3"].vo.top(10)
    assert str(pairs[0].to_pandas()) == str(pairs[1].to_pandas())
    neuron = "L1E2N7" if "gpt_oss" in case else "L1N7"
    lists = [model[neuron].value.top(5) for model in (one, other)]
    assert lists[0].tokens == lists[1].tokens
    assert str(lists[0].to_pandas()) == str(lists[1].to_pandas())


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_that_of_the_plain_weights(folders: Path, case: str) -> None:
    one, other = both(folders, case)
    found, expected = (model.trace([3, 1, 4, 1, 5]) for model in (one, other))
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_head_costs_little_and_info_says_so(folders: Path, case: str) -> None:
    one, other = both(folders, case)
    found, plain = info(one), info(other)
    assert found.bytes < plain.bytes
    assert found.n_parameters == plain.n_parameters
    checkpoint, quantised = one.checkpoint, one.checkpoint.quantised()
    stored = {checkpoint.info(name).stored for name in quantised}
    assert len(stored) == 1
    assert stored <= {parameter["dtype"] for parameter in found.parameters}
    assert f" {len(quantised)} as {stored.pop()}; read as" in found.traits["weights"]
    before = checkpoint.bytes_read
    one.view("raw")["L0H1"].W_Q  # noqa: B018
    read = checkpoint.bytes_read - before
    size = checkpoint.size("model.layers.0.self_attn.q_proj.weight")
    assert 0 < read <= size / 4 + 64 * 4 + 128  # a quarter, act-order and tables


def test_a_quantised_base_takes_an_adapter(folders: Path, tmp_path: Path) -> None:
    """As QLoRA is trained."""
    from peft import LoraConfig, get_peft_model

    plain = AutoModelForCausalLM.from_pretrained(folders / "llama nf4 plain", dtype=torch.float32)
    adapted = get_peft_model(plain, LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    adapted.save_pretrained(tmp_path)
    found = Model.from_pretrained(folders / "llama nf4", adapter=tmp_path)
    merged = adapted.merge_and_unload().get_parameter("model.layers.1.self_attn.q_proj.weight")
    torch.testing.assert_close(
        found.checkpoint.read("model.layers.1.self_attn.q_proj.weight"), merged.detach()
    )


def test_an_older_checkpoint_says_it_beside_its_weights(folders: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "m"
    shutil.copytree(folders / "llama gptq", folder)
    config = json.loads((folder / "config.json").read_text())
    said = config.pop("quantization_config")
    said.pop("quant_method")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        lx.LexrayError, match=r"look like those of AWQ or GPTQ, .*quantization_conf"
    ):
        Model.from_pretrained(folder).view("raw")
    (folder / "quantize_config.json").write_text(json.dumps(said))
    name = "model.layers.1.mlp.down_proj.weight"
    expected = Model.from_pretrained(folders / "llama gptq").checkpoint.read(name)
    assert Model.from_pretrained(folder).checkpoint.read(name).equal(expected)
