"""Vectors and groups of vectors as tokens, against dense float64 projections."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray import filters
from lexray.errors import LexrayError
from lexray.model import vectors as parameters
from lexray.model.model import Model
from lexray.model.vectors import Vector
from lexray.progress import reported_by
from lexray.result.readings import Reading
from lexray.space.space import EmbeddingSpace
from tests.dense import NAMES, READS, Dense, Kind, dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

KINDS: tuple[Kind, ...] = ("value", *READS, "O")
VIEWS: dict[str, dict[str, Any]] = {
    "raw": {},
    "folded": {"folded": True},
    "centred-pinv": {"centred": True, "inverse": "pinv"},
    "folded-calibrated-input": {"folded": True, "calibrated": True, "reading": "input"},
}


@cache
def opened(name: str) -> Model:
    return Model.from_module(build(name)).view("raw")


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


def same(found: Reading, scores: Tensor, k: int) -> None:
    for end, descending in ((found.top, True), (found.bottom, False)):
        order = scores.argsort(descending=descending)[:k]
        assert [s.token.id for s in end] == order.tolist()
        torch.testing.assert_close(
            torch.tensor([s.score for s in end], dtype=torch.float64),
            scores[order],
            rtol=0,
            atol=2e-5 * float(scores.abs().max()),
        )


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_read_through_their_own_side(name: str, view: dict[str, Any]) -> None:
    model = opened(name).view(**view)
    for kind in KINDS:
        expected = reference(name).vectors(kind, view.get("folded", False))
        if not expected:
            continue
        columns = reference(name).columns(kind, **view)
        for address in list(expected)[:: max(1, len(expected) // 2)]:
            vector = model[address]
            assert isinstance(vector, Vector)
            torch.testing.assert_close(
                vector.tensor.double(), expected[address], rtol=1e-4, atol=1e-5
            )
            found = vector.top(8)
            same(found, expected[address] @ columns, 8)
            assert (found.name, found.source.address) == (kind, address)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_groups_list_every_vector_once(name: str, kind: Kind) -> None:
    """Experts and the shared one, heads in order, keys and values of a group of heads once."""
    model, expected = opened(name), reference(name).vectors(kind, False)
    listed = {v.address: v.tensor for group in model.groups(kind) for v in group}
    assert list(listed) == list(expected)
    for address, tensor in listed.items():
        assert tensor.double().equal(expected[address])
    total = sum(len(group) for group in model.groups(kind))
    assert total == len(expected) == sum(len(X) for X in model.vectors(kind))


@pytest.mark.parametrize(("name", "n"), [("mixtral", 5 * 20), ("qwen2-moe", 5 * 12 + 14)])
def test_a_whole_layer_of_experts(name: str, n: int) -> None:
    values = opened(name).layers[0].values
    assert len(values) == n == len(values.top(2))
    assert values[-1].address == ("L0E4N19.value" if name == "mixtral" else "L0SN13.value")
    assert values[20 if name == "mixtral" else 12].address == "L0E1N0.value"
    assert len(opened("qwen2-moe").layers[1].gates) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "at_once"), [({}, 7), ({"folded": True, "calibrated": True}, 1024)]
)
def test_streams_equal_one_by_one(
    view: dict[str, Any], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "VECTORS_AT_ONCE", at_once)
    model = opened("qwen2-moe").view(**view)
    kept = filters.among(range(5, 30))
    for group in (model.layers[0].values, model.layers[1].keys, model.layers[2].subheads("K")):
        streamed = list(group.stream(4, filter=kept))
        assert [r.source.address for r in streamed] == [v.address for v in group]
        for reading, vector in zip(streamed, group, strict=True):
            alone = vector.top(4, filter=kept)
            assert [s.token.id for s in reading.top] == [s.token.id for s in alone.top]
            assert [s.token.id for s in reading.bottom] == [s.token.id for s in alone.bottom]
            assert reading.top[0].score == pytest.approx(alone.top[0].score, rel=1e-5)
            assert reading.legibility == pytest.approx(alone.legibility, abs=1e-5)
        assert group.top(4, filter=kept).readings == tuple(streamed)


def test_a_stream_is_made_while_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "VECTORS_AT_ONCE", 3)
    group, asked = opened("llama").layers[0].values, []
    real = EmbeddingSpace.readings

    def readings(self: EmbeddingSpace, X: Tensor, *rest: Any) -> Any:
        asked.append(len(X))
        return real(self, X, *rest)

    monkeypatch.setattr(EmbeddingSpace, "readings", readings)
    stream = group.stream(2)
    assert not asked
    next(stream)
    assert asked == [3]


def test_progress_is_reported() -> None:
    seen: list[tuple[int, str]] = []

    def reporter(items: Any, total: int, what: str) -> Any:
        seen.append((total, what))
        return items

    with reported_by(reporter):
        opened("llama").layers[1].gates.top(1)
    assert seen == [(20, "reading L1 gate")]


# ---------------------------------------------------------------------- biases and norms


@pytest.mark.parametrize("folded", [False, True])
def test_biases_and_norms_are_vectors(folded: bool) -> None:
    module, model = build("gpt2"), opened("gpt2").view(folded=folded)
    r, stem = reference("gpt2"), "transformer.h.1."
    for name, tensor, kind in (
        ("b_O", "attn.c_proj.bias", "O"),
        ("b_out", "mlp.c_proj.bias", "value"),
        ("attn_norm", "ln_1.weight", "V"),
        ("attn_norm_bias", "ln_1.bias", "V"),
        ("mlp_norm", "ln_2.weight", "key"),
        ("mlp_norm_bias", "ln_2.bias", "key"),
    ):
        vector = model[f"L1.{name}"]
        stored = module.get_parameter(stem + tensor).detach().double()
        assert vector.tensor.double().equal(stored)
        found = vector.top(6)
        same(found, stored @ r.columns(kind, folded=folded), 6)  # type: ignore[arg-type]
        assert (found.name, found.source.address) == (name, f"L1.{name}")


def test_gains_are_those_in_use() -> None:
    """Gemma stores γ − 1, OLMo 2 has norms after its sub-blocks only, Cohere one for both."""
    stored = build("gemma2").get_parameter("model.layers.0.input_layernorm.weight")
    assert opened("gemma2")["L0.attn_norm"].tensor.equal(stored.detach().float() + 1)
    stored = build("olmo2").get_parameter("model.layers.1.post_feedforward_layernorm.weight")
    assert opened("olmo2")["L1.mlp_norm"].tensor.equal(stored.detach())
    stored = build("cohere2").get_parameter("model.layers.1.input_layernorm.weight")
    assert opened("cohere2")["L1.mlp_norm"].tensor.equal(stored.detach())


def test_calibration_leaves_biases_and_norms_alone() -> None:
    plain, calibrated = opened("gpt2"), opened("gpt2").view(calibrated=True)
    for address in ("L0.b_O", "L0.mlp_norm"):
        assert calibrated[address].top(5).top == plain[address].top(5).top


# ---------------------------------------------------------------------- filters and mistakes


def test_filters_and_long_lists() -> None:
    model = worded("llama")
    value = model["L0N3.value"]
    found = value.top(99, filter=filters.among(["law", "·law", "city"]))
    assert {s.token.id for s in found.top} == {0, 1, 14}
    assert [s.token for s in found.top] == [s.token for s in reversed(found.bottom)]
    assert len(value.top(99).top) == 37
    assert found.source.filter == "among law, ·law, city"
    one = value.top(3, filter=filters.among(["law"]))
    assert (len(one.top), one.legibility) == (1, 0.0)


def test_a_neuron_is_its_vectors() -> None:
    read = worded("llama")["L1N4"].top(3)
    assert [r.name for r in read.readings] == ["key", "gate", "value"]
    assert read["gate"].source.address == "L1N4.gate"
    assert [r.name for r in worded("gpt2")["L1N4"].top(3).readings] == ["key", "value"]
    with pytest.raises(LexrayError, match="has no 'gate'; there are key, value"):
        worded("gpt2")["L1N4"].top(3)["gate"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("L0N3.gate", "has no gate: its feed-forward is not gated"),
        ("L0H1.V8", "no V vector 8"),
        ("L0H3", "no head 3"),
        ("L0N99.key", "no neuron 99"),
        ("L0E1N0", "has no experts"),
    ],
)
def test_what_is_not_there(address: str, message: str) -> None:
    with pytest.raises(LexrayError, match=message):
        opened("gpt2")[address]


def test_what_a_layer_has_not() -> None:
    with pytest.raises(LexrayError, match="no gate vectors"):
        opened("gpt2").layers[0].gates.top()
    with pytest.raises(LexrayError, match="has no b_O"):
        opened("llama")["L0.b_O"]
    with pytest.raises(LexrayError, match="k must be at least 1"):
        opened("llama")["L0N3.value"].top(0)
    with pytest.raises(LexrayError, match="at least 1"):
        opened("llama").layers[0].values.top(-1)
    with pytest.raises(LexrayError, match="no value vector 20"):
        opened("llama").layers[0].values[20]


def test_damaged_weights_are_named() -> None:
    model = opened("llama")
    broken = Vector(model, "L0N0.value", "value", lambda: torch.full((24,), torch.nan))
    with pytest.raises(LexrayError, match="24 NaN"):
        broken.top(3)
