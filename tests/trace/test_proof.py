"""Recorded parts rebuild the whole, for every family: the proof that they are what they are called.

Each variant's trace is compared with transformers' own outputs and with our parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lexray.checkpoint.module import modules_by_name
from lexray.errors import LexrayError
from lexray.families import Norm
from lexray.model.layer import Layer
from lexray.model.model import Model
from lexray.trace.record.module import module_of
from lexray.trace.record.plan import PARTS, RecordPlan, kept_bytes
from lexray.trace.record.run import record
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace
from tests.families import forward
from tests.families.forward import united
from tests.families.oracles import allowed, close, given_weights, head_gate, run, told
from tests.families.zoo import VARIANTS, build

NAMES = [v.name for v in VARIANTS]
IDS = [5, 11, 3, 29, 36, 7, 20]
every = pytest.mark.parametrize("name", NAMES)


@dataclass(frozen=True)
class Case:
    module: PreTrainedModel
    model: Model
    trace: Trace
    out: Any
    """What the model gives without us, with its hidden states and attention weights."""


@cache
def case(name: str) -> Case:
    module = build(name)
    model = Model.from_module(module).view("raw")
    eager = module.config._attn_implementation == "eager"
    out = run(module, torch.tensor([IDS]), output_attentions=eager, output_hidden_states=True)
    return Case(module, model, model.trace(IDS), out)


def normed(norm: Norm | None, x: Tensor, model: Model) -> Tensor:
    return x if norm is None else norm(x, model.checkpoint)


@every
def test_logits(name: str) -> None:
    c = case(name)
    close(c.trace.logits, c.out.logits[0])
    close(c.model.logits(c.trace.final), c.out.logits[0])
    cap = c.model.architecture.logit_cap
    if cap is not None:
        close(cap * (c.trace.logits_uncapped / cap).tanh(), c.trace.logits)
        assert not torch.allclose(c.trace.logits_uncapped, c.trace.logits)


@every
def test_residual_stream_is_the_models(name: str) -> None:
    """transformers lists the stream before each block; its last entry may be normed already."""
    c = case(name)
    streams = c.model.architecture.streams
    for n, theirs in enumerate(c.out.hidden_states[:-1]):
        if streams is not None:
            close(c.trace[n].streams.entering, theirs[:, 0].transpose(0, 1))
            close(c.trace[n].resid_pre, united(c.module, theirs[:, 0]))
        elif c.model.architecture.project_in is None:
            close(c.trace[n].resid_pre, theirs[0])
    close(c.trace.embed, c.trace[0].resid_pre)
    close(c.trace.normed, normed(c.model.architecture.final_norm, c.trace.final, c.model))


def check_streams(c: Case, x: LayerTrace) -> None:
    """A layer of Gemma 3n, from what it wrote and the numbers by which it mixes its streams."""
    spec, streams, module = x.spec, x.streams, modules_by_name(c.module)
    altup, active = module[f"{spec.module}.altup"], c.module.config.altup_active_idx
    entering = streams.entering.transpose(0, 1)[:, None]
    with torch.no_grad():
        predicted = altup.predict(entering)
        close(streams.predicted, predicted[:, 0].transpose(0, 1))
        close(x.resid_in, predicted[active, 0])
        close(x.attn_in, normed(spec.attention.pre_norm, x.resid_in, c.model))
        narrow = module[f"{spec.module}.laurel"](x.attn_in)
        close(x.laurel_out, narrow - x.attn_in)
        close(x.laurel_out, normed(spec.laurel.post_norm, x.laurel_write, c.model))
        close(x.resid_mid, (x.resid_in + x.attn_out + narrow) / 2**0.5)
        close(x.mlp_in, normed(spec.ff.pre_norm, x.resid_mid, c.model))
        corrected = altup.correct(predicted, x.resid_late[None])[:, 0]
        close(x.mixer_in, normed(spec.mixer.pre_norm, corrected[active], c.model))
    close(x.mixer_out, normed(spec.mixer.post_norm, x.mixer_write, c.model))
    changed = streams.correct[..., None] * (x.resid_late - x.resid_in)[:, None]
    leaving = streams.predicted + changed
    close(leaving, corrected.transpose(0, 1))
    leaving[:, 1:] += x.mixer_out[:, None]
    close(streams.leaving, leaving)
    close(x.resid_post, united(c.module, leaving.transpose(0, 1)))


@every
def test_blocks_add_up(name: str) -> None:
    """Residual + parts = next residual, through the norms that the family puts around them."""
    c = case(name)
    for layer in c.model.layers:
        if layer.spec.altup is not None:
            check_streams(c, c.trace[layer.index])
            continue
        x, attention, ff = c.trace[layer.index], layer.spec.attention, layer.spec.ff
        mixed = x.resid_pre + x.attn_out
        if attention.absent:
            assert not x.attn_write.any()
        else:
            close(x.attn_in, normed(attention.pre_norm, x.resid_pre, c.model))
        if (mixer := layer.spec.mixer) is not None:
            before = x.resid_late if mixer.last else x.resid_pre
            close(x.mixer_in, normed(mixer.pre_norm, before, c.model))
            close(x.mixer_out, normed(mixer.post_norm, x.mixer_write, c.model))
            mixed = mixed if mixer.last else mixed + x.mixer_out
        close(x.attn_out, normed(attention.post_norm, x.attn_write, c.model))
        close(x.resid_mid, normed(attention.sum_norm, mixed, c.model))
        read = x.resid_pre if layer.spec.parallel else x.resid_mid
        if not ff.absent:
            close(x.mlp_in, normed(ff.pre_norm, read, c.model))
        close(x.mlp_out, normed(ff.post_norm, x.mlp_write, c.model))
        last = x.mixer_out if mixer is not None and mixer.last else 0
        whole = normed(ff.sum_norm, x.resid_mid + x.mlp_out + last, c.model)
        close(x.resid_post, normed(layer.spec.factor, whole, c.model))
        after = layer.index + 1
        close(
            x.resid_post, c.trace.final if after == c.model.n_layers else c.trace[after].resid_pre
        )


@every
def test_heads_add_up(name: str) -> None:
    c = case(name)
    for layer in c.model.layers:
        x, heads = c.trace[layer.index], layer.heads
        if not heads:
            assert x.z.shape[1] == x.head_out.shape[1] == 0
            continue
        b_O = heads[0].b_O
        close(x.head_out.sum(1) + (0 if b_O is None else b_O), x.attn_write)
        for head in heads:
            close(x.head_out[:, head.index], x.z[:, head.index] @ head.W_O)
            values = x.v[:, head.kv_index]
            gate = head_gate(head, x.attn_in)
            close(x.z[:, head.index], x.pattern[head.index] @ values * gate)
            if x.gate is not None:
                close(x.gate[:, head.index], gate)
            close(values, head.values(keys_source(c, layer).attn_in))


def keys_source(c: Case, layer: Layer) -> LayerTrace:
    """The layer whose stream a layer's keys and values are made of."""
    shared = layer.spec.attention.shares
    return c.trace[layer.index if shared is None else shared]


