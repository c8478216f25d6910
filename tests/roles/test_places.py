"""Heads that look at a fixed place, planted in models of every kind of positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from lexray.model.model import Model
from lexray.roles.catalogue import catalogue
from lexray.roles.patterns import pattern, states_of
from tests.roles.planting import fresh, reopened, write_head

ROTARY = ["llama", "neox", "mixtral", "qwen3"]
"""Grouped queries, parallel blocks, experts, norms of queries and keys."""


def plant(model: Model, layer: int, head: int, back: int) -> None:
    """All tokens look alike to it; its keys are turned so that they answer `back` places on."""
    module = model.checkpoint.module  # type: ignore[attr-defined]
    spec = model.architecture.blocks[layer].attention
    shared = torch.zeros(model.d_model)
    shared[0], shared[1] = 60.0, -60.0  # what all tokens have in common, also behind a LayerNorm
    with torch.no_grad():
        module.get_input_embeddings().weight.add_(shared)
        for norm in (spec.q_norm, spec.k_norm):
            owners = () if norm is None else (norm.joint, *norm.heads)
            for name in {own.gain for own in owners if own is not None and own.gain}:
                module.get_parameter(name).mul_(6)
    seen = reopened(model).view(folded=True)
    common = states_of(seen, torch.arange(20), first=layer == 0).double().mean(0)
    r = model.d_head
    k = torch.zeros(r, dtype=torch.float64)
    k[: r // 2] = 1.0
    assert spec.rotary is not None
    q = spec.rotary.turn(k[None, None], torch.tensor([-back]))[0, 0].double()
    W = common / (common @ common)
    gain = seen.architecture.blocks[layer].attention.pre_norm
    g = None if gain is None else gain.read_gain(seen.checkpoint)
    W = W if g is None else W / g
    write_head(model, layer, head, Q=6 * W[:, None] * q, K=6 * W[:, None] * k)


@pytest.mark.parametrize("name", ROTARY)
def test_a_planted_rotary_head(name: str) -> None:
    model = fresh(name)
    assert catalogue(model, measure=False).having("previous token") == []
    plant(model, model.n_layers - 1, 2, 1)
    found = catalogue(reopened(model), measure=False)
    scores = {entry.address: entry.looks.previous for entry in found.entries}
    planted = f"L{model.n_layers - 1}H2"
    assert max(scores, key=lambda address: scores[address]) == planted
    assert scores[planted] > 0.2
    if name in ("llama", "qwen3"):  # of few frequencies the first comes round again behind
        (role,) = [r for r in found[planted].roles if r.name == "previous token"]
        assert role.q < 0.01


def test_slopes_alone() -> None:
    """Where all tokens are alike, ALiBi's weights fall by one factor from place to place."""
    model = fresh("bloom").view(folded=True)
    slopes = build_alibi_tensor(torch.ones(1, 2), model.n_heads, torch.float64)
    for head in model.layers[1].heads:
        found = pattern(head, torch.zeros(20, model.d_model), causal=True)
        factor = np.exp(-float(slopes[head.index, 0, 1]))
        rows = torch.arange(10, 20)
        for back in range(8):
            ratio = found[rows, rows - back - 1] / found[rows, rows - back]
            np.testing.assert_allclose(ratio, factor, rtol=1e-5)
