"""Hybrids as they come: mixers first, layers without heads or without neurons, gates on heads."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from lexray.address import Address
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.edits import ablate, scale
from lexray.errors import LexrayError
from lexray.flow.graph import NodeKind
from lexray.model.model import Model
from lexray.trace.trace import Trace
from tests.families.oracles import close, run
from tests.families.zoo import build, find, make
from tests.vocabulary.vocabularies import vocabulary

IDS = [5, 11, 3, 29, 36, 7, 20]
KINDS = {
    "qwen3-next": {"layer_types": ["linear_attention", "linear_attention", "full_attention"]},
    "granite4": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 4},
    "falcon-h1": {},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"]},
    "nemotron-h": {"layers_block_type": ["mamba", "mlp", "attention", "moe", "mamba"]},
}
every = pytest.mark.parametrize("name", KINDS)


@cache
def model(name: str) -> Model:
    variant = find(name)
    module = make(replace(variant, options=variant.options | KINDS[name]))
    return Model(ModuleCheckpoint(module), vocabulary=vocabulary(37)).view("raw")


@cache
def trace(name: str) -> Trace:
    return model(name).trace(IDS)


def mixed(name: str) -> list[int]:
    blocks = model(name).architecture.blocks
    return [n for n, block in enumerate(blocks) if block.mixer is not None]


@every
def test_the_vectors_of_a_mixer_are_read_as_others_are(name: str) -> None:
    m, n = model(name), mixed(name)[0]
    mixer = m.layers[n].mixer
    last = mixer.spec.d_in - 1
    for address, vector in (
        (f"L{n}.mixer.out3", mixer.W_out[3]),
        (f"L{n}.mixer.in{last}", mixer.W_in[:, last]),
    ):
        assert str(Address.parse(address.upper())) == address
        close(m.vector(address).tensor, vector)
        scores = m.W_U.T @ vector
        read = m.vector(address).top(4)
        assert [scored.token.id for scored in read.top] == scores.topk(4).indices.tolist()
    found = m.lookup([5, 11], among="out").top(3)
    assert all(".mixer.out" in str(entry.address) for entry in found)
    with pytest.raises(LexrayError, match=f"has 0–{last}"):
        m[f"L{n}.mixer.in{last + 1}"]


@every
def test_a_mixer_is_one_part_of_the_logit(name: str) -> None:
    t = trace(name)
    found = t.contributions(7)
    assert found.total == pytest.approx(float(t.logits[-1, 7]), abs=2e-4)
    leaves = {leaf.component: leaf.contribution for leaf in found if leaf.kind == "mixer"}
    assert list(leaves) == [f"L{n}.mixer" for n in mixed(name)]
    assert all(leaves.values())
    split = t.contributions(7, sources=True)
    assert split.total == pytest.approx(found.total, abs=1e-4)


@pytest.mark.slow
@every
def test_without_a_mixer(name: str) -> None:
    """As transformers' own model with nothing in the mixer's last matrix."""
    m, t = model(name), trace(name)
    effects = t.effects("mixers", 7)
    assert [r.component for r in effects] == [f"L{n}.mixer" for n in mixed(name)]
    for n, removed in zip(mixed(name), effects, strict=True):
        module = copy.deepcopy(m.module())
        spec = m.architecture.blocks[n].mixer
        assert spec is not None
        with torch.no_grad():
            module.get_parameter(spec.w_out.weight).zero_()
        theirs = run(module, torch.tensor([IDS])).logits[0]
        close(m.trace(IDS, edits=[ablate(f"L{n}.mixer")]).logits, theirs)
        assert removed.change == pytest.approx(float(theirs[-1, 7] - t.logits[-1, 7]), abs=1e-3)
        close(m.edited([ablate(f"L{n}.mixer")]).trace(IDS).logits, theirs)
        half = m.trace(IDS, edits=[scale(f"L{n}.mixer", 0.5, positions=[2])])
        close(half[n].mixer_write[2], t[n].mixer_write[2] / 2)


@every
def test_what_a_layer_does_not_have(name: str) -> None:
    m, t = model(name), trace(name)
    for n, block in enumerate(m.architecture.blocks):
        parts = [(".attn", block.attention.absent), (".mlp", block.ff.absent)]
        for part, absent in parts:
            if absent:
                with pytest.raises(LexrayError, match=rf"no L{n}\{part}: layer {n} has L{n}\."):
                    m.trace(IDS, edits=[ablate(f"L{n}{part}")])
        if block.attention.absent:
            with pytest.raises(LexrayError, match=r"no heads, but a .*; heads are in layers"):
                m[f"L{n}H0"]
            with pytest.raises(LexrayError, match="they have no heads"):
                t.attention(layers=n)
        if block.mixer is None:
            with pytest.raises(LexrayError, match=f"L{n} has no mixer: layers"):
                m[f"L{n}.mixer"]
    heads = {r.layer for r in t.effects("heads", 7, direct=False)}
    assert heads == {n for n, b in enumerate(m.architecture.blocks) if not b.attention.absent}
    whole = m.trace(IDS, edits=[ablate("L0")])
    close(whole[0].resid_post, t[0].resid_pre)


@every
def test_the_graph_shows_a_mixer_as_one_node(name: str) -> None:
    t = trace(name)
    flow = t.flow()
    nodes = {node.id: node for node in flow.nodes if node.kind == NodeKind.MIXER}
    assert list(nodes) == [f"L{n}.mixer" for n in mixed(name)]
    for n in mixed(name):
        node = nodes[f"L{n}.mixer"]
        assert node.norm == pytest.approx(float(t[n].mixer_write[-1].norm()), rel=1e-3)
    assert "mixer" in flow.to_svg()
    lens = t.lens("mixer", positions=[-1])
    assert [line.name for line in lens.lines] == [f"L{n} mixer" for n in mixed(name)]


def test_positions_that_heads_do_not_see() -> None:
    """Mixers still carry them, and the result says so."""
    assert "still carry" in trace("jamba").effects("positions", 7, direct=False).note


def test_a_gate_is_a_factor_of_what_a_head_takes() -> None:
    t = trace("qwen3-next")
    split, whole = (t.contributions(7, sources=s) for s in (True, False))
    for head in range(4):
        assert split[f"L2H{head}"] == pytest.approx(whole[f"L2H{head}"], abs=1e-5)


def test_experts_in_a_latent_are_refused() -> None:
    variant = find("nemotron-h")
    module = make(replace(variant, options=variant.options | {"moe_latent_size": 8}))
    with pytest.raises(LexrayError, match="latent of 8 dimensions"):
        Model.from_module(module)


@pytest.mark.parametrize(
    "entries",
    [
        {"linear_attn_config": {"head_dim": "x"}},
        {"linear_attn_config": [1]},
        {"linear_head_dim": "a"},
        {"moe_renormalize": "perhaps"},
    ],
    ids=str,
)
def test_spoiled_sizes_of_linear_attention_are_refused(entries: dict[str, Any]) -> None:
    with pytest.raises(LexrayError):
        Model.from_module(build("kimi-linear"), config=entries).info()
