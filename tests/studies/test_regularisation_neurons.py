"""regularisation-neurons against counts and measures made by hand, and its rules both ways."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from lexray.errors import LexrayError
from lexray.studies import find, regularisation_neurons
from lexray.studies.regularisation_neurons import Neurons, observe
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.words import is_function_word
from lexray.studies.verdicts.regularisation_neurons import judge
from tests.studies.recorded import NAMES, PROMPT, logits, model, prompts_file, traced, weights
from tests.vocabulary.vocabularies import worded

TEXTS = tuple(f"{letter} law walking city abc law" for letter in "abcdefghijkl")


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str, absolute: bool) -> None:
    found = observe(model(name), PROMPT, Neurons(absolute=absolute))
    for layer in traced(name).layers:
        recorded = traced(name)[layer]
        assert recorded.coefficients is not None
        coefficients = recorded.coefficients[-1].double()
        n = max(1, len(coefficients) // 10)
        sizes = coefficients.abs() if absolute else coefficients
        expected = sizes.argsort(descending=True)[:n].tolist()
        assert found["neurons"][layer] == expected
        negative = [i for i in expected if absolute and coefficients[i] < 0]
        assert found["negative"][layer] == negative
        stream = recorded.resid_post[-1].abs()
        assert found["dimensions"][layer] == stream.argsort(descending=True)[:10].tolist()


def test_a_mixture() -> None:
    moe = worded("mixtral").view(folded=False)
    found = observe(moe, PROMPT, Neurons(top=3))
    for layer, trace in enumerate(moe.trace(PROMPT.text)[i] for i in range(moe.n_layers)):
        active = trace.active(-1)
        best = max(active, key=lambda one: float(one.coefficients.max()))
        address = f"{best.ff.address}N{int(best.coefficients.argmax())}.value"
        index = found["neurons"][layer][0]
        assert regularisation_neurons._address(moe, layer, index) == address


@pytest.mark.parametrize(("name", "absolute"), [("gpt2", False), ("llama", True), ("gemma2", True)])
def test_over_prompts(name: str, absolute: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"others": 7, "absolute": absolute}
    prompts = prompts_file(tmp_path, *TEXTS)
    result = find("regularisation-neurons")(worded(name), **options, prompts=prompts)
    parts = [observe(model(name), Prompt(text), Neurons(**options)) for text in TEXTS]
    some, space = 0, worded(name).space
    for layer, row in enumerate(result.numbers["layers"]):
        counts = Counter(i for part in parts for i in part["neurons"][layer])
        often = {i: n / len(TEXTS) for i, n in counts.items() if n > 0.85 * len(TEXTS)}
        assert {n["index"]: n["share"] for n in row["neurons"]} == often
        block = weights(name).blocks[layer]
        for neuron in row["neurons"]:
            some += 1
            minus = sum(neuron["index"] in part["negative"][layer] for part in parts)
            assert neuron["negative"] is (minus > counts[neuron["index"]] / 2)
            value = block.units[0].value[neuron["index"]]
            value = value if block.ff_post is None else value @ block.ff_post.matrix
            value = -value if neuron["negative"] else value
            p = logits(name, value[None])[0].softmax(0)
            assert neuron["norm"] == pytest.approx(float(value.norm()), rel=1e-4)
            assert neuron["entropy"] == pytest.approx(float(-(p * p.log()).sum()), rel=1e-3)
            peak = float(value.abs().max() / value.square().mean().sqrt())
            assert neuron["peak"] == pytest.approx(peak, rel=1e-4)
            ids = p.argsort(descending=True)[:10].tolist()
            assert neuron["tokens"] == [space.token(i).shown for i in ids]
            words = [is_function_word(space.token(i).text) for i in ids]
            assert neuron["function_words"] == pytest.approx(sum(words) / 10)
            assert neuron["largest_dimension"] == int(value.abs().argmax())
        norms = block.units[0].value.double()
        norms = norms if block.ff_post is None else norms @ block.ff_post.matrix
        assert norms.norm(dim=1).min() <= row["others"]["norm"] <= norms.norm(dim=1).max()
    assert some
    assert result.plot().to_svg().count("<path") > 3


def test_outliers() -> None:
    X = torch.ones(2, 100)
    X[0, 7] = -50
    found = regularisation_neurons.measures(X)
    assert found["outliers"].tolist() == [1, 0]
    assert found["norm"].tolist() == pytest.approx([(99 + 2500) ** 0.5, 10])
    assert found["peak"].tolist() == pytest.approx([50 / (25.99**0.5), 1])


def test_encoders_are_refused() -> None:
    with pytest.raises(LexrayError, match="encoder"):
        find("regularisation-neurons")(worded("bert"))


def layers(**changed: Any) -> list[dict[str, Any]]:
    neuron = {
        "address": "L0N1.value",
        "tokens": ["the"] * 10,
        "function_words": 0.8,
        "norm_above": 0.99,
        "dimensions": [3],
        "in_rogue": 1,
    }
    flagged = {"norm": 2.0, "entropy": 5.0, "peak": 9.0}
    others = {"norm": 1.0, "entropy": 4.0, "peak": 3.0}
    neuron |= {name: value for name, value in changed.items() if name in neuron}
    flagged |= {name: value for name, value in changed.items() if name in flagged}
    row = {"neurons": [neuron], "flagged": flagged, "others": others}
    return [{"layer": i, **row} for i in range(4)]


def test_the_rules_both_ways() -> None:
    def verdicts(rows: list[dict[str, Any]], prompts: int = 20) -> list[str]:
        rogue = [{3: 1.0} for _ in rows]
        return [f.verdict for f in judge(rows, rogue, 100, prompts)]

    assert verdicts(layers()) == ["holds"] * 6
    low = layers(function_words=0.2, norm_above=0.5, in_rogue=0, entropy=3.0, peak=3.5)
    assert verdicts(low) == ["holds", *["does not hold"] * 5]
    few = layers()
    few[-1] = few[-1] | {"neurons": []}
    assert verdicts(few)[:2] == ["does not hold", "not testable"]
    assert verdicts(layers(dimensions=[]))[4:] == ["does not hold", "not testable"]
    none = [row | {"neurons": []} for row in layers()]
    assert verdicts(none) == ["does not hold", *["not testable"] * 5]
    assert verdicts(layers(), prompts=3) == ["not testable"] * 6
