"""sim-k against sets of tokens made from transformers' own tensors, and its rule both ways."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.studies import find, sim_k
from lexray.studies.sim_k import PAIRS
from tests.dense import dense
from tests.families.span import spanning
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

K = 6


def lists(V: Tensor, E: Tensor, absolute: bool) -> list[set[int]]:
    scores = V @ E
    return [set((s.abs() if absolute else s).argsort(descending=True)[:K].tolist()) for s in scores]


def mean_jaccard(X: Tensor, Y: Tensor, E: Tensor, absolute: bool) -> float:
    both = zip(lists(X, E, absolute), lists(Y, E, absolute), strict=True)
    values = [len(a & b) / len(a | b) for a, b in both]
    return sum(values) / len(values)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_against_its_own_tensors(name: str, absolute: bool) -> None:
    reference = dense(build(name))
    E = reference.E_out
    found = find("sim-k")(worded(name), k=K, n=0, absolute=absolute).numbers["groups"]
    for layer, block in enumerate(reference.blocks):
        unit = block.units[0]
        want = {"FF key and value": (unit.key.T, unit.value)}
        if unit.gate is not None:
            want["FF gate and value"] = unit.gate.T, unit.value
        for title, a, b in (
            ("W_V and W_O subheads", "V", "O"),
            ("W_Q and W_K subheads", "Q", "K"),
        ):
            heads = range(block.n_heads)
            X = torch.cat([block.columns(a, h, False).T for h in heads])  # type: ignore[arg-type]
            Y = torch.cat(
                [
                    block.columns(b, h, False) if b == "O" else block.columns(b, h, False).T
                    for h in heads
                ]
            )  # type: ignore[arg-type]
            want[title] = X, Y
        assert set(found) == set(want)
        for title, (X, Y) in want.items():
            assert found[title]["layers"][layer] == layer
            mean = mean_jaccard(X, Y, E, absolute)
            assert found[title]["aligned"][layer] == pytest.approx(mean, abs=1e-9)
            assert found[title]["pairs"] == len(X) * len(reference.blocks)


@spanning
def test_every_family(name: str) -> None:
    model = worded(name)
    result = find("sim-k")(model, k=5, n=9)
    gated = any(ff.spec.w_gate is not None for ff in model.layers[0].feed_forwards)
    assert ("FF gate and value" in result.numbers["groups"]) == gated
    assert len(result.findings) == 3 + gated
    for group in result.numbers["groups"].values():
        assert all(0 <= value <= 1 for value in group["aligned"] + group["shuffled"])
        assert group["pairs"] <= 9 * model.n_layers


def test_a_neuron_that_writes_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are their own values agree with these, and not with the others'."""
    module = build("gpt2")
    kept = {name: p.detach().clone() for name, p in module.named_parameters() if "mlp.c_" in name}
    with torch.no_grad():
        for n in range(2):
            mlp = module.get_submodule(f"transformer.h.{n}.mlp")
            mlp.c_fc.weight.copy_(mlp.c_proj.weight.T)
    try:
        result = find("sim-k")(worded("gpt2"), k=K, n=0)
    finally:
        with torch.no_grad():
            for name, value in kept.items():
                module.get_parameter(name).copy_(value)
    group = result.numbers["groups"]["FF key and value"]
    assert group["aligned"] == [1.0, 1.0]
    assert max(group["shuffled"]) < 0.3
    assert result.findings[0].verdict == "holds"


def test_the_seed_decides() -> None:
    study, model = find("sim-k"), worded("gpt2")
    assert study(model, k=K, n=8, seed=1).numbers == study(model, k=K, n=8, seed=1).numbers
    assert study(model, k=K, n=8, seed=1).numbers != study(model, k=K, n=8, seed=2).numbers


def test_a_vocabulary_that_is_too_small() -> None:
    with pytest.raises(LexrayError, match="37"):
        find("sim-k")(worded("gpt2"), k=37)


def similar(aligned: list[float], shuffled: list[float], error: float) -> sim_k.Similar:
    n = len(aligned)
    return {
        "layers": list(range(n)),
        "aligned": aligned,
        "shuffled": shuffled,
        "mean_aligned": sum(aligned) / n,
        "mean_shuffled": sum(shuffled) / n,
        "standard_error": error,
        "pairs": 100,
    }


def test_the_rule_both_ways() -> None:
    first, second, third, _ = PAIRS
    groups = {
        first: similar([0.3, 0.3, 0.3], [0.1, 0.1, 0.1], 0.01),
        second: similar([0.12, 0.12], [0.1, 0.1], 0.01),
        third: similar([0.9, 0.1, 0.1], [0.1, 0.1, 0.1], 0.01),
    }
    found = {f.claim.partition(":")[0]: f.verdict for f in sim_k.findings(groups)}
    assert found == {
        first: "holds",
        second: "does not hold",
        third: "does not hold",
        "W_Q and W_K subheads": "not testable",
    }
