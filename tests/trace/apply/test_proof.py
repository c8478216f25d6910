"""Edits do what they say, for every family: held against transformers' own model with the same
change made in its weights, its mask, or by another run."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lexray.edits import Edit, ablate, add, clamp, cut, patch, scale
from lexray.edits.site import Site
from lexray.errors import LexrayError
from lexray.families import Experts, Linear
from lexray.model.model import Model
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace
from tests.families.apart import with_own_layers
from tests.families.oracles import close, run
from tests.families.span import WHOLE, architecture, every_variant
from tests.families.zoo import build
from tests.trace.test_proof import IDS, NAMES, case, same

OTHER = [8, 30, 14, 2, 21, 33, 9]
AT = 3


@cache
def other(name: str) -> Trace:
    return case(name).model.trace(OTHER)


def changed(name: str, change: Callable[[nn.Module, Model], None]) -> Tensor:
    """transformers' logits after a change of a copy's weights."""
    module = with_own_layers(copy.deepcopy(build(name)))
    with torch.no_grad():
        change(module, Model.from_module(module).view("raw"))
    return run(module, torch.tensor([IDS])).logits[0]


def zero(module: nn.Module, linear: Linear, inputs: slice) -> None:
    """Some inputs of a linear map no longer count."""
    weight: Any = module.get_parameter(linear.weight)
    weight[linear.index(inputs, slice(None))] = 0


@every_variant
def test_no_edit_changes_no_bit(name: str) -> None:
    c = case(name)
    plain, none = c.model.trace(IDS), c.model.trace(IDS, edits=[])
    assert plain.parts.keys() == none.parts.keys()
    assert all(torch.equal(x, none.parts[key]) for key, x in plain.parts.items())
    assert none.edits == ()


@every_variant
def test_a_head_is_its_rows_of_the_output_matrix(name: str) -> None:
    c = case(name)
    for layer, head in ((0, 1), (c.model.n_layers - 1, 2)):

        def without(module: nn.Module, model: Model, layer: int = layer, head: int = head) -> None:
            spec = model.architecture.blocks[layer].attention
            zero(module, spec.o, slice(head * spec.v.d_head, (head + 1) * spec.v.d_head))

        trace = c.model.trace(IDS, edits=[ablate(f"L{layer}H{head}")])
        close(trace.logits, changed(name, without))
        assert not trace[layer].z[:, head].any()
        assert (trace.logits - c.trace.logits).abs().max() > 1e-4


@every_variant
def test_a_neuron_is_its_value(name: str) -> None:
    c = case(name)
    last = c.model.layers[-1]
    for ff in list(last.feed_forwards):
        neuron = ff.neurons[2]

        def without(module: nn.Module, model: Model, address: Any = neuron.address) -> None:
            zero(module, model.neuron(address).ff.spec.w_out, slice(2, 3))

        close(
            c.model.trace(IDS, edits=[ablate(str(neuron.address))]).logits, changed(name, without)
        )


@every_variant
def test_sub_blocks_and_layers(name: str) -> None:
    """Without what it adds, a sub-block leaves the stream; a layer is both."""
    c = case(name)
    n = c.model.n_layers - 1
    for part in ("attn", "mlp"):
        x = c.model.trace(IDS, edits=[ablate(f"L{n}.{part}")])[n]
        assert not (x.attn_write if part == "attn" else x.mlp_write).any()
    parts = Site.parse(f"L{n}").sub_blocks(c.model)
    both = c.model.trace(IDS, edits=[ablate(str(part)) for part in parts])
    whole = c.model.trace(IDS, edits=[ablate(f"L{n}")])
    assert torch.equal(both.logits, whole.logits)
    block, left = c.model.architecture.blocks[n], c.trace[n].resid_pre
    if block.altup is not None:  # of what LAuReL reads, its input itself still passes by
        x = whole[n]
        made = (x.resid_in + x.attn_in) / 2**0.5 - x.resid_in
        left = x.streams.predicted + x.streams.correct[..., None] * made[:, None]
        close(x.streams.leaving, left)
        assert not x.laurel_write.any()
        assert not x.mixer_write.any()
    elif block.ff.sum_norm is None:
        close(whole.final, left if block.factor is None else block.factor(left, c.model.checkpoint))


EXPERTS = [name for name in NAMES if "moe" in name or "mixtral" in name]


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str) -> None:
    c = case(name)
    layer = next(x for x in c.model.layers if isinstance(x.spec.ff, Experts))
    did = c.trace[layer.index].experts
    assert did is not None
    e = int(did.chosen[AT, 0])

    def without(module: nn.Module, model: Model) -> None:
        ff = model.architecture.blocks[layer.index].ff
        assert isinstance(ff, Experts)
        zero(module, ff.experts[e].w_out, slice(None))

    site = f"L{layer.index}E{e}"
    close(c.model.trace(IDS, edits=[ablate(site)]).logits, changed(name, without))
    doubled = c.model.trace(IDS, edits=[scale(site, 2, positions=AT)])[layer.index].experts
    assert doubled is not None
    close(doubled.weights[AT, 0], 2 * did.weights[AT, 0])
    close(doubled.weights[AT, 1], did.weights[AT, 1])
    held = c.model.trace(IDS, edits=[clamp(f"{site}N3", 5.0)])[layer.index].experts
    assert held is not None
    assert (held.coefficients[held.chosen == e][:, 3] == 5).all()
    with pytest.raises(LexrayError, match="say which"):
        c.model.trace(IDS, edits=[ablate(f"L{layer.index}N3")])
    if layer.ff.shared is not None:
        close(
            c.model.trace(IDS, edits=[ablate(f"L{layer.index}S")])[layer.index].mlp_write,
            c.trace[layer.index].mlp_write - _shared(c.trace, layer.index),
        )


def _shared(trace: Trace, n: int) -> Tensor:
    found = []
    for p in range(len(IDS)):
        active = trace[n].active(p)[-1]
        found.append(active.coefficients @ active.ff.W_out)
    return torch.stack(found)


@every_variant
def test_coefficients_are_scaled_and_clamped(name: str) -> None:
    c = case(name)
    n = next((i for i, t in enumerate(c.model.layers) if c.trace[i].coefficients is not None), None)
    if n is None:
        return
    was = c.trace[n].coefficients
    assert was is not None
    now = c.model.trace(IDS, edits=[scale(f"L{n}N4", 3), clamp(f"L{n}N5", 8.0, positions=[AT])])[n]
    assert now.coefficients is not None
    close(now.coefficients[:, 4], 3 * was[:, 4])
    assert now.coefficients[AT, 5] == 8
    rest = [i for i in range(len(IDS)) if i != AT]
    close(now.coefficients[rest, 5], was[rest, 5])
    mean = c.model.trace(IDS, edits=[ablate(f"L{n}N4", to="mean", positions=AT)])[n].coefficients
    assert mean is not None
    close(mean[AT, 4], was[rest, 4].mean())
    text = c.model.trace(IDS, edits=[ablate(f"L{n}H1", to=other(name))])[n]
    close(text.z[:, 1], other(name)[n].z[:, 1].mean(0).expand_as(text.z[:, 1]))


@every_variant
def test_everything_from_another_run_is_that_run(name: str) -> None:
    c, there = case(name), other(name)
    if c.model.architecture.layer_inputs is None:  # which are no part of the stream
        same_ends(c.model.trace(IDS, edits=[patch("L0.pre", there)]), there)
    last = c.model.n_layers - 1
    same_ends(c.model.trace(IDS, edits=[patch(f"L{last}", there)]), there)
    writes: list[Edit] = [patch("L0.pre", there)]
    parts = [part for n in range(last + 1) for part in Site.parse(f"L{n}").sub_blocks(c.model)]
    writes += [patch(str(part), there) for part in parts]
    same_ends(c.model.trace(IDS, edits=writes), there)
    some = c.model.trace(IDS, edits=[patch("L0", there, positions=[AT])])
    close(some[0].resid_post[AT], there[0].resid_post[AT])
    close(some[0].resid_post[AT - 1], c.trace[0].resid_post[AT - 1])


def same_ends(ours: Trace, theirs: Trace) -> None:
    close(ours.final, theirs.final)
    close(ours.logits, theirs.logits)


@every_variant
def test_attention_from_another_run(name: str) -> None:
    """Queries and keys bring its weights; weights and values bring what it wrote."""
    c, there = case(name), other(name)
    for n in (0, c.model.n_layers - 1):
        heads = range(len(c.model.layers[n].heads))
        looks = [patch(f"L{n}H{h}.{part}", there) for h in heads for part in "qk"]
        x = c.model.trace(IDS, edits=looks)[n]
        close(x.pattern, there[n].pattern)
        close(x.q, there[n].q)
        close(x.k_rotated, there[n].k_rotated)
        takes = [patch(f"L{n}H{h}.{part}", there) for h in heads for part in ("pattern", "v")]
        y = c.model.trace(IDS, edits=takes)[n]
        close(y.z / gate_of(y), there[n].z / gate_of(there[n]))
        close(y.v, there[n].v)
        one = c.model.trace(IDS, edits=[patch(f"L{n}H1.pattern", there, positions=[-1])])[n]
        close(one.pattern[1, -1], there[n].pattern[1, -1])
        taken = one.pattern[1, -1] @ one.v[:, c.model.layers[n].heads[1].kv_index]
        close((one.z / gate_of(one))[-1, 1], taken)
        close(one.z[:-1], c.trace[n].z[:-1])
        close(one.z[:, 0], c.trace[n].z[:, 0])


def gate_of(layer: LayerTrace) -> Tensor:
    """What heads' sums of values are multiplied by, in models with gates."""
    return torch.ones_like(layer.z) if layer.gate is None else layer.gate


