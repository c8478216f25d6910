"""Quantised GGUF files: values are gguf's own, a part costs its own bytes, transformers agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, PreTrainedModel

from lexray import scratch
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.linear import Linear
from lexray.model.embedding import unembedding
from lexray.model.model import Model
from lexray.model.open import shipped_path
from tests.families import oracles, zoo
from tests.families.gguf.variants import LLAMA, Q8_0, opened, squeezed, stored, wide
from tests.families.gguf.writer import Converted, convert, quantisable
from tests.families.oracles import IDS, ORACLES, parameters

MOE = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
}
QUANTISED: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: wide("llama-biased-tied", **LLAMA),
    "mixtral": lambda: wide("mixtral", **LLAMA),
    "qwen2-moe": lambda: wide("qwen2-moe", **LLAMA, **MOE),
    "gemma3": lambda: wide("gemma3", **LLAMA, head_dim=32),
    "phi3": lambda: wide("phi3", **LLAMA),
    "gpt2": lambda: wide("gpt2", n_embd=96),
    "bloom": lambda: wide("bloom", hidden_size=96),
    "falcon": lambda: wide("falcon-new", hidden_size=192, ffn_hidden_size=64),
    "stablelm": lambda: wide("stablelm-parallel", **LLAMA),
}


@pytest.fixture(scope="module", params=QUANTISED)
def small(request: pytest.FixtureRequest) -> Converted:
    return convert(QUANTISED[request.param]())


def test_quantised_parameters_are_gguf_s_own(small: Converted, tmp_path: Path) -> None:
    """Q8_0 read by us equals Q8_0 unpacked by the `gguf` package, then read as F32."""
    model = opened(small.save(tmp_path / "q8_0.gguf", Q8_0))
    unpacked = {
        name: torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(tensor.contiguous().numpy(), Q8_0), Q8_0)
        )
        if quantisable(tensor, Q8_0)
        else tensor
        for name, tensor in small.tensors.items()
    }
    assert sum(not torch.equal(unpacked[n], small.tensors[n]) for n in unpacked) > 5
    expected = opened(replace(small, tensors=unpacked).save(tmp_path / "f32.gguf"))
    for (name, ours), (_, theirs) in zip(parameters(model), parameters(expected), strict=True):
        assert (ours is None) == (theirs is None), name
        assert ours is None or torch.equal(ours, theirs), name


def test_an_embedding_is_unpacked_once(small: Converted, tmp_path: Path) -> None:
    """For all who look at it at a time; what a user gets is the user's own."""
    model = opened(small.save(tmp_path / "q8_0.gguf", Q8_0))
    rows, before = unembedding(model), model.checkpoint.bytes_read
    assert unembedding(model.view("raw")) is rows
    assert model.checkpoint.bytes_read == before
    mine = model.view("raw").W_U
    mine.zero_()
    assert torch.equal(unembedding(model), rows)
    assert torch.equal(model.unembedding(slice(3, 5)), rows[3:5])
    assert bool(rows.any())
    del rows
    assert bool(unembedding(model).any())
    assert model.checkpoint.bytes_read > before


