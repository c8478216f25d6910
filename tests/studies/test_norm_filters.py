"""norm-filters against transformers' own norms and logits, and its rules both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.studies import find, norm_filters
from lexray.studies.norm_filters import NormFilters
from lexray.studies.shared.words import is_function_word
from lexray.studies.verdicts.norm_filters import ENDS, judge
from tests.families.zoo import build
from tests.studies.recorded import NAMES, PROMPT, TEXT, logits, model, prompts_file, traced
from tests.vocabulary.vocabularies import worded

N = 3
OPTIONS = NormFilters(n=N)


def bare_logits(name: str, X: Tensor) -> Tensor:
    module: Any = build(name)
    with torch.no_grad():
        scores = module.get_output_embeddings()(X.float()).double()
    cap = getattr(module.config, "final_logit_softcapping", None)
    return scores if cap is None else cap * (scores / cap).tanh()


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str) -> None:
    found = norm_filters.measure_prompt(model(name), PROMPT, OPTIONS)
    for layer in traced(name).layers:
        recorded = traced(name)[layer]
        pairs = {
            "ln_1": (recorded.resid_pre, recorded.attn_in),
            "ln_2": (recorded.resid_mid, recorded.mlp_in),
        }
        for norm, states in pairs.items():
            for kind, lens in (("real", logits), ("bare", bare_logits)):
                old, new = (lens(name, x[-1:])[0].softmax(0) for x in states)
                change, row = new - old, found[norm][kind]
                order = change.argsort().tolist()
                for end, ids in (("fall", order[:N]), ("rise", order[: -N - 1 : -1])):
                    by = [float(change[i]) for i in ids]
                    assert row[f"{end}_by"][layer] == pytest.approx(by, rel=1e-3, abs=1e-7)
                    assert row[end][layer] == ids
                assert row["moved"][layer] == pytest.approx(float(change.abs().sum()) / 2, rel=1e-3)
                before, after = (set(p.argsort(descending=True)[:N].tolist()) for p in (old, new))
                assert row["new"][layer] == pytest.approx(len(after - before) / N)


def test_random_vectors_pass_the_same_norms() -> None:
    trace, module = traced("gpt2"), build("gpt2")
    X = torch.randn(2, 24, generator=torch.Generator().manual_seed(1))
    for norm, attribute in (("ln_1", "ln_1"), ("ln_2", "ln_2")):
        found = norm_filters._apply_norm([trace[0], trace[1]], norm, X)
        blocks = module.base_model.h
        for i in range(2):
            torch.testing.assert_close(found[i], getattr(blocks[i], attribute)(X[i]).detach())


def test_which_norms_there_are() -> None:
    assert norm_filters.norms_of(worded("gptj")) == ["ln_1"]
    neox = worded("neox")
    assert norm_filters.norms_of(neox) == ["ln_1", "ln_2"]
    layer = neox.trace(TEXT)[0]
    second = norm_filters.filters(layer.spec)["ln_2"]
    before = getattr(layer, second.before)
    torch.testing.assert_close(second.norm(before, neox.checkpoint), layer.mlp_in)
    with pytest.raises(LexrayError, match="no norms in front"):
        find("norm-filters")(worded("olmo2"), n=N)
    with pytest.raises(LexrayError, match="encoder"):
        find("norm-filters")(worded("bert"), n=N)


def test_means_over_prompts(tmp_path: Path) -> None:
    texts = ("law walking city abc", "a city abc x y z")
    small = worded("llama")
    options = {"n": N, "prompts": prompts_file(tmp_path, *texts)}
    result = find("norm-filters")(small, **options)
    finals = torch.stack([small.trace(text).final[-1] for text in texts])
    usual = logits("llama", finals).softmax(1).mean(0)
    prompts = [PROMPT.__class__(text) for text in texts]
    parts = [norm_filters.measure_prompt(small, prompt, OPTIONS)["ln_2"] for prompt in prompts]
    for kind in ("real", "bare", "random"):
        curves = result.numbers["measured"]["ln_2"][kind]
        for end in ENDS:
            for layer in range(2):
                ids = [i for part in parts for i in part[kind][end][layer]]
                p = sum(float(usual[i]) for i in ids) / len(ids)
                assert curves[f"{end}: usual probability"][layer] == pytest.approx(p, rel=1e-4)
                words = [is_function_word(small.space.token(i).text) for i in ids]
                expected = pytest.approx(sum(words) / len(ids))
                assert curves[f"{end}: function words"][layer] == expected
    assert result.plot().to_svg().count("<path") > 3
    assert find("norm-filters")(small, **options).numbers == result.numbers
    assert find("norm-filters")(small, **options, seed=1).numbers != result.numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in (" The", "not", "\n", ",", "'s", "’ve")),
        *((text, False) for text in (" Microsoft", "walk", "12", "Ж")),
    ],
)
def test_function_words(text: str, expected: bool) -> None:
    assert is_function_word(text) is expected


def test_the_rules_both_ways() -> None:
    def verdicts(fall: float, rise: float, random: float, new: float, bare: float) -> list[str]:
        def curves(a: float, b: float) -> dict[str, list[float]]:
            usual = {"fall: usual probability": [a] * 4, "rise: usual probability": [b] * 4}
            words = {"fall: function words": [a] * 4, "rise: function words": [b] * 4}
            return usual | words | {"moved": [0.1] * 4, "new": [new] * 4}

        kinds = {
            "real": curves(fall, rise),
            "bare": curves(bare, bare),
            "random": curves(rise + random, rise),
        }
        return [f.verdict for f in judge({"ln_1": kinds}, 0.1)]

    assert verdicts(0.6, 0.1, 0.1, 0.3, 0.05) == ["holds"] * 5
    assert verdicts(0.14, 0.1, 0.04, 0.05, 0.3) == ["does not hold"] * 5
    assert verdicts(0.1, 0.6, 0.1, 0.3, 0.05)[2] == "not testable"