@every
def test_attention_weights(name: str) -> None:
    """From recorded q and k, as transformers gives them, and as our parameters say."""
    c = case(name)
    layers = [layer for layer in c.model.layers if layer.heads]
    for layer, given in zip(layers, given_weights(c.out, len(layers)), strict=True):
        x, seen = c.trace[layer.index], allowed(c.model, layer.index, len(IDS))
        if given is not None:
            close(told(x.pattern, given[0]), given[0])
        at = torch.arange(len(IDS))
        for head in layer.heads:
            q, k = x.q_rotated[:, head.index], x.k_rotated[:, head.kv_index]
            scores = q @ k.T * head.spec.scale + head.alibi_slope * at
            scores = scores + head.distance_scores(q, k, at)
            if (cap := head.spec.cap) is not None:
                scores = cap * (scores / cap).tanh()
            scores = scores.masked_fill(~seen, -torch.inf)
            if head.sink is not None:
                scores = torch.cat([scores, torch.full((len(IDS), 1), head.sink)], 1)
            close(scores.softmax(-1)[:, : len(IDS)], x.pattern[head.index])


@every
def test_queries_and_keys(name: str) -> None:
    """Unrotated ones are our parameters'; turned by `Head.rotation` they meet as rotated ones."""
    c = case(name)
    for layer in c.model.layers:
        x = c.trace[layer.index]
        for head in layer.heads:
            q, k = x.q[:, head.index], x.k[:, head.kv_index]
            close(q, head.queries(x.attn_in))
            close(k, head.keys(keys_source(c, layer).attn_in))
            met = x.q_rotated[:, head.index] @ x.k_rotated[:, head.kv_index].T
            if (grows := head.spec.temperature) is not None:
                met = met / grows(torch.arange(len(IDS)))[:, None]
            if (gains := head.turned_gains) is not None:
                q, k = (head.spec.rotary.turn(y[:, None], torch.arange(len(IDS))) for y in (q, k))
                close(q[:, 0] * gains @ k[:, 0].T, met)
                continue
            for offset in range(1 - len(IDS), 1):
                R = head.rotation(offset)
                turned = q @ (torch.eye(len(k[0])) if R is None else R.to(q)) @ k.T
                close(turned.diagonal(offset), met.diagonal(offset))


