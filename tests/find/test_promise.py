"""Where heads are said to look, held against the queries and keys of transformers' own pass."""

from __future__ import annotations

import pytest
import torch

from lexray.find.promise import Looks
from lexray.model.model import Model
from tests.families.zoo import VARIANTS, build

IDS = [5, 9, 2, 30, 11, 7, 7, 3]


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_scores_are_those_of_turned_queries_and_keys(name: str) -> None:
    """Whatever turns them, its factors and gains: q · k as the pass has them once turned, but for
    one number for each query (Mistral's temperature), which changes no order."""
    model = Model.from_module(build(name)).view("raw")
    layer = next(x for x in model.layers if not x.spec.attention.absent)
    head, trace = layer.heads[1], model.trace(IDS, special=False)[layer.index]
    q, k = trace.q[:, 1].double(), trace.k[:, head.kv_index].double()
    turned = trace.q_rotated[:, 1].double() @ trace.k_rotated[:, head.kv_index].double().T
    rows = [x / x.norm(dim=1, keepdim=True) for x in (Looks(head).score(q, k), turned.tril())]
    assert torch.allclose(*rows, atol=1e-5)


def test_factors_are_each_tokens_own() -> None:
    model = Model.from_module(build("llama")).view("raw")
    head = model["L1H2"]
    A, B = Looks(head).factors(IDS)
    E = model.W_U.T[IDS].double()
    assert torch.allclose(A, E @ head.W_Q.double(), atol=1e-6)
    assert torch.allclose(B, E @ head.W_K.double(), atol=1e-6)
