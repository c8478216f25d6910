"""Addresses: every form, there and back, and what a model says to those it does not have."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexray.address import Address, LayerVector
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.zoo import build

FORMS = ("layer", "part", "head", "matrix", "subhead", "ff", "neuron", "vector")
numbers = st.integers(0, 999_999_999)


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    """Any address that means something."""
    layer = Address(draw(numbers))
    form = draw(st.sampled_from(FORMS))
    if form == "layer":
        return layer
    if form == "part":
        return replace(layer, part=draw(st.sampled_from(get_args(LayerVector))))
    if form in ("head", "matrix", "subhead"):
        head = replace(layer, head=draw(numbers))
        if form == "matrix":
            return replace(head, matrix=draw(st.sampled_from(["VO", "QK"])))
        if form == "subhead":
            side: Any = draw(st.sampled_from("QKVO"))
            return replace(head, subhead=side, index=draw(numbers))
        return head
    owner = draw(st.sampled_from(["dense", "expert", "shared"]))
    ff = replace(layer, expert=draw(numbers)) if owner == "expert" else layer
    ff = replace(ff, shared=True) if owner == "shared" else ff
    if form == "ff":
        return ff
    neuron = replace(ff, neuron=draw(numbers))
    if form == "vector":
        return replace(neuron, vector=draw(st.sampled_from(["key", "gate", "value"])))
    return neuron


@given(addresses())
def test_what_is_printed_is_parsed_back(address: Address) -> None:
    assert Address.parse(str(address)) == address
    assert Address.parse(str(address).lower()) == address
    assert Address.parse(f"  {address}\n") == address


@given(addresses())
def test_repr_makes_an_equal_address(address: Address) -> None:
    assert eval(repr(address)) == address


def test_repr_keeps_zeros() -> None:
    assert repr(Address(0, head=0)) == "Address(layer=0, head=0)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L3", Address(3)),
        ("L3H7", Address(3, head=7)),
        ("L3H7.VO", Address(3, head=7, matrix="VO")),
        ("L3H7.QK", Address(3, head=7, matrix="QK")),
        ("L3H7.V12", Address(3, head=7, subhead="V", index=12)),
        ("L3H7.O0", Address(3, head=7, subhead="O", index=0)),
        ("L12N345", Address(12, neuron=345)),
        ("L12N345.gate", Address(12, neuron=345, vector="gate")),
        ("L5E2", Address(5, expert=2)),
        ("L5E2N17", Address(5, expert=2, neuron=17)),
        ("L5S", Address(5, shared=True)),
        ("L5SN17.value", Address(5, shared=True, neuron=17, vector="value")),
        ("l3h7.vO", Address(3, head=7, matrix="VO")),
        ("l12n3.KEY", Address(12, neuron=3, vector="key")),
        ("L003H07", Address(3, head=7)),
        ("l3.b_o", Address(3, part="b_O")),
        ("L3.mlp_norm_bias", Address(3, part="mlp_norm_bias")),
    ],
)
def test_every_form(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "L",
        "H7",
        "3.7",
        "L3H",
        "L-1H0",
        "L3 H7",
        "L3H7.",
        "L3H7.V",
        "L3H7.VOV",
        "L3H7.X3",
        "L3H7N4",
        "L3N4.VO",
        "L3N4.bias",
        "L3H7.key",
        "L5E2SN1",
        "L5E2.VO",
        "L3.VO",
        "L٣H7",
        "L3H7\nL3H8",
        "L1e",
        "L3H7.Ⅴ1",
        "L" + "9" * 5000,
    ],
)
def test_what_is_no_address_is_told_how_they_look(text: str) -> None:
    with pytest.raises(LexrayError, match=r"is no address; addresses look like L3H7 \(a head\)"):
        Address.parse(text)


@given(st.text(max_size=12) | st.from_regex(r"L\d+[HNES]\d+(\.[QKVO]+\d*)?", fullmatch=True))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    with suppress(LexrayError):
        assert Address.parse(str(Address.parse(text))) == Address.parse(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"head": 1, "neuron": 2},
        {"matrix": "VO"},
        {"head": 1, "subhead": "V"},
        {"head": 1, "index": 3},
        {"head": 1, "matrix": "VO", "subhead": "V", "index": 0},
        {"head": 1, "expert": 0},
        {"expert": 1, "shared": True},
        {"vector": "key"},
        {"head": 0, "vector": "key"},
        {"head": 0, "part": "b_O"},
        {"neuron": 0, "part": "b_out"},
    ],
    ids=str,
)
def test_parts_that_do_not_go_together(parts: dict[str, Any]) -> None:
    with pytest.raises(LexrayError, match="names no one place"):
        Address(3, **parts)


# ---------------------------------------------------------------------- on a model


@pytest.fixture(scope="module")
def llama() -> Model:
    return Model.from_module(build("llama")).view("raw")


@pytest.fixture(scope="module")
def mixtral() -> Model:
    return Model.from_module(build("mixtral")).view("raw")


@pytest.fixture(scope="module")
def qwen() -> Model:
    """Layers 0 and 2 are mixtures with a shared expert, layer 1 is dense."""
    return Model.from_module(build("qwen2-moe")).view("raw")


def test_what_addresses_lead_to(llama: Model, mixtral: Model, qwen: Model) -> None:
    for model, address, kind in (
        (llama, "L1", "Layer"),
        (llama, "L1H3", "Head"),
        (llama, "L1N19", "Neuron"),
        (mixtral, "L0E4", "FeedForward"),
        (mixtral, "L1E4N19", "Neuron"),
        (qwen, "L2S", "FeedForward"),
        (qwen, "L2SN13", "Neuron"),
        (qwen, "L1N19", "Neuron"),
    ):
        part = model[address]
        assert type(part).__name__ == kind
        assert str(part.address) == address
        assert type(model[Address.parse(address)]).__name__ == kind
    assert type(mixtral["L0"].ff).__name__ == "Mixture"


def test_the_same_part_by_address_and_by_index(qwen: Model) -> None:
    shared = qwen.layers[2].ff.shared
    assert shared is not None
    assert qwen["L2SN13"].W_out.equal(shared.neurons[13].W_out)
    assert qwen["L2E3N5"].W_in.equal(qwen.layers[2].ff.experts[3].W_in[:, 5])


@pytest.mark.parametrize(
    ("model", "address", "message"),
    [
        ("llama", "L99H0", "no layer 99: this model has layers 0–1"),
        ("llama", "L2", "no layer 2: this model has layers 0–1"),
        ("llama", "L1H4", "no head 4: L1 has heads 0–3"),
        ("llama", "L1N20", "no neuron 20: L1 has neurons 0–19"),
        ("llama", "L1E0N0", "L1E0N0: layer 1 has no experts; its neurons are L1N0 …"),
        ("llama", "L0S", "L0S: layer 0 has no experts"),
        ("mixtral", "L1E5N0", "no expert 5: L1 has experts 0–4"),
        ("mixtral", "L1E2N20", "no neuron 20: L1E2 has neurons 0–19"),
        ("mixtral", "L1N3", "L1N3: layer 1 is a mixture of 5 experts; say which, as in L1E0N3"),
        ("mixtral", "L1SN0", "L1SN0: layer 1 has no shared expert"),
        ("qwen", "L2SN14", "no neuron 14: L2S has neurons 0–13"),
        ("qwen", "L1E0N0", "layer 1 has no experts"),
        ("qwen", "L2E0N12", "no neuron 12: L2E0 has neurons 0–11"),
    ],
)
def test_out_of_range(
    model: str, address: str, message: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(LexrayError, match=re.escape(message)):
        request.getfixturevalue(model)[address]


def test_parts_are_sequences(llama: Model) -> None:
    heads = llama.layers[0].heads
    assert [head.index for head in heads] == [0, 1, 2, 3]
    assert heads[-1].index == 3
    assert [head.index for head in heads[1:3]] == [1, 2]
    assert len(llama.layers) == 2
    with pytest.raises(LexrayError, match="no head -5: L0 has heads 0–3"):
        heads[-5]
