"""What the studies over prompts are checked against: a trace's tensors, read the long way round.

Logits are transformers' own (final norm and unembedding modules), lists are Python sets, weights
come from the float64 reference.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.model.model import Model
from lexray.studies.shared.prompts import Prompt
from lexray.trace.trace import Trace
from tests.dense import Dense, dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

K = 6
TEXT = "law walking city abc law"
PROMPT = Prompt(TEXT)
NAMES = ["gpt2", "llama", "gemma2"]
"""Biases; shared values and gates; norms behind the sub-blocks, capped logits, windows."""


@cache
def model(name: str) -> Model:
    return worded(name)


@cache
def traced(name: str) -> Trace:
    return model(name).trace(TEXT)


@cache
def weights(name: str) -> Dense:
    return dense(build(name))


def logits(name: str, X: Tensor) -> Tensor:
    """The model's own last step, in float64."""
    module: Any = build(name)
    body = module.base_model
    norms = ("ln_f", "norm", "final_layer_norm")
    norm = next(getattr(body, name) for name in norms if hasattr(body, name))
    with torch.no_grad():
        scores = module.get_output_embeddings()(norm(X.float())).double()
    cap = getattr(module.config, "final_logit_softcapping", None)
    return scores if cap is None else cap * (scores / cap).tanh()


def tops(name: str, X: Tensor, k: int = K) -> list[set[int]]:
    return [set(row.argsort(descending=True)[:k].tolist()) for row in logits(name, X)]


def top(name: str, x: Tensor, k: int = K) -> set[int]:
    return tops(name, x[None], k)[0]


def score(a: set[int], b: set[int]) -> float:
    return len(a & b) / len(a)


def written(name: str, layer: int, head: int, x: Tensor) -> Tensor:
    """Something of a head's width as it is added to the residual stream, up to its scale."""
    block = weights(name).blocks[layer]
    y = x.double() @ block.columns("O", head, False)
    return y if block.attn_post is None else y @ block.attn_post.matrix


def of_outputs(name: str, layer: int) -> dict[str, set[int]]:
    """The lists of the three outputs at the last position."""
    trace = traced(name)
    found = {
        "attention": trace[layer].attn_out,
        "block": trace[layer].resid_post,
        "final": trace[trace.model.n_layers - 1].resid_post,
    }
    return {kind: top(name, x[-1]) for kind, x in found.items()}


def prompts_file(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.txt"
    path.write_text("\n".join(texts or (TEXT, "a city abc", "LAW laws x y z")))
    return path
