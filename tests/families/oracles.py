"""The oracles: transformers' own modules must compute what our parameters say they compute.

Each takes a transformers model and our `Model` of it (read from disk or from the live module) and
raises an AssertionError where they differ; what says nothing about a model is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lexray.families import Experts
from lexray.model.feedforward import FeedForward
from lexray.model.head import Head
from lexray.model.model import Model
from tests.families import forward

IDS = torch.tensor([[5, 11, 3, 29, 36, 7, 20]])


class Calls(dict[str, list[tuple[Tensor, Tensor]]]):
    """The first input and the output of modules, call by call."""

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        """Of the first call."""
        return self.at(name, 0)

    def at(self, name: str, call: int) -> tuple[Tensor, Tensor]:
        return self.get(name, [])[call]


@contextmanager
def recorded(module: PreTrainedModel, *names: str) -> Iterator[Calls]:
    """The first input and the output of each named module during the forward passes inside."""
    seen = Calls()

    def keep(name: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            x = args[0] if args else kwargs["hidden_states"]
            out = out[0] if isinstance(out, tuple) else out
            # cloned, since some blocks go on to add to the output in place
            calls = seen.setdefault(name, [])
            calls.append(tuple(y.flatten(0, -2).detach().clone() for y in (x, out)))

        return hook

    handles = [
        module.get_submodule(n).register_forward_hook(keep(n), with_kwargs=True)
        for n in dict.fromkeys(names)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def run(module: PreTrainedModel, ids: Tensor, **inputs: Any) -> Any:
    with torch.no_grad():
        return module(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4 * float(theirs.abs().max() + 1))


def ov(module: PreTrainedModel, live: Model, model: Model) -> None:
    """One token: attention is 1, so the output is Σ_heads x W_V W_O plus biases."""
    for layer, there in zip(model.layers, live.layers, strict=True):
        if there.spec.attention.absent:
            continue
        reader, writer = there.spec.attention.v.linear.reader, there.spec.attention.o.module
        with recorded(module, reader, writer) as seen:
            run(module, IDS[:, :1])
        x, expected = seen[reader][0], seen[writer][1]
        alone = torch.ones(len(layer.heads), 1, 1)
        if there.spec.attention.sinks is not None:  # which take some of it
            alone = attention_weights(
                model, layer.index, attention_scores(model, layer.index, x, [0])
            )
        close(attention_output(model, layer.index, x, alone), expected)


def attention_weights(model: Model, layer: int, scores: Tensor) -> Tensor:
    """The softmax of scores, with a sink's beside them where there is one."""
    sinks = [head.sink for head in model.layers[layer].heads]
    if sinks[0] is None:
        return scores.softmax(-1)
    more = torch.tensor(sinks)[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat([scores, more], -1).softmax(-1)[..., :-1]


def attention_scores(
    model: Model, layer: int, x: Tensor, positions: list[int], source: Tensor | None = None
) -> Tensor:
    """(head, query, key) scores before the softmax, from our parameters alone; `source` is what
    keys are made of, x unless given."""
    at = torch.tensor(positions)
    offsets = at[None, :] - at[:, None]
    scores = []
    for head in model.layers[layer].heads:
        q, k, spec = head.queries(x), head.keys(x if source is None else source), head.spec
        score = q @ k.T
        if (gains := head.turned_gains) is not None:
            q, k = (spec.rotary.turn(y[:, None], at)[:, 0] for y in (q, k))
            score = q * gains @ k.T
        elif spec.rotary is not None:
            for offset in offsets.unique().tolist():
                turned = q @ head.rotation(offset).to(q) @ k.T
                score = torch.where(offsets == offset, turned, score)
        score = score * spec.scale + head.alibi_slope * at + head.distance_scores(q, k, at)
        if spec.temperature is not None:
            score = score * spec.temperature(at)[:, None]
        scores.append(score if spec.cap is None else spec.cap * (score / spec.cap).tanh())
    return torch.stack(scores)


def qk_at(
    module: PreTrainedModel, live: Model, model: Model, positions: list[int], **inputs: Any
) -> None:
    """Attention weights (where the implementation returns them) and outputs at these positions."""
    specs = {n: x.spec.attention for n, x in enumerate(live.layers) if x.heads}
    names = [
        name
        for spec in specs.values()
        for name in (spec.q.linear.reader, spec.k.linear.reader, spec.o.module)
    ]
    with recorded(module, *names) as seen:
        eager = module.config._attn_implementation == "eager"
        out = run(module, IDS[:, : len(positions)], output_attentions=eager, **inputs)
    for (n, spec), theirs in zip(specs.items(), given_weights(out, len(specs)), strict=True):
        before = [specs[m].q for m in specs if m < n]
        reader, call = spec.q.linear.reader, before.count(spec.q)
        x, visible = seen.at(reader, call)[0], allowed(model, n, len(positions))
        source = x if spec.shares is None else seen[spec.k.linear.reader][0]
        scores = attention_scores(model, n, x, positions, source)
        ours = attention_weights(model, n, scores.masked_fill(~visible, -torch.inf))
        if theirs is not None:
            assert torch.equal(theirs[0] > 0, visible.expand_as(theirs[0])), f"layer {n}: mask"
            close(told(ours, theirs[0]), theirs[0])
        close(attention_output(model, n, x, ours, source), seen.at(spec.o.module, call)[1])


def told(ours: Tensor, theirs: Tensor) -> Tensor:
    """Weights as transformers tells them: of some models before sinks take their share."""
    all_told = torch.allclose(theirs.sum(-1), torch.ones(theirs.shape[:-1]))
    return ours / ours.sum(-1, keepdim=True) if all_told else ours


def given_weights(out: Any, n: int) -> list[Tensor | None]:
    """The attention weights that transformers gives, of the layers that have heads."""
    found = [weights for weights in out.attentions or [] if weights is not None]
    return found or [None] * n


def attention_output(
    model: Model, layer: int, x: Tensor, weights: Tensor, source: Tensor | None = None
) -> Tensor:
    """Σ_heads weights · values W_O plus the bias; `source` is what values are made of, x unless
    given."""
    source = x if source is None else source
    heads = model.layers[layer].heads
    total = torch.zeros(len(x), model.d_model)
    for head, weight in zip(heads, weights, strict=True):
        total = total + weight @ head.values(source) * head_gate(head, x) @ head.W_O
    b_O = heads[0].b_O
    return total if b_O is None else total + b_O


def head_gate(head: Head, x: Tensor) -> Tensor | float:
    """What a head's sum of values is multiplied by at inputs x."""
    if (gate := head.spec.gate) is None:
        return 1.0
    raw, at = head.weights.checkpoint, gate.outputs(head.index)
    bias = gate.linear.read_bias(raw, at)
    return (x @ gate.linear.read(raw, outputs=at) + (0 if bias is None else bias)).sigmoid()


def allowed(model: Model, layer: int, n: int) -> Tensor:
    """Which keys (columns) each query (row) can see."""
    distance = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    seen = distance >= 0 if model.architecture.causal else torch.ones(n, n, dtype=torch.bool)
    spec = model.layers[layer].spec.attention
    if spec.chunk is not None:
        place = torch.arange(n) // spec.chunk
        seen = seen & (place[:, None] == place)
    window = spec.window
    return seen if window is None else seen & (distance.abs() < window)


def qk(module: PreTrainedModel, live: Model, model: Model) -> None:
    """Two tokens in one place: rotary is the identity, and the weights are those of the QK form."""
    if all(layer.spec.attention.rotary is None for layer in model.layers):
        pytest.skip("nothing turns: `rotation` checks the QK form already")
    zeros = torch.zeros(1, 2, dtype=torch.long)
    qk_at(module, live, model, [0, 0], position_ids=zeros)


def rotation(module: PreTrainedModel, live: Model, model: Model) -> None:
    """Tokens in distinct places: rotations, ALiBi, windows, caps and scales."""
    qk_at(module, live, model, list(range(IDS.shape[1])))


def ff(module: PreTrainedModel, live: Model, model: Model) -> None:
    """The feed-forward writes Σ_neurons coefficient · value, experts weighted by the router."""
    for layer, there in zip(model.layers, live.layers, strict=True):
        spec = there.spec.ff
        if spec.absent:
            continue
        reader, writer = (
            (spec.module, spec.module)
            if isinstance(spec, Experts)
            else (spec.w_in.module, spec.w_out.module)
        )
        beside = [spec.shared.w_out.module] if getattr(spec, "shared_beside", False) else []
        sums = getattr(spec, "sum_reader", None)
        norm = spec.pre_norm.module if sums else reader
        with recorded(module, reader, writer, *beside, norm, *([sums] if sums else [])) as seen:
            run(module, IDS)
        x, expected = seen[reader][0], sum(seen[name][1] for name in (writer, *beside))
        expected = seen[sums][0] if sums else expected
        close(forward.written(layer.ff, x, seen[norm][0]), expected)
        if isinstance(layer.ff, FeedForward):
            neuron, coefficient = layer.ff.neurons[3], forward.coefficients(layer.ff, x)[:, 3]
            removed = forward.coefficients(layer.ff, x).clone()
            removed[:, 3] = 0
            b_out = 0 if neuron.b_out is None else neuron.b_out
            close(removed @ layer.ff.W_out + coefficient[:, None] * neuron.W_out + b_out, expected)


def unembedding(module: PreTrainedModel, live: Model, model: Model) -> None:
    """Logits are norm_f(h) · E with our E, scale, cap and bias."""
    a = live.architecture
    last = (a.final_norm and a.final_norm.module) or (a.head and a.head.dense.module)
    if last is None and a.project_out is not None:
        last = a.project_out.module
    behind = last is None and a.blocks[-1].ff.sum_norm is not None  # nothing is left to be normed
    if behind:
        last = a.blocks[-1].ff.sum_norm.module
    if last is None:  # a norm without parameters has no tensor to be found by
        names = [name for name, _ in module.named_modules()]
        last = next(n for n in names if n in ("model.norm", "model.decoder.final_layer_norm"))
    with recorded(module, last) as seen:
        logits = run(module, IDS).logits[0]
    close(
        model.logits(seen.at(last, -1)[int(behind)]), logits
    )  # nanochat norms embeddings by it too


def folding(module: PreTrainedModel, live: Model, model: Model) -> None:
    """Folded matrices on the bare norm give what raw ones give on the whole norm."""
    folded = model.view(folded=True)
    x, raw = torch.randn(5, model.d_model), model.checkpoint
    for layer, other in zip(model.layers, folded.layers, strict=True):
        norm = layer.spec.attention.pre_norm
        whole = x if norm is None else norm(x, model.checkpoint)
        bare = x if norm is None else norm.bare(x)
        source = layer.spec.attention.norm_of("K")
        own, given = (bare, whole) if source == norm else (source.bare(x), source(x, raw))
        for a, b in zip(layer.heads, other.heads, strict=True):
            close(b.queries(bare), a.queries(whole))
            close(b.keys(own), a.keys(given))
            close(b.values(own), a.values(given))
            post = layer.spec.attention.post_norm
            written = torch.randn(5, a.spec.v.d_head)
            if post is not None:
                y = written @ a.W_O
                centred = y - y.mean(-1, keepdim=True) if post.centres else y
                close(written @ b.W_O, centred * post.read_gain(model.checkpoint))
            else:
                close(b.W_O, a.W_O)
        for f, g in zip(layer.feed_forwards, other.feed_forwards, strict=True):
            norm = f.norms.pre_norm
            whole = x if norm is None else norm(x, raw)
            bare = x if norm is None else norm.bare(x)
            close(forward.coefficients(g, bare), forward.coefficients(f, whole))
    final = model.architecture.final_norm
    if final is not None and model.architecture.head is None:
        b_U = folded.b_U
        logits = final.bare(x) @ folded.W_U + (0 if b_U is None else b_U)
        cap = model.architecture.logit_cap
        close(logits if cap is None else cap * (logits / cap).tanh(), model.logits(x))


def disk_is_memory(module: PreTrainedModel, live: Model, model: Model) -> None:
    """Every parameter read lazily equals the one in memory, to the last bit."""
    if model is live:
        pytest.skip("this model is the one in memory")
    for (name, ours), (_, theirs) in zip(parameters(model), parameters(live), strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert torch.equal(ours, theirs), name


def parameters(model: Model) -> Iterator[tuple[str, Tensor | None]]:
    for name in ("W_E", "W_U", "b_U", "W_pos"):
        yield name, getattr(model, name)
    for layer in model.layers:
        for head in layer.heads:
            for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
                yield f"{head.address} {name}", getattr(head, name)
        if layer.spec.mixer is not None:
            for name in ("W_in", "W_out", "b_out"):
                yield f"{layer.mixer.address} {name}", getattr(layer.mixer, name)
        for feed_forward in layer.feed_forwards:
            for name in ("W_in", "W_gate", "W_out", "b_in", "b_gate", "b_out"):
                yield f"{feed_forward.address} {name}", getattr(feed_forward, name)


def mixers(module: PreTrainedModel, live: Model, model: Model) -> None:
    """A mixer reads the stream through W_in and writes to it through W_out."""
    there = [layer for layer in live.layers if layer.spec.mixer is not None]
    if not there:
        pytest.skip("no layer has a mixer")
    for layer in there:
        spec = layer.spec.mixer
        names = [linear.module for linear in spec.inputs]
        with recorded(module, *names, spec.w_out.module) as seen:
            run(module, IDS)
        ours = model.layers[layer.index].mixer
        b_in = [linear.read_bias(live.checkpoint) for linear in spec.inputs]
        read = torch.cat([seen[name][1] for name in names], 1)
        if b_in[0] is not None:
            read = read - torch.cat(b_in)
        assert ours.W_in.shape == (model.d_model, spec.d_in)
        close(seen[names[0]][0] @ ours.W_in, read)
        inner, written = seen[spec.w_out.module]
        close(inner @ ours.W_out + (0 if ours.b_out is None else ours.b_out), written)


ORACLES = {
    "OV": ov,
    "QK": qk,
    "rotation": rotation,
    "FF": ff,
    "mixers": mixers,
    "unembedding": unembedding,
    "folding": folding,
    "disk=memory": disk_is_memory,
}


def check_all(
    subtests: pytest.Subtests,
    log: list[str],
    module: PreTrainedModel,
    live: Model,
    model: Model,
    **about: str,
) -> None:
    """Every oracle as a subtest; the log has those that ran and agreed."""
    for name, oracle in ORACLES.items():
        with subtests.test(oracle=name, **about):
            oracle(module, live, model)
            log.append(name)
