"""What experts' neurons did, held against the coefficients that transformers' own pass gave."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families.activation import activation
from lexray.model.model import Model
from lexray.trace.evidence.gather import expert_activity, strongest
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

MIXTURES = ("mixtral", "olmoe", "qwen2-moe", "llama4", "gemma4-moe")


@pytest.mark.parametrize("name", MIXTURES)
def test_an_experts_gates_times_keys_are_its_coefficients(name: str) -> None:
    """act(gate) · key, times the routing weight unless it was in the input, is what is added."""
    model = Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(37))
    trace = model.trace(list(range(2, 20)), special=False)
    layer = next(trace[i] for i in trace.layers if trace[i].experts is not None)
    did = layer.experts
    assert did is not None
    act = activation(layer.spec.ff.experts[0].activation)
    for expert in did.chosen.unique().tolist():
        key, gate, value = (expert_activity(layer, expert, k, [3, 0]) for k in KINDS)
        reached = (did.chosen == expert).any(1)
        assert reached.any()
        assert (key[~reached] == -torch.inf).all()
        assert (value[~reached] == 0).all()
        weight = (did.weights * (did.chosen == expert)).sum(1, keepdim=True)
        scale = torch.ones_like(weight) if name == "llama4" else weight
        scale = scale if did.scale is None else scale * did.scale
        expected = (act(gate) * key * scale)[reached]
        torch.testing.assert_close(value[reached], expected, atol=1e-5, rtol=1e-4)


KINDS = ("key", "gate", "value")


def test_a_shared_experts_neurons_read_every_token() -> None:
    model = Model(ModuleCheckpoint(build("qwen2-moe")), vocabulary=vocabulary(37))
    layer = model.trace(list(range(2, 20)), special=False)[0]
    key, gate, value = (expert_activity(layer, None, k, [1, 4]) for k in KINDS)
    did = layer.experts
    assert did is not None
    assert did.shared_weight is not None
    expected = silu(gate) * key * did.shared_weight[:, None]
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)


def test_what_was_not_active_is_not_among_the_strongest() -> None:
    active = torch.tensor([0.0, -torch.inf, 2.0, -1.0, 0.0, 3.0, -torch.inf, 0.0])
    assert strongest(active).nonzero()[:, 0].tolist() == [2, 5]
