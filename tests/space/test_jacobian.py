"""The Jacobian of prediction heads, against autograd through transformers' own module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lexray.errors import LexrayError
from lexray.families import HeadTransform
from lexray.space.jacobian import mean_jacobian
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

HEADS = {
    "bert": lambda m: m.cls.predictions.transform,
    "roberta": lambda m: (
        lambda x: m.lm_head.layer_norm(torch.nn.functional.gelu(m.lm_head.dense(x)))
    ),
    "modernbert": lambda m: m.head,
    "albert": lambda m: (
        lambda x: m.predictions.LayerNorm(m.predictions.activation(m.predictions.dense(x)))
    ),
    "electra": lambda m: m.generator_predictions,
}


@pytest.mark.parametrize("name", HEADS)
def test_it_is_autograds_mean(name: str) -> None:
    model = worded(name)
    x = model.typical_inputs()[:7]
    transform: Any = HEADS[name](build(name))
    each = [torch.autograd.functional.jacobian(transform, row.float()) for row in x]
    theirs = torch.stack(each).mean(0).T  # (inputs, outputs)
    torch.testing.assert_close(mean_jacobian(model, x), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert"])
def test_values_are_read_through_it(name: str) -> None:
    """Scores of a value are v J E, with J at what reaches the head in a text."""
    model = worded(name).view(head="jacobian")
    J = mean_jacobian(model, model.typical_inputs()).double()
    E = model.unembedding().double()
    value = model["L1N3"].W_out.double()
    scores = value @ J @ E.T
    found = model["L1N3"].value.top(4)
    assert [s.token.id for s in found.top] == scores.topk(4).indices.tolist()
    assert [s.score for s in found.top] == pytest.approx(scores.topk(4).values.tolist(), rel=1e-3)
    plain = model.view(head="decoder")["L1N3"].value.top(4)
    assert [s.score for s in plain.top] != pytest.approx([s.score for s in found.top], rel=1e-2)
    assert "through the head's Jacobian" in str(found)


def test_a_small_step_moves_the_logits_by_it() -> None:
    """At one input: the head's own change of logits, for a small step."""
    model = worded("bert")
    x = model.typical_inputs()[:1].double()
    head = model.architecture.head
    assert isinstance(head, HeadTransform)
    step = 1e-4 * torch.linspace(-1, 1, model.d_model).double()
    E = model.unembedding().double()
    moved = (head(x + step, model.checkpoint) - head(x, model.checkpoint)) @ E.T
    J = mean_jacobian(model, x).double()
    torch.testing.assert_close(step @ J @ E.T, moved[0], rtol=1e-2, atol=1e-6)


def test_models_with_linear_heads_have_none() -> None:
    with pytest.raises(LexrayError, match="no prediction head that is not linear"):
        worded("llama").view(head="jacobian")
