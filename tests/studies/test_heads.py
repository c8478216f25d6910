"""heads against sets of tokens from transformers' own last step, and its rules both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.studies import find, heads
from lexray.studies.heads import RANKS
from lexray.studies.shared.last_position import OUTPUTS
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
    weights,
    written,
)
from tests.vocabulary.vocabularies import worded

FEW = ["gptj", "opt-350m", "bloom", "qwen2-moe", "gemma3", "olmo2", "bert"]
"""Parallel blocks, projections around the stream, ALiBi, experts, norms at the end, an encoder."""


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str) -> None:
    found = heads.compare(model(name), PROMPT, K)
    trace = traced(name)
    for layer in trace.layers:
        z, outputs = trace[layer].z[-1], of_outputs(name, layer)
        vectors = [written(name, layer, h, z[h]) for h in range(len(z))]
        order = sorted(range(len(z)), key=lambda h: -float(vectors[h].norm()))
        for kind, output in outputs.items():
            scores = [score(top(name, x), output) for x in vectors]
            assert found["with"][kind][layer] == pytest.approx(sum(scores) / len(scores))
            ranked = [scores[h] for h in order]
            for rank, value in enumerate(ranked[:3]):
                assert found["ranked"][kind][rank][layer] == pytest.approx(value)
            rest = ranked[3:]
            mean = pytest.approx(sum(rest) / len(rest)) if rest else None
            assert found["ranked"][kind][3][layer] == mean


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_without_the_output_matrix(name: str) -> None:
    found = heads.compare(model(name), PROMPT, K)["without"]
    trace, d = traced(name), model(name).d_model
    for layer in trace.layers:
        z, outputs = trace[layer].z[-1], of_outputs(name, layer)
        width = z.shape[1]
        padded = [
            torch.cat([torch.zeros(h * width), z[h], torch.zeros(d - (h + 1) * width)])
            for h in range(len(z))
        ]
        for kind, output in outputs.items():
            scores = [score(top(name, x), output) for x in padded]
            assert found[kind][layer] == pytest.approx(sum(scores) / len(scores))


def test_heads_wider_than_the_stream(tmp_path: Path) -> None:
    name = "llama-free-head"
    block = weights(name).blocks[0]
    assert block.O.shape[0] > block.O.shape[1]
    result = find("heads")(worded(name), k=K, prompts=prompts_file(tmp_path))
    assert result.numbers["without_W_O"] == {}
    assert result.findings[0].verdict == "not testable"
    assert result.plot().to_svg().count("<path") > 3


@pytest.mark.parametrize("name", FEW)
def test_every_family(name: str, tmp_path: Path) -> None:
    model = worded(name)
    options = {"k": 5, "prompts": prompts_file(tmp_path), "limit": 1}
    if not model.architecture.causal:
        with pytest.raises(LexrayError, match="encoder"):
            find("heads")(model, **options)
        return
    numbers = find("heads")(model, **options).numbers
    for kind in OUTPUTS:
        assert all(0 <= x <= 1 for x in numbers["with_W_O"][kind])
        assert len(numbers["with_W_O"][kind]) == model.n_layers


def curves(*values: float) -> dict[str, list[float]]:
    return {kind: list(values) for kind in OUTPUTS}


def ranks(*means: float) -> dict[str, dict[str, list[float]]]:
    one = {rank: [mean] * 4 for rank, mean in zip(RANKS, means, strict=True)}
    return dict.fromkeys(OUTPUTS, one)


def test_the_rules_both_ways() -> None:
    def verdicts(*of: object) -> list[str]:
        return [f.verdict for f in heads.findings(*of)]  # type: ignore[arg-type]

    good = verdicts(
        curves(*[0.01] * 4), curves(0.1, 0.2, 0.4, 0.3), ranks(0.4, 0.3, 0.25, 0.1), 0.001
    )
    assert good == ["holds"] * 5
    bad = verdicts(
        curves(*[0.2] * 4), curves(0.4, 0.3, 0.2, 0.1), ranks(0.1, 0.3, 0.25, 0.4), 0.001
    )
    assert bad == ["does not hold"] * 5
    untestable = verdicts({}, curves(0.1), ranks(0.1, 0.3, 0.25, float("nan")), 0.001)
    assert untestable == ["not testable"] * 5
    assert verdicts({}, curves(0, 0, 0.1, 0.2), ranks(0.3, 0.2, 0.1, 0.2), 0)[2] == "does not hold"
