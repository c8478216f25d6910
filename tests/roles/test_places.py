"""Heads that look one place back and pairs that find what followed, planted in every structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from lexray.families.relative import DistanceVectors
from lexray.families.spec import Architecture, Attention, Block
from lexray.roles.catalogue import Catalogue, catalogue
from lexray.roles.induction import induction
from lexray.roles.patterns import pattern
from tests.families.span import spanning
from tests.roles.planting import fresh, plant_pair, plant_previous

BY_CHANCE = {"nemotron-h": ["copying"]}
"""At q < 0.01 one model in a hundred has something."""


def why_not(a: Architecture, spec: Attention) -> str | None:
    """Why no weights that are written here make this attention look one place back."""
    norms = [
        own for norm in (spec.q_norm, spec.k_norm) if norm for own in (norm.joint, *norm.heads)
    ]
    if isinstance(spec.relative, DistanceVectors):
        return "distances have vectors of their own, and nothing else tells positions"
    if spec.rotary is None and a.positions is None and a.sinusoids is None and not spec.alibi:
        return "states hold no positions: there are none, or they stand in tables of distances"
    if spec.alibi:
        return "ALiBi takes least from the token itself, so the one before it never comes first"
    if spec.clip is not None:
        return f"queries and keys are clamped to ±{spec.clip}, which leaves all scores alike"
    if spec.cap is not None and spec.cap < 5:
        return f"scores are capped at {spec.cap}, where many places are level"
    if any(own is not None and own.gain is None for own in norms):
        return "queries and keys are normed without gains, which leaves all scores alike"
    return None


@spanning
def test_a_planted_head_that_looks_one_place_back(name: str) -> None:
    """By rotation, learned positions or calculated ones; norms before, after and around."""
    model = fresh(name)
    blocks = model.architecture.blocks
    plain = found_in(catalogue(model, measure=False), blocks[0].attention)
    assert plain == BY_CHANCE.get(name, [])
    turned = [n for n, block in enumerate(blocks) if block.attention.rotary is not None]
    layer = turned[-1] if turned else len(blocks) - 1
    if reason := why_not(model.architecture, blocks[layer].attention):
        pytest.skip(reason)
    if model.architecture.unrolled:
        pytest.skip("all layers have the planted weights")
    found = catalogue(plant_previous(model, layer, 1), measure=False)
    scores = {entry.address: entry.looks.previous for entry in found.entries}
    planted = f"L{layer}H1"
    again = {f"L{n}H1" for n in shared(blocks, layer)}
    assert max(scores, key=lambda address: scores[address]) in again
    (role,) = [r for r in found[planted].roles if r.name == "previous token"]
    assert role.q < 0.01
    assert role.score > 0.4 > role.chance
    others = {entry.address for entry in found.having("previous token")} - again
    assert len(others) <= 1  # one that shares its keys may follow


@spanning
def test_a_planted_induction_pair(name: str) -> None:
    """The first head moves a code of each token; the second one's queries are the same code."""
    model = fresh(name)
    heads = [str(head.address) for layer in model.layers for head in layer.heads]
    looked = [0.9 if address == "L0H1" else 0.01 for address in heads]
    last = model.n_layers - 1
    if model.architecture.unrolled:
        pytest.skip("all layers have the planted weights")
    before, _ = induction(model, looked)
    again = plant_pair(model, (0, 1), (last, 2))
    through, _ = induction(again, looked)
    best = max(range(len(heads)), key=lambda i: through[i].effect)
    found = through[best]
    assert heads[best] in {f"L{n}H2" for n in shared(model.architecture.blocks, last)}
    assert found.mover == "L0H1"
    assert found.z > 3.5
    assert found.effect > 1.5 * max(match.effect for match in before)


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "qwen2-moe", "neox", "bert", "olmo2", "falcon-7b"]
)
def test_both_of_a_pair_are_found_by_themselves(name: str) -> None:
    """The head that looks back by its looks, the one that finds by what the other moves."""
    model = fresh(name)
    last = model.n_layers - 1
    found = catalogue(plant_pair(plant_previous(model, 0, 1), (0, 1), (last, 2)), measure=False)
    assert "L0H1" in [entry.address for entry in found.having("previous token")]
    effects = {entry.address: entry.induction.effect for entry in found.entries}
    assert max(effects, key=lambda address: effects[address]) == f"L{last}H2"
    assert found[f"L{last}H2"].induction.mover == "L0H1"


def shared(blocks: Sequence[Block], layer: int) -> list[int]:
    """The layers that have the same weights: one, but for ALBERT."""
    return [n for n, block in enumerate(blocks) if block.attention == blocks[layer].attention]


def found_in(found: Catalogue, spec: Attention) -> list[str]:
    """All roles of all heads; ALiBi by itself looks at the token itself."""
    roles = [role.name for entry in found.entries for role in entry.roles]
    return [role for role in roles if not (spec.alibi and role == "current token")]


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
