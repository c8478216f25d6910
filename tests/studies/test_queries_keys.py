"""queries-keys against token-by-token products in float64, and its rules both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.studies import find, queries_keys
from lexray.studies.queries_keys import METHODS, PAIRS, SHUFFLED, QueriesKeys
from lexray.studies.shared.prompts import Prompt
from tests.studies.recorded import (
    NAMES,
    PROMPT,
    K,
    model,
    prompts_file,
    score,
    top,
    traced,
    weights,
    written,
)
from tests.vocabulary.vocabularies import worded

OPTIONS = QueriesKeys(k=K)


def best_of(scores: Tensor) -> set[int]:
    return set(scores.argsort(descending=True)[:K].tolist())


def reading(name: str, layer: int, head: int) -> dict[str, dict[str, set[int]]]:
    """The lists of a head's query, best key and value, by every method."""
    recorded, block, E = traced(name)[layer], weights(name).blocks[layer], weights(name).E_out
    kv = head * block.n_kv // block.n_heads
    best, last = int(recorded.pattern[head, -1].argmax()), len(traced(name)) - 1
    q, k = recorded.q[-1, [head]].double(), recorded.k[[best], kv].double()
    asks, offers = (E.T @ block.columns(kind, head, True) for kind in ("Q", "K"))
    value = top(name, written(name, layer, head, recorded.v[best, kv]))
    lists = {
        "right": {
            "query": best_of((block.turned(q, last) @ block.turned(offers, best).T)[0]),
            "key": best_of((block.turned(k, best) @ block.turned(asks, last).T)[0]),
            "value": value,
        }
    }
    d, width = len(E), q.shape[1]
    if width * block.n_heads <= d:
        whole = torch.cat([block.columns("K", h, False) for h in range(block.n_heads)], 1)
        at = slice(head * width, (head + 1) * width)
        naive_q, naive_k, code_q = torch.zeros(3, d, dtype=torch.float64)
        naive_q[at], naive_k[at] = q[0], k[0]
        code_q[: whole.shape[1]] = naive_q @ whole
        code_k = k[0] @ block.columns("Q", head, False).T
        for method, query, key in (("naive", naive_q, naive_k), ("code", code_q, code_k)):
            found = {"query": top(name, query), "key": top(name, key), "value": value}
            lists[method] = found
    return lists


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str) -> None:
    found = queries_keys.compare(model(name), PROMPT, OPTIONS)
    trace = traced(name)
    for layer in trace.layers:
        n = trace[layer].z.shape[1]
        heads = [reading(name, layer, h) for h in range(n)]
        assert set(found["scores"]) == set(heads[0])
        for method, scores in found["scores"].items():
            lists = [head[method] for head in heads]
            for pair, (a, b) in PAIRS.items():
                expected = sum(score(x[a], x[b]) for x in lists) / n
                assert scores[pair][layer] == pytest.approx(expected)
            others = [score(lists[h]["query"], lists[(h + 1) % n]["key"]) for h in range(n)]
            assert scores[SHUFFLED][layer] == pytest.approx(sum(others) / n)
        looks = [int(trace[layer].pattern[h, -1].argmax()) for h in range(n)]
        streams = [top(name, x) for x in trace[layer].resid_pre]
        queries = [
            score(head["right"]["query"], streams[at])
            for head, at in zip(heads, looks, strict=True)
        ]
        keys = [score(head["right"]["key"], streams[-1]) for head in heads]
        assert found["attended"]["query"][layer] == pytest.approx(sum(queries) / n)
        assert found["attended"]["key"][layer] == pytest.approx(sum(keys) / n)


def test_heads_that_do_not_fit_cannot_be_padded(tmp_path: Path) -> None:
    wide = worded("gemma2")
    assert wide.n_heads * wide.layers[0].heads[0].d_head > wide.d_model
    result = find("queries-keys")(wide, k=K, prompts=prompts_file(tmp_path))
    assert set(result.numbers["scores"]) == {"right"}
    assert [f.verdict for f in result.findings[:2]] == ["not testable"] * 2
    assert result.plot().to_svg().count("<path") > 3


@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama", "gemma2", "qwen2", "qwen3", "olmo2", "gptj", "neox", "phi", "bloom"],
)
def test_the_right_side_gives_the_attention_logits(name: str) -> None:
    """Biases, rotations of every kind, shared keys, norms on queries and keys."""
    found = queries_keys.compare(worded(name), PROMPT, OPTIONS)["correlation"]["right"]
    assert found["key"] == pytest.approx([1] * len(found["key"]), abs=1e-4)
    if name not in ("qwen3", "olmo2"):
        assert found["query"] == pytest.approx([1] * len(found["query"]), abs=1e-4)


def test_the_other_sides_do_not() -> None:
    found = queries_keys.compare(model("gpt2"), PROMPT, OPTIONS)["correlation"]
    recorded, block = traced("gpt2")[1], weights("gpt2").blocks[1]
    expected: dict[str, list[float]] = {"naive": [], "code": []}
    for h in range(3):
        at, true = slice(8 * h, 8 * h + 8), recorded.k[:, h].double() @ recorded.q[-1, h].double()
        place = torch.zeros(24, dtype=torch.float64)
        place[at] = recorded.q[-1, h].double()
        for method, reader in (("naive", place), ("code", place @ block.K)):
            said = recorded.attn_in.double() @ reader
            expected[method].append(float(np.corrcoef(said, true)[0, 1]))
    for method, values in expected.items():
        assert found[method]["query"][1] == pytest.approx(sum(values) / 3, abs=1e-4)
        assert abs(found[method]["query"][1]) < 0.9


def test_the_first_token_can_be_skipped() -> None:
    skipping = QueriesKeys(k=K, skip_first=True)
    assert queries_keys.compare(model("gpt2"), PROMPT, skipping)["first_token"] == 0
    alone = queries_keys.compare(model("gpt2"), Prompt("a"), skipping)
    assert alone["first_token"] == 1
    assert alone["attended"]["query, another position"] == [None, None]
    assert alone["correlation"]["right"]["key"] == [None, None]


def test_encoders_are_refused() -> None:
    with pytest.raises(LexrayError, match="encoder"):
        find("queries-keys")(worded("bert"), k=K)


def test_the_rules_both_ways() -> None:
    def verdicts(x: float, fit: float, ours: float, other: float) -> list[str]:
        scores = {m: {name: [x, x] for name in (*PAIRS, SHUFFLED)} for m in METHODS}
        fits = {m: {"query": [0.1, 0.2], "key": [fit, fit]} for m in METHODS}
        attended = {
            f"{name}{end}": [value]
            for name in ("query", "key")
            for end, value in (("", ours), (", another position", other))
        }
        return [f.verdict for f in queries_keys.findings(scores, fits, attended, 0.001)]

    assert verdicts(0.04, 1.0, 0.3, 0.1) == ["holds"] * 6
    assert verdicts(0.06, 0.9, 0.3, 0.2) == ["does not hold"] * 6
    none = float("nan")
    assert verdicts(0.04, none, 0.3, none) == ["holds"] * 3 + ["not testable"] * 3


def test_what_any_key_shares_is_no_alignment() -> None:
    curves = {"query-key": [0.09], "key-value": [0.0], "query-value": [0.0]}
    found = [
        queries_keys._nothing("right", curves | {SHUFFLED: [other]}, 0.001).verdict
        for other in (0.08, 0.01)
    ]
    assert found == ["holds", "does not hold"]