@every
def test_neurons_add_up(name: str) -> None:
    """Σ coefficient · value + bias = what the feed-forward writes, experts included."""
    c = case(name)
    for layer in c.model.layers:
        x = c.trace[layer.index]
        for position in range(len(IDS)):
            written = torch.zeros(c.model.d_model)
            for part in x.active(position):
                written = written + part.coefficients @ part.ff.W_out
                if part.ff.b_out is not None:
                    written = written + part.weight * part.ff.b_out
            close(written, x.mlp_write[position])


@every
def test_pre_activations(name: str) -> None:
    c = case(name)
    for layer in c.model.layers:
        x, ff = c.trace[layer.index], layer.ff
        if layer.spec.ff.absent:
            continue
        if x.experts is not None:
            assert x.pre is x.gate_pre is x.coefficients is None
            routing = torch.zeros(len(IDS), len(ff.experts))
            routing.scatter_(1, x.experts.chosen, x.experts.weights)
            close(routing, forward.routing(ff, forward.router_input(ff, x.mlp_in, x.resid_mid)))
            continue
        close(x.pre, x.mlp_in @ ff.W_in + (0 if ff.b_in is None else ff.b_in))
        close(x.coefficients, forward.coefficients(ff, x.mlp_in))
        if ff.W_gate is None:
            assert x.gate_pre is None
        else:
            close(x.gate_pre, x.mlp_in @ ff.W_gate + (0 if ff.b_gate is None else ff.b_gate))


@every
def test_embedding_adds_up(name: str) -> None:
    c = case(name)
    parts, a = c.trace.embed_parts, c.model.architecture
    if a.projects_last:
        P, b = (getattr(a.project_in, f)(c.model.checkpoint) for f in ("read", "read_bias"))
        close(normed(a.embed_norm, sum(parts.values()), c.model) @ P + b, c.trace.embed)
        parts = {name: part @ P for name, part in parts.items()}
    elif a.streams is not None:
        maps = [torch.eye(c.model.d_model), *(p.weight for p in spreading(c.module))]
        spread = torch.stack([parts["token"] @ W.detach().T for W in maps])
        spread *= parts["token"].norm(dim=-1, keepdim=True) / spread.norm(dim=-1, keepdim=True)
        close(c.trace[0].streams.entering, spread.transpose(0, 1))
        close(c.trace.embed, united(c.module, spread))
    else:
        close(normed(a.embed_norm, sum(parts.values()), c.model), c.trace.embed)
    close(parts["token"], c.model.W_E[IDS] * a.embed_scale)
    assert ("position" in parts) == bool(a.positions or a.sinusoids)
    if (W_pos := c.model.W_pos) is not None:
        close(parts["position"], W_pos[: len(IDS)])


def spreading(module: Any) -> Any:
    return module.base_model.altup_projections


@every
def test_batch_is_single(name: str) -> None:
    """Shorter sequences are padded and masked, and come out as if alone."""
    c = case(name)
    first, short, whole = c.model.trace([[8, 4], IDS[:4], IDS])
    assert [len(first), len(short), len(whole)] == [2, 4, 7]
    same(whole, c.trace)
    same(short, c.model.trace(IDS[:4]))