def test_a_large_embedding_lies_in_a_file(
    small: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made of it, and what is copied of it for a filter that admits few tokens."""
    path = small.save(tmp_path / "q8_0.gguf", Q8_0)
    held = opened(path).view("raw")
    few = torch.arange(1, len(held.unembedding()), 3)
    expected = held.unembedding(), held.space.writing.only(few).rows
    monkeypatch.setattr(scratch, "HELD", 0)
    monkeypatch.setattr(scratch, "PART", 1000)
    model = opened(path).view("raw")
    made = unembedding(model), model.space.writing.only(few).rows
    for ours, theirs in zip(made, expected, strict=True):
        assert scratch._map_of(ours) is not None
        assert torch.equal(ours, theirs)
    assert torch.equal(model.space.writing.only(few[:0]).rows, expected[1][:0])


@pytest.mark.parametrize("kind", [None, Q8_0], ids=["F32", "Q8_0"])
def test_a_head_costs_its_own_bytes(
    small: Converted, kind: GGMLQuantizationType | None, path: Path
) -> None:
    model = opened(small.save(path, kind))
    head_rows = model.d_head * size(model.d_model, kind)
    head_columns = model.d_model * size(model.d_head, kind)
    for head in (model.layers[1].heads[0], model.layers[1].heads[-1]):
        for name, heads, index in (
            ("W_Q", head.spec.q, head.index),
            ("W_K", head.spec.k, head.kv_index),
            ("W_V", head.spec.v, head.kv_index),
        ):
            assert heads.linear.cost(model.checkpoint, outputs=heads.outputs(index)) == head_rows
            assert spent(model, partial(getattr, head, name)) == head_rows
        inputs = slice(head.index * model.d_head, (head.index + 1) * model.d_head)
        assert head.spec.o.cost(model.checkpoint, inputs=inputs) == head_columns
        assert spent(model, partial(getattr, head, "W_O")) == head_columns


def size(n: int, kind: GGMLQuantizationType | None) -> int:
    """The bytes of n weights: four each, or 34 for a block of 32."""
    return n * 4 if kind is None else n // 32 * 34


def spent(model: Model, read: Callable[[], Any]) -> int:
    before = model.checkpoint.bytes_read
    read()
    return model.checkpoint.bytes_read - before


def test_an_expert_costs_its_own_bytes(path: Path) -> None:
    model = opened(convert(QUANTISED["mixtral"]()).save(path, Q8_0))
    expert = model.layers[1].ff.experts[3]
    one, block = 34, 32
    assert spent(model, lambda: expert.W_in) == 64 * 128 // block * one
    assert spent(model, lambda: expert.W_out) == 64 * 128 // block * one
    neuron = expert.neurons[40]
    assert spent(model, lambda: neuron.W_gate) == 128 // block * one
    assert spent(model, lambda: neuron.W_out) == 128 * one
    w_out: Linear = expert.spec.w_out
    assert w_out.cost(model.checkpoint, inputs=slice(40, 41)) == 128 * one


GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256}
TRANSFORMERS = {
    "gpt2": stored("gpt2", n_positions=1024),
    "bloom": stored("bloom"),
    "llama": stored("llama"),
    "llama-free-head": stored("llama-free-head"),
    "qwen2": stored("qwen2"),
    "qwen3": stored("qwen3", head_dim=128),
    "qwen2-moe": stored(
        "qwen2-moe",
        mlp_only_layers=[],
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    ),
    "qwen3-moe": stored("qwen3-moe", moe_intermediate_size=768),
    "gemma2": stored("gemma2", **GEMMA, final_logit_softcapping=30.0, attn_logit_softcapping=50.0),
    "gemma3": stored("gemma3", **GEMMA, num_hidden_layers=7, layer_types=None),
    "falcon-7b": stored("falcon-7b", ffn_hidden_size=96),
    "stablelm": stored("stablelm"),
}
"""Where the GGUF loader of transformers 5.22 and 5.23 gives the model back that was written.

The later one passes over GPT-2's number of positions and the widths of experts, so these are its
own defaults. Both pass over Llama's biases, rotary scaling, Mixtral's experts, Gemma 2's caps,
StableLM's QK-norms and Falcon's new architecture, and does not know the other architectures.
"""


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_agrees_with_transformers_own_reader(name: str, path: Path) -> None:
    written = zoo.make(TRANSFORMERS[name])
    squeezed(convert(written)).save(path)
    module = read_by_transformers(path)
    with torch.no_grad():
        torch.testing.assert_close(module(IDS).logits, written(IDS).logits)
    model, live = opened(path), Model.from_module(module).view("raw")
    for oracle in ("rotation", "unembedding"):
        ORACLES[oracle](module, live, model)


def read_by_transformers(path: Path) -> PreTrainedModel:
    module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    del module.config.quantization_config  # it was: the weights in memory are plain
    return module.eval()


@pytest.mark.slow
def test_smollm2_agrees_with_transformers_own_reader() -> None:
    try:
        path = shipped_path("smollm2")
    except LexrayError as error:
        pytest.skip(str(error))
    assert path is not None
    model = Model.from_pretrained("smollm2").view("raw")
    header = GGUFCheckpoint(path).bytes_read
    assert model.checkpoint.bytes_read == header, "opening read more than the header"
    module = read_by_transformers(path)
    oracles.unembedding(module, Model.from_module(module).view("raw"), model)
    stems = [f"model.layers.{n}.self_attn" for n in (3, 17)]
    names = [f"{stem}.{x}_proj" for stem in stems for x in "qo"]
    with oracles.recorded(module, *names) as seen:
        weights = oracles.run(module, IDS, output_attentions=True).attentions
    for n, stem in zip((3, 17), stems, strict=True):
        x = seen[f"{stem}.q_proj"][0]
        scores = oracles.attention_scores(model, n, x, list(range(len(x))))
        ours = scores.masked_fill(~oracles.allowed(model, n, len(x)), -torch.inf).softmax(-1)
        oracles.close(ours, weights[n][0])
        oracles.close(oracles.attention_output(model, n, x, ours), seen[f"{stem}.o_proj"][1])
