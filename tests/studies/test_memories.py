"""memories against sets of tokens from transformers' own last step, and its rules both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.studies import find, memories
from lexray.studies.memories import RANKS, Memories
from tests.studies.recorded import (
    NAMES,
    PROMPT,
    K,
    model,
    of_outputs,
    prompts_file,
    score,
    top,
    traced,
    written,
)
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize("contribution", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str, contribution: bool) -> None:
    found = memories.compare(model(name), PROMPT, Memories(k=K, contribution=contribution))
    trace, firsts, attended = traced(name), [], []
    for layer in trace.layers:
        recorded, outputs = trace[layer], of_outputs(name, layer)
        n_heads, n_kv = recorded.z.shape[1], recorded.v.shape[1]
        for h in range(n_heads):
            head = top(name, written(name, layer, h, recorded.z[-1, h]))
            attention = recorded.pattern[h, -1].double().tolist()
            values = written(name, layer, h, recorded.v[:, h * n_kv // n_heads])
            seen = [i for i, weight in enumerate(attention) if weight > 0]
            size = {
                i: attention[i] * (float(values[i].norm()) if contribution else 1) for i in seen
            }
            order = sorted(seen, key=lambda i: -size[i])
            firsts.append(order[0] == 0)
            attended.append(attention[order[0]])
            chosen = [*order[:3], order[-1]] if len(order) > 3 else order
            expected = [score(top(name, values[i]), head) for i in chosen]
            missing = [None] * (4 - len(chosen))
            assert found["head"][layer][h] == pytest.approx([*expected, *missing])
            for kind, output in outputs.items():
                expected = [score(top(name, values[i]), output) for i in chosen]
                assert found[kind][layer][h] == pytest.approx([*expected, *missing])
    assert found["first_token"] == pytest.approx(sum(firsts) / len(firsts))
    assert found["best_attention"] == pytest.approx(sum(attended) / len(attended), rel=1e-4)


def test_means(tmp_path: Path) -> None:
    """A prompt without a fourth value counts where it has some."""
    texts = ("ab", "law city abc x y")
    options = {"k": K, "prompts": prompts_file(tmp_path, *texts)}
    numbers = find("memories")(worded("gpt2"), **options).numbers
    parts = [
        memories.compare(model("gpt2"), PROMPT.__class__(text), Memories(k=K)) for text in texts
    ]
    first = torch.tensor([[[head[0] for head in layer] for layer in p["head"]] for p in parts])
    assert numbers["by_rank"]["1st"] == pytest.approx(first.mean((0, 2)).tolist())
    least = torch.tensor([[head[3] for head in layer] for layer in parts[1]["head"]])
    assert numbers["by_rank"]["least"] == pytest.approx(least.mean(1).tolist())
    assert numbers["by_head"]["1st"][1] == pytest.approx(first[:, 1].mean(0).tolist())


def test_the_rules_both_ways() -> None:
    best = {"attention": 0.5, "first_token": 0.1}

    def verdicts(*means: float, first: float, contribution: bool = False) -> list[str]:
        curves = {rank: [m, m, m, m] for rank, m in zip(RANKS, means, strict=True)}
        curves["1st"][0] = first
        heads = torch.tensor(means, dtype=torch.float64).expand(4, 3, 4)
        options = Memories(contribution=contribution)
        found = memories.findings(curves, heads, best, options)
        assert all(("norm" in f.claim) == contribution for f in found)
        return [f.verdict for f in found]

    assert verdicts(0.5, 0.4, 0.3, 0.2, first=0.3) == ["holds"] * 3
    bad = ["does not hold"] * 3
    assert verdicts(0.2, 0.4, 0.3, 0.5, first=0.9, contribution=True) == bad
    none = float("nan")
    short = verdicts(0.5, none, none, none, first=0.1)
    assert short == ["not testable", "not testable", "holds"]