def same(ours: Trace, theirs: Trace) -> None:
    assert ours.parts.keys() == theirs.parts.keys()
    assert ours.ids.tolist() == theirs.ids.tolist()
    for key, x in theirs.parts.items():
        if x.is_floating_point():
            close(ours.parts[key], x)
        else:
            assert torch.equal(ours.parts[key], x), key


EVERYWHERE = ("k", "v", "k_rotated")


@every
def test_restricted_is_a_slice(name: str) -> None:
    c = case(name)
    some = c.model.trace(IDS, positions=[-1, 2], layers=-1, what=("attention", "residual", "mlp"))
    last = c.model.n_layers - 1
    assert (some.positions, some.layers) == ((2, 6), (last,))
    for (layer, part), x in some.parts.items():
        whole = c.trace.parts[layer, part]
        if part == "pattern":
            close(x, whole[:, [2, 6]])
        else:
            close(x, whole if part in EVERYWHERE else whole[[2, 6]])
    around = ("resid_pre", "streams")
    assert {layer for layer, part in some.parts if part not in around} <= {None, last}
    ends = c.model.trace(IDS, positions=[3], what="logits")
    close(ends.logits, c.trace.logits[3:4])


@every
def test_memory_is_foretold(name: str) -> None:
    """The estimate is what a trace takes, to a few per cent."""
    c = case(name)
    t = c.trace
    plan = RecordPlan((len(IDS),), (t.positions,), t.layers, t.what, torch.device("cpu"))
    taken = sum(x.nbytes for x in t.parts.values())
    foretold = kept_bytes(c.model, plan, 4)
    assert 0.9 * foretold <= taken <= 1.05 * foretold


@every
def test_module_is_left_as_it_was(name: str) -> None:
    c = case(name)
    before = state_of(c.module)
    c.model.trace(IDS)
    assert state_of(c.module) == before
    again = run(c.module, torch.tensor([IDS]))
    assert torch.equal(again.logits, run(c.module, torch.tensor([IDS])).logits)
    close(again.logits, c.out.logits)


@every
def test_a_pass_that_stops_is_the_beginning_of_a_whole_one(name: str) -> None:
    """What is kept is the same; of the layers after it none is run, and nothing stays behind."""
    c, ran = case(name), []
    before = state_of(c.module)
    last = c.trace.weights.architecture.blocks[-1].module
    handle = modules_by_name(module_of(c.model))[last].register_forward_hook(
        lambda *_: ran.append(last)
    )
    (part,) = record(c.model, [IDS], layers=[0], what=["attention", "heads", "mlp"], stops=True)
    handle.remove()
    assert ran == [] or c.model.n_layers == 1
    assert state_of(c.module) == before
    for key, x in part.parts.items():
        assert torch.equal(x, c.trace.parts[key]), key
    names = {name for word in ("attention", "heads", "mlp") for name in PARTS[word]}
    wanted = {key for key in c.trace.parts if key[0] == 0 and key[1] in names}
    assert wanted <= part.parts.keys()
    assert {layer for layer, _ in part.parts} <= {None, 0, 1}


def state_of(module: PreTrainedModel) -> list[Any]:
    """Hooks, modes and implementations of a module and its parts."""
    return [
        (
            list(part._forward_hooks),
            list(part._forward_pre_hooks),
            part.training,
            getattr(config, "_attn_implementation", None),
            getattr(config, "_experts_implementation", None),
            "forward" in vars(part),
        )
        for part in module.modules()
        for config in [getattr(part, "config", None)]
    ]


CAUSAL = [v.name for v in VARIANTS if not v.masked]


@pytest.mark.parametrize("name", CAUSAL)
def test_generated_tokens_are_the_most_probable(name: str) -> None:
    c = case(name)
    if not c.model.architecture.causal:
        with pytest.raises(LexrayError, match="cannot continue"):
            c.model.trace([5, 11, 3], new_tokens=4)
        return
    trace = c.model.trace([5, 11, 3], new_tokens=4)
    assert trace.n_prompt == 3
    assert trace.ids[:3].tolist() == [5, 11, 3]
    assert len(trace) == 7 or int(trace.ids[-1]) == c.module.config.eos_token_id
    assert trace.logits[2:-1].argmax(-1).tolist() == trace.ids[3:].tolist()