MIXED = {n for n in WHOLE if any(b.mixer for b in architecture(n).blocks)}
MASK = [n for n in WHOLE if n != "bloom" and not n.startswith("falcon-rw") and n not in MIXED]
"""ALiBi counts positions by the mask, so there masking also moves the tokens behind; mixers see
what heads do not."""


@pytest.mark.parametrize("name", MASK)
def test_cutting_all_attention_to_a_position_is_masking_it(name: str) -> None:
    c = case(name)
    ids, mask = torch.tensor([IDS]), torch.ones(1, len(IDS), dtype=torch.long)
    mask[0, AT] = 0
    options: dict[str, Any] = {}
    if "position_ids" in inspect.signature(c.module.forward).parameters:
        start = 0 if c.model.architecture.causal else c.model.architecture.position_offset
        options["position_ids"] = torch.arange(start, start + len(IDS))[None]
    with torch.no_grad():
        theirs = c.module(input_ids=ids, attention_mask=mask, **options).logits[0]
    trace = c.model.trace(IDS, edits=[cut(AT, renormalise=True)])
    seen = [i for i in range(len(IDS)) if i != AT]
    close(trace.logits[seen], theirs[seen])
    assert not trace[0].pattern[:, :, AT].any()


@every_variant
def test_cut_weights_are_gone_and_the_rest_stays(name: str) -> None:
    c = case(name)
    n = c.model.n_layers - 1
    was = c.trace[n].pattern
    bare = c.model.trace(IDS, edits=[cut([5, 6], -1, heads=f"L{n}H1")])[n]
    assert not bare.pattern[1, -1, 5:].any()
    close(bare.pattern[1, -1, :5], was[1, -1, :5])
    close(bare.pattern[1, :-1], was[1, :-1])
    close(bare.pattern[0], was[0])
    kv = c.model.layers[n].heads[1].kv_index
    close((bare.z / gate_of(bare))[-1, 1], was[1, -1, :5] @ c.trace[n].v[:5, kv])
    full = c.model.trace(IDS, edits=[cut([5, 6], -1, heads=f"L{n}H1", renormalise=True)])[n]
    if was[1, -1, :5].sum() > 1e-6:
        close(full.pattern[1, -1, :5], was[1, -1, :5] / (1 - was[1, -1, 5:].sum()))


