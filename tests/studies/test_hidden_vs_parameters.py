"""hidden-vs-parameters against sets of tokens and the float64 reference, and its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.studies import find
from lexray.studies import hidden_vs_parameters as study
from lexray.studies.hidden_vs_parameters import GROUPS, SIDES, HiddenVsParameters, Pool
from lexray.studies.shared.active import TopLists
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, keep_in
from tests.studies.recorded import PROMPT, K, model, prompts_file, tops, traced, weights
from tests.vocabulary.vocabularies import worded

M = 3
ALL = {"k": K, "m": M, "positions": 0}


FEW = ["gptj", "opt-350m", "bloom", "qwen2-moe", "gemma3", "olmo2", "bert"]
"""Parallel blocks, projections around the stream, ALiBi, experts, norms at the end, an encoder."""


def coefficients(name: str, layer: int, p: int) -> list[tuple[float, str, int, int]]:
    """(coefficient, group, unit or head, place) of everything that wrote at a position."""
    recorded, block = traced(name)[layer], weights(name).blocks[layer]
    found = []
    did = recorded.experts
    if did is None:
        assert recorded.coefficients is not None
        found += [(float(c), "ff", 0, i) for i, c in enumerate(recorded.coefficients[p])]
    else:
        for slot, expert in enumerate(did.chosen[p].tolist()):
            weight = float(did.weights[p, slot])
            both = enumerate(did.coefficients[p, slot].tolist())
            found += [(weight * c, "ff", expert, i) for i, c in both]
        if did.shared_coefficients is not None:
            weight = 1.0 if did.shared_weight is None else float(did.shared_weight[p])
            both = enumerate(did.shared_coefficients[p].tolist())
            found += [(weight * c, "ff", len(block.units) - 1, i) for i, c in both]
    for h in range(block.n_heads):
        found += [(float(c), "attention", h, i) for i, c in enumerate(recorded.z[p, h])]
    return found


def vector(name: str, layer: int, group: str, owner: int, place: int) -> Tensor:
    block = weights(name).blocks[layer]
    match group:
        case "FF keys":
            return block.units[owner].key[:, place]
        case "FF gates":
            gate = block.units[owner].gate
            assert gate is not None
            return gate[:, place]
        case "FF values":
            return block.units[owner].value[place]
        case "W_V":
            return block.columns("V", owner, False)[:, place]
        case _:
            return block.columns("O", owner, False)[place]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral", "qwen2-moe"])
def test_a_prompt(name: str, absolute: bool) -> None:
    options = HiddenVsParameters(**ALL, absolute=absolute, same_layer=True)
    lists = TopLists(model(name), K, both_ends=absolute)
    found = study.compare(model(name), PROMPT, options, lists, None)
    trace, E = traced(name), weights(name).E_out
    final = tops(name, trace[trace.model.n_layers - 1].resid_post)
    gated = weights(name).blocks[0].units[0].gate is not None
    assert set(found) == set(GROUPS) - (set() if gated else {"FF gates"})
    for layer in trace.layers:
        hidden = tops(name, trace[layer].resid_post)
        for group in found:
            part = "attention" if group in ("W_V", "W_O") else "ff"
            covered: dict[str, list[float]] = {"layer": [], "final": []}
            for p in range(len(trace)):
                own = [c for c in coefficients(name, layer, p) if c[1] == part]
                own.sort(key=lambda c: -(abs(c[0]) if absolute else c[0]))
                union: set[int] = set()
                for c, _, owner, place in own[:M]:
                    x = vector(name, layer, group, owner, place)
                    scores = (-x if absolute and c < 0 else x) @ E
                    union |= set(scores.argsort(descending=True)[:K].tolist())
                covered["layer"].append(len(hidden[p] & union) / K)
                covered["final"].append(len(final[p] & union) / K)
            for target, values in covered.items():
                mean = sum(values) / len(values)
                assert found[group][target]["aligned"][layer] == pytest.approx(mean)


def test_lists_are_the_same_when_they_are_remembered() -> None:
    options = HiddenVsParameters(**ALL, same_layer=True)
    lists = TopLists(model("llama"), K, both_ends=False)
    other = Prompt("a city abc LAW")
    study.compare(model("llama"), other, options, lists, None)
    fresh = TopLists(model("llama"), K, both_ends=False)
    again = study.compare(model("llama"), PROMPT, options, lists, None)
    assert again == study.compare(model("llama"), PROMPT, options, fresh, None)


def test_the_control_inside_the_layer() -> None:
    """Of two positions, each meets the other's hidden state."""
    options = HiddenVsParameters(**ALL, same_layer=True)
    lists = TopLists(model("gpt2"), K, both_ends=False)
    text = Prompt("ab")
    trace = model("gpt2").trace(text.text)
    assert len(trace) == 2
    found = study.compare(model("gpt2"), text, options, lists, None)
    for layer in trace.layers:
        hidden = tops("gpt2", trace[layer].resid_post)
        active = study.active_vectors(trace, options)["FF values"]
        named = lists.of("value", active)[layer]
        scores = [len(hidden[1 - p] & set(named[p].flatten().tolist())) / K for p in (0, 1)]
        assert found["FF values"]["layer"]["random"][layer] == pytest.approx(sum(scores) / 2)


