"""What a sweep is said to hold is what it holds at most, and not many times as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import lexray as lx
from lexray.model.need import TOKEN
from lexray.model.plan import Speed, plan_heads
from lexray.model.sweep import each_top
from tests.find.test_bounded import Allocated
from tests.saved import words, write_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 3000},
    "tied": {
        "hidden_size": 128,
        "num_attention_heads": 8,
        "head_dim": 16,
        "vocab_size": 6000,
        "tie_word_embeddings": True,
    },
    "wide heads": {
        "hidden_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "vocab_size": 12000,
    },
    "many heads": {
        "hidden_size": 64,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 32,
        "vocab_size": 6000,
    },
    "wide": {"hidden_size": 512, "num_attention_heads": 4, "head_dim": 64, "vocab_size": 4000},
}
SANE = 2.5


@pytest.mark.slow
@pytest.mark.parametrize(("view", "dtype"), [("raw", torch.float32), ("standard", torch.bfloat16)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_planned_memory_is_an_upper_bound(
    shape: str, dtype: torch.dtype, view: Any, tmp_path: Path
) -> None:
    sizes = {"num_key_value_heads": 2, "tie_word_embeddings": False} | SHAPES[shape]
    width = sizes["hidden_size"]
    config = LlamaConfig(intermediate_size=2 * width, num_hidden_layers=2, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, words(sizes["vocab_size"] - 10))
    model = lx.Model.from_pretrained(tmp_path).view(view)
    plan = plan_heads(model, speed=Speed(1e9, 1e9))
    heads = (head for layer in model.layers for head in layer.heads)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what other threads allocate is not seen
    try:
        with Allocated() as memory:
            for _ in each_top((c for head in heads for c in (head.vo, head.qk)), 20):
                pass
    finally:
        torch.set_num_threads(threads)
    tensors = plan.memory - TOKEN * sizes["vocab_size"]
    assert memory.most <= tensors <= SANE * memory.most


def test_more_cores_hold_more() -> None:
    model = lx.Model.from_pretrained("demo")
    one, two = (plan_heads(model, speed=Speed(1e9, 1e9, cores)).memory for cores in (1, 2))
    assert one < two < 2 * one