@every_variant
def test_steering_adds_exactly_the_vector(name: str) -> None:
    c = case(name)
    vector = torch.linspace(-1, 1, c.model.d_model)
    trace = c.model.trace(IDS, edits=[add("L0", vector, 2.5, positions=[AT, -1])])
    n = 1 if (streams := c.model.architecture.streams) is None else streams.count
    more = torch.zeros_like(c.trace.entering(1))
    more[[AT, -1]] = 2.5 * vector.repeat(n)
    assert torch.equal(trace.entering(1), c.trace.entering(1) + more)
    entering = c.model.trace(IDS, edits=[add("L0.pre", vector)])
    assert torch.equal(entering.entering(0), c.trace.entering(0) + vector.repeat(n))
    where = "L0E0N3.value" if isinstance(c.model.layers[0].spec.ff, Experts) else "L0N3.value"
    by_name = c.model.trace(IDS, edits=[add("L0", where)])
    close(by_name.entering(1), c.trace.entering(1) + c.model.vector(where).tensor.repeat(n))
    two = c.model.trace(IDS, edits=[add("L0", (other(name), c.trace))])
    apart = other(name).entering(1)[-1] - c.trace.entering(1)[-1]
    close(two.entering(1), c.trace.entering(1) + apart)


@every_variant
def test_padding_changes_nothing(name: str) -> None:
    c = case(name)
    n = c.model.n_layers - 1
    edits = [
        ablate("L0H1", to="mean"),
        cut(0, -1, heads="L0", renormalise=True),
        ablate(f"L{n}.mlp", positions=[-1]),
        add("L0", torch.ones(c.model.d_model), positions=slice(-2, None)),
    ]
    short, whole = c.model.trace([IDS[:4], IDS], edits=edits)
    same(whole, c.model.trace(IDS, edits=edits))
    same(short, c.model.trace(IDS[:4], edits=edits))


@every_variant
def test_contributions_still_add_up(name: str) -> None:
    c = case(name)
    n = c.model.n_layers - 1
    edits = [
        ablate("L0H1"),
        ablate(f"L{n}.attn"),
        scale("L0.mlp", 0.5),
        add("L0", torch.linspace(-1, 1, c.model.d_model)),
        add("L0.pre", torch.linspace(1, -1, c.model.d_model)),
        cut(0, -1),
    ]
    found = c.model.trace(IDS, edits=edits).contributions(7)
    assert abs(found.total - found.logit) < 2e-4 * (1 + abs(found.logit))
    assert found[f"L{n}.attn.edited"] != 0