def test_the_pool_draws_every_state_as_often() -> None:
    def done(ids: list[int], states: int) -> Done:
        return Done(PROMPT, {"lists": [[i] for i in ids], "states": states})

    pool = Pool.of([done([1, 2], 20), done([3, 4, 5, 6], 60)])
    drawn = pool.draw(8000, torch.Generator().manual_seed(0)).flatten().bincount()
    assert len(pool) == 6
    assert drawn[1:3].sum() / 8000 == pytest.approx(0.25, abs=0.02)
    assert (drawn[1:] / 8000).tolist() == pytest.approx([1 / 8] * 2 + [3 / 16] * 4, abs=0.02)


def test_the_pool_holds_hidden_states() -> None:
    options = HiddenVsParameters(**ALL)
    found = study.some_states(model("gpt2"), PROMPT, options)
    trace = traced("gpt2")
    every = [s for layer in trace.layers for s in tops("gpt2", trace[layer].resid_post)]
    assert found["states"] == len(every)
    assert all(set(ids) in every for ids in found["lists"])


def test_the_whole_study(tmp_path: Path) -> None:
    run, path = find("hidden-vs-parameters"), prompts_file(tmp_path)
    place = tmp_path / "x.prompts.jsonl"
    with keep_in(place):
        first = run(worded("gpt2"), **ALL, prompts=path)
        lines = len(place.read_text().splitlines())
        again = run(worded("gpt2"), **ALL, prompts=path, final=True)
        assert len(place.read_text().splitlines()) == lines == 6
        fewer = run(worded("gpt2"), **ALL, prompts=path, limit=2)
    assert first.numbers == again.numbers
    assert fewer.numbers["pool"] < first.numbers["pool"]
    assert first.plot() != again.plot()
    assert len(first.findings) == 2 * (4 + 2 * 4)
    assert fewer.numbers == run(worded("gpt2"), **ALL, prompts=path, limit=2).numbers


@pytest.mark.parametrize("name", FEW)
def test_every_family(name: str, tmp_path: Path) -> None:
    path = prompts_file(tmp_path, "law city abc", "a walking")
    opened = worded(name)
    numbers = find("hidden-vs-parameters")(opened, k=5, positions=3, prompts=path).numbers
    for groups in numbers["groups"].values():
        for found in groups.values():
            assert len(found["aligned"]) == opened.n_layers
            assert all(0 <= x <= 1 for x in [*found["aligned"], *found["random"]])


def test_the_rule_both_ways() -> None:
    def summary(aligned: float, random: float, error: float | None) -> dict[str, Any]:
        return {
            "aligned": [aligned] * 3,
            "mean_aligned": aligned,
            **{side: [random] * 3 for side in SIDES},
            **{f"mean_{side}": random for side in SIDES},
            **{f"error_{side}": error for side in SIDES},
        }

    groups = {
        "FF keys": summary(0.3, 0.1, 0.01),
        "FF values": summary(0.12, 0.1, 0.01),
        "W_V": summary(0.3, 0.1, None),
    }
    verdicts = [f.verdict for f in study.findings(groups, "layer")]
    assert verdicts[:4] == ["holds", "does not hold", "not testable", "not testable"]
    assert verdicts[4:] == ["holds", "does not hold", "not testable"] * 2


def test_random_vectors_are_of_the_kind_and_of_the_layer() -> None:
    """Each list that is drawn is that of a vector of the kind, and of the layer where asked."""
    options = HiddenVsParameters(**ALL)
    lists = TopLists(model("llama"), K, both_ends=False)
    size = (model("llama").n_layers, 3, M)
    generator = torch.Generator().manual_seed(0)
    drawn = study.random_vectors(model("llama"), "value", lists, options, size, generator)
    E = weights("llama").E_out
    known = [
        {frozenset((v @ E).argsort(descending=True)[:K].tolist()) for v in block.units[0].value}
        for block in weights("llama").blocks
    ]
    for layer in range(size[0]):
        for found in drawn["neighbours"][layer].reshape(-1, K).tolist():
            assert frozenset(found) in known[layer]
        for found in drawn["anywhere"][layer].reshape(-1, K).tolist():
            assert any(frozenset(found) in some for some in known)
