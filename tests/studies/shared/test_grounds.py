"""What is measured, on structures that `demo` does not have."""

from __future__ import annotations

import pytest
import torch

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.model.model import Model
from lexray.studies.shared.grounds import Amount, Grounds, _strengths
from lexray.view import RAW, STANDARD
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

ASKED = {
    "key": {"sees", "expects"},
    "gate": {"sees", "expects"},
    "value": {"follows", "causes"},
}


def grounds(name: str) -> Grounds:
    model = Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(37))
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(2, 37, (8, 20), generator=generator).tolist()
    return Grounds(model, texts, {"raw": RAW, "standard": STANDARD}, Amount(12, 12, 2, 2))


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "llama"])
@pytest.mark.parametrize("kind", ASKED)
def test_experts_neurons_are_asked_what_others_are(name: str, kind: str) -> None:
    found = grounds(name).measure(0, kind)
    assert found.keys() == ASKED[kind]
    for views in found.values():
        assert views.keys() == {"raw", "standard"}
        for cell in views.values():
            known = [x for x in cell["areas"] if x is not None]
            assert len(known) >= 6
            assert all(0 <= x <= 1 for x in known)


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "llama4", "llama"])
def test_what_neurons_add_is_what_the_feed_forward_writes(name: str) -> None:
    own = grounds(name)
    for layer in range(own.model.n_layers):
        W = torch.cat([g.tensor for g in own.model.view("raw").layers[layer].groups("value")])
        for trace in own._traces(layer)[:2]:
            added = _strengths(trace, layer, "value", torch.arange(len(W))) @ W.float()
            torch.testing.assert_close(added, trace[layer].mlp_write, atol=1e-4, rtol=1e-3)


def test_what_is_removed_is_what_a_neuron_of_an_expert_added() -> None:
    own = grounds("mixtral")
    traces = own._traces(1)
    jobs = own._plan_writers(1, "value", traces)
    rows = own.model.view("raw").layers[1].groups("value")
    W = torch.cat([group.tensor for group in rows])
    W = W / W.norm(dim=1, keepdim=True)
    assert len(jobs) > 12
    for job in jobs:
        along = (W @ (job.removal.vector / job.removal.vector.norm())).abs()
        assert float(along.max()) == pytest.approx(1, abs=1e-5)
