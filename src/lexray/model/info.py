"""What a checkpoint is: family, sizes, where its parameters live, what reading a head costs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from lexray.families import Attention, Experts, FeedForward, Linear, Norm, QKNorm
from lexray.families.spec import ALL
from lexray.model.weights import Weights
from lexray.result.format import show_bytes, show_percent
from lexray.result.table import Result, Table

Place = tuple[str, str, str, int]
"""Parameter, tensor's name with {n} for the layer, meaning, how many tensors."""


@dataclass(frozen=True)
class Info(Result):
    """The answer of `lexray info`."""

    model: str
    revision: str | None
    family: str
    model_type: str
    sizes: dict[str, int | None]
    traits: dict[str, str]
    parameters: tuple[dict[str, Any], ...]
    head: dict[str, Any]
    n_parameters: int
    n_tensors: int
    bytes: int

    def tables(self) -> list[Table]:
        facts: list[tuple[str, str]] = [("family", f"{self.family} (model_type {self.model_type})")]
        if self.revision:
            facts.append(("revision", self.revision))
        facts += [(name, "–" if n is None else f"{n:,}") for name, n in self.sizes.items()]
        facts += self.traits.items()
        facts.append(
            (
                "parameters",
                f"{self.n_parameters:,} in {self.n_tensors:,} tensors, {show_bytes(self.bytes)}",
            )
        )
        places = tuple(
            (p["parameter"], p["tensor"], "×".join(map(str, p["shape"])), p["dtype"], p["count"])
            for p in self.parameters
        )
        reads = tuple(
            (r["parameter"], r["tensor"], "×".join(map(str, r["shape"])), show_bytes(r["bytes"]))
            for r in self.head["reads"]
        )
        share = self.head["bytes"] / self.bytes if self.bytes else 0.0
        note = f"{show_bytes(self.head['bytes'])} in all, {show_percent(share)} of the checkpoint"
        return [
            Table(("", self.model), tuple(facts)),
            Table(
                ("parameter", "tensor", "shape", "dtype", "tensors"),
                places,
                title="Where the parameters live",
            ),
            Table(
                ("parameter", "tensor", "shape", "bytes"),
                reads,
                title=f"What is read for the pairs of head {self.head['address']}",
                note=note,
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "revision": self.revision,
            "family": self.family,
            "model_type": self.model_type,
            "sizes": self.sizes,
            "traits": self.traits,
            "parameters": list(self.parameters),
            "head": self.head,
            "n_parameters": self.n_parameters,
            "n_tensors": self.n_tensors,
            "bytes": self.bytes,
        }


def info(model: Weights) -> Info:
    """Looks at headers only; reads no weights."""
    c = model.checkpoint
    a = model.architecture
    names = list(c.names())
    return Info(
        model=model.name,
        revision=c.revision,
        family=model.family.title,
        model_type=str(model.config.get("model_type")),
        sizes={
            "layers": model.n_layers,
            "heads": a.n_heads,
            "key-value heads": a.n_kv_heads,
            "d_model": a.d_model,
            "d_head": a.d_head,
            "d_mlp": a.d_mlp,
            "experts": experts(model),
            "d_vocab": a.d_vocab,
            "tokens": len(model.vocabulary),
            "context": a.n_ctx,
        },
        traits=traits(model),
        parameters=tuple(parameters(model)),
        head=one_head(model),
        n_parameters=sum(prod(c.info(name).shape) for name in names),
        n_tensors=len(names),
        bytes=sum(c.size(name) for name in names),
    )


def experts(model: Weights) -> int | None:
    counts = [len(b.ff.experts) for b in model.architecture.blocks if isinstance(b.ff, Experts)]
    return max(counts, default=None)


def traits(model: Weights) -> dict[str, str]:
    """How the model is built, in words."""
    a = model.architecture
    attentions = [block.attention for block in a.blocks]
    ff = a.blocks[0].ff if a.blocks else None
    inner = ff.experts[0] if isinstance(ff, Experts) else ff
    found = {
        "embeddings": "tied" if a.tied else "untied",
        "positions": positions(model),
        "blocks": "parallel" if any(block.parallel for block in a.blocks) else "sequential",
        "norms": norms(model),
        "feed-forward": f"{'gated ' if inner and inner.w_gate else ''}{inner.activation}"
        if inner
        else "none",
    }
    if not a.causal:
        found["attention"] = "sees both ways"
    if any(x.q_norm for x in attentions):
        found["queries and keys"] = "normed"
    windows = Counter(x.window for x in attentions if x.window)
    if windows:
        found["windows"] = ", ".join(
            f"{w} in {n} of {model.n_layers} layers" for w, n in windows.items()
        )
    if model.vocabulary.caveat:
        found["tokenizer"] = model.vocabulary.caveat
    return found


def positions(model: Weights) -> str:
    a = model.architecture
    turned = [block.attention.rotary for block in a.blocks if block.attention.rotary]
    if turned:
        dims = 2 * len(turned[0].frequencies)
        pairs = "halves" if turned[0].kind == "half" else "adjacent pairs"
        some = (
            ""
            if len(turned) == model.n_layers
            else f", in {len(turned)} of {model.n_layers} layers"
        )
        return f"rotary, {dims} of {a.d_head} dimensions as {pairs}{some}"
    if any(block.attention.alibi for block in a.blocks):
        return "ALiBi"
    return "learned" if a.positions else "none"


def norms(model: Weights) -> str:
    attention = model.architecture.blocks[0].attention if model.architecture.blocks else None
    places = {
        "before": attention and (model.architecture.blocks[-1].attention.pre_norm),
        "on the output of": attention and attention.post_norm,
        "after": attention and attention.sum_norm,
    }
    used = {place: norm for place, norm in places.items() if norm}
    if not used:
        return "none"
    kind = "LayerNorm" if next(iter(used.values())).kind == "layer" else "RMSNorm"
    return f"{kind} {' and '.join(used)} each sub-block"


def parameters(model: Weights) -> list[dict[str, Any]]:
    """Each kind of parameter, the tensors that hold it, and one such tensor's shape and dtype."""
    a = model.architecture
    named: list[tuple[str, str | None]] = [
        ("W_E (input embedding)", a.embed),
        ("W_U (output embedding, E)", None if a.tied else a.unembed),
        ("b_U", a.unembed_bias),
        ("W_pos", a.positions),
        ("W_type", a.token_types),
        *_norm("norm of the embedding", a.embed_norm),
        *_linear("E to d_model", a.project_in),
        *_linear("d_model to U", a.project_out),
        *_norm("final norm", a.final_norm),
        *(_linear("LM head", a.head.dense) if a.head else []),
        *(_norm("norm in the LM head", a.head.norm) if a.head else []),
    ]
    for block in a.blocks:
        named += _attention(block.attention)
        named += _feed_forward(block.ff)
    groups: dict[tuple[str, str], list[str]] = {}
    for label, name in named:
        if name is not None and name in model.checkpoint.names():
            pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{n}", name, count=1)
            pattern = re.sub(r"(?<=experts\.)\d+", "{e}", pattern)
            pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{i}", pattern)
            groups.setdefault((label, pattern), []).append(name)
    return [
        {
            "parameter": label,
            "tensor": pattern,
            "shape": list(model.checkpoint.info(found[0]).shape),
            "dtype": model.checkpoint.info(found[0]).stored
            or str(model.checkpoint.info(found[0]).dtype).removeprefix("torch."),
            "count": len(set(found)),
        }
        for (label, pattern), found in groups.items()
    ]


def _norm(label: str, norm: Norm | None) -> list[tuple[str, str | None]]:
    return [] if norm is None else [(label, norm.gain), (f"{label}, bias", norm.bias)]


def _qk_norm(label: str, norm: QKNorm | None) -> list[tuple[str, str | None]]:
    found = [] if norm is None else [*norm.heads, *([norm.joint] if norm.joint else [])]
    return [place for one in found for place in _norm(label, one)]


def _linear(label: str, linear: Linear | None) -> list[tuple[str, str | None]]:
    if linear is None:
        return []
    return [(f"W_{label}", linear.weight), (f"b_{label}", linear.bias)]


def _attention(x: Attention) -> list[tuple[str, str | None]]:
    return [
        *_norm("norm before attention", x.pre_norm),
        *_linear("Q", x.q.linear),
        *_linear("K", x.k.linear),
        *_linear("V", x.v.linear),
        *_qk_norm("norm of queries", x.q_norm),
        *_qk_norm("norm of keys", x.k_norm),
        *_linear("O", x.o),
        *_norm("norm on attention's output", x.post_norm),
        *_norm("norm after attention", x.sum_norm),
    ]


def _feed_forward(x: FeedForward | Experts) -> list[tuple[str, str | None]]:
    dense = [x] if isinstance(x, FeedForward) else [*x.experts, *([x.shared] if x.shared else [])]
    return [
        *_norm("norm before feed-forward", x.pre_norm),
        *([] if isinstance(x, FeedForward) else _linear("router", x.router)),
        *([] if isinstance(x, FeedForward) else _linear("shared expert's gate", x.shared_gate)),
        *(p for ff in dense for p in _linear("in (keys)", ff.w_in)),
        *(p for ff in dense for p in _linear("gate", ff.w_gate)),
        *(p for ff in dense for p in _linear("out (values)", ff.w_out)),
        *_norm("norm on feed-forward's output", x.post_norm),
        *_norm("norm after feed-forward", x.sum_norm),
    ]


def one_head(model: Weights) -> dict[str, Any]:
    """What the token pairs of one head need: E and the head's slices."""
    a, c = model.architecture, model.checkpoint
    spec = a.blocks[0].attention
    reads = (
        [_reading("E", a.unembed, list(c.info(a.unembed).shape), c.cost(a.unembed))]
        if a.unembed in c.names()
        else []
    )
    for label, heads in (("W_Q", spec.q), ("W_K", spec.k), ("W_V", spec.v)):
        cost = heads.linear.cost(c, outputs=heads.outputs(0))
        reads.append(_reading(label, heads.linear.weight, [a.d_model, a.d_head], cost))
    cost = spec.o.cost(c, inputs=slice(0, a.d_head), outputs=ALL)
    reads.append(_reading("W_O", spec.o.weight, [a.d_head, a.d_model], cost))
    return {"address": "L0H0", "reads": reads, "bytes": sum(r["bytes"] for r in reads)}


def _reading(label: str, tensor: str, shape: list[int], cost: int) -> dict[str, Any]:
    return {"parameter": label, "tensor": tensor, "shape": shape, "bytes": cost}
