"""Many heads at once: the same factors and pairs as one by one, whichever are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lexray import filters
from lexray.model import sweep
from lexray.model.circuits import Circuit
from lexray.model.model import Model
from lexray.model.sweep import each_top, multiply
from tests.families.zoo import build

NAMES = ["gpt2", "llama", "qwen3", "gemma3", "mixtral", "falcon-7b"]
"""All heads their own, shared keys and values, QK-norms, wide heads, experts, one shared head."""


def circuits(model: Model) -> list[Circuit]:
    return [c for layer in model.layers for head in layer.heads for c in (head.vo, head.qk)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", ["raw", "standard"])
def test_the_same_factors(name: str, view: str) -> None:
    model = Model.from_module(build(name)).view(view)
    only = filters.among(range(0, model.space.n_rows, 3))
    for circuit in circuits(model):
        for filter in (None, only):
            n = len(model.layers[circuit.head.layer].heads)
            ours = multiply(circuit, range(n), filter)[circuit.head.index]
            for mine, its in zip(ours, circuit.factors(filter, filter), strict=True):
                torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5 * float(its.abs().max()))


@pytest.mark.parametrize("most", [1, 2**20])
def test_the_same_pairs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MOST_BYTES", most)
    model = Model.from_module(build("llama"))
    options: dict[str, Any] = {"sign": "absolute", "exclude_same": True, "filter": filters.ascii}
    for circuit, found in zip(
        circuits(model), each_top(circuits(model), 7, **options), strict=True
    ):
        alone = circuit.top(7, **options)
        assert found.source == alone.source
        assert (found.matrix, found.sign, found.note) == (alone.matrix, alone.sign, alone.note)
        assert [p.score for p in found] == pytest.approx([p.score for p in alone], rel=1e-5)


def test_the_same_bits_whichever_are_asked_for() -> None:
    model = Model.from_module(build("llama"))
    every = list(each_top(circuits(model), 5))
    some = list(each_top(circuits(model)[3:4], 5)) + list(each_top(circuits(model)[-1:], 5))
    assert some == [every[3], every[-1]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_on_any_number_of_cores(threads: int) -> None:
    model = Model.from_module(build("llama"))
    mixed = circuits(model)[::-1]
    every = list(each_top(mixed, 5))
    parts = [(str(c.head.address), c.matrix) for c in mixed]
    assert [(pairs.source.address, pairs.matrix) for pairs in every] == parts
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = []
        for pairs in each_top(mixed, 5):
            assert torch.get_num_threads() == threads
            found.append(pairs)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found == every


def test_whoever_has_enough_may_leave() -> None:
    model = Model.from_module(build("llama"))
    threads = torch.get_num_threads()
    found = each_top(circuits(model), 5)
    first = next(found)
    found.close()
    assert torch.get_num_threads() == threads
    assert first == next(each_top(circuits(model), 5))
