"""What a checkpoint is: family, sizes, where its parameters live, what reading a head costs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from lexray.families import Architecture, Experts, Latent, Linear
from lexray.families.walk import Named, tensors, walk
from lexray.model.groups import head_group
from lexray.model.weights import Weights
from lexray.result.format import show_bytes, show_percent
from lexray.result.table import Result, Table
from lexray.space.kinds import WRITES


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
        sizes=encoder_layers(a)
        | {
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


def encoder_layers(a: Architecture) -> dict[str, int | None]:
    """Of a model with two stacks."""
    return {} if a.encoder is None else {"encoder layers": len(a.encoder.blocks)}


def experts(model: Weights) -> int | None:
    counts = [len(b.ff.experts) for b in model.architecture.blocks if isinstance(b.ff, Experts)]
    return max(counts, default=None)


def traits(model: Weights) -> dict[str, str]:
    """How the model is built, in words."""
    a = model.architecture
    attentions = [block.attention for block in a.blocks if not block.attention.absent]
    ff = next((block.ff for block in a.blocks if not block.ff.absent), None)
    inner = ff.experts[0] if isinstance(ff, Experts) else ff
    traits = {
        "embeddings": "tied" if a.tied else "untied",
        "positions": positions(model),
        "blocks": "parallel" if any(block.parallel for block in a.blocks) else "sequential",
        "norms": norms(model),
        "feed-forward": f"{'gated ' if inner and inner.w_gate else ''}{inner.activation}"
        if inner
        else "none",
    }
    if (own := len(a.own_layers)) < len(a.blocks):
        traits["layers"] = f"{len(a.blocks)}, which share the weights of {own}"
    traits |= mixers(model)
    if not a.causal:
        traits["attention"] = "sees both ways"
    if any(x.q_norm for x in attentions):
        values = any(x.v_norm for x in attentions)
        traits["queries, keys and values" if values else "queries and keys"] = "normed"
    if wider := Counter(x.q.d_head for x in attentions if x.q.d_head != a.d_head):
        traits["heads"] = ", ".join(
            f"{d} dimensions wide in {n} of {model.n_layers} layers" for d, n in wider.items()
        )
    if lent := sum(x.shares is not None for x in attentions):
        traits["keys and values"] = f"{lent} of {len(attentions)} layers use those of earlier ones"
    latents = Counter(x.v.linear.width for x in attentions if isinstance(x.v.linear, Latent))
    if latents:
        traits["keys and values"] = ", ".join(
            f"through a latent of {w} dimensions" for w in latents
        )
    if any(x.sinks for x in attentions):
        traits["attention"] = "weights sum to less than one: each head has a sink"
    if any(x.gate for x in attentions):
        traits["gates"] = "what each head writes is multiplied by the sigmoid of one"
    if (streams := model.architecture.streams) is not None:
        traits["residual streams"] = (
            f"{streams.count}, mixed by every layer, which works on number {streams.active} of them"
        )
    windows = Counter(x.window for x in attentions if x.window)
    if windows:
        traits["windows"] = ", ".join(
            f"{w} in {n} of {model.n_layers} layers" for w, n in windows.items()
        )
    if (stored := quantised(model)) is not None:
        traits["weights"] = stored
    if model.vocabulary.caveat:
        traits["tokenizer"] = model.vocabulary.caveat
    return traits


def mixers(model: Weights) -> dict[str, str]:
    """Which layers have no heads, or something beside them."""
    blocks = model.architecture.blocks
    kinds = Counter(block.mixer.kind for block in blocks if block.mixer is not None)
    if not kinds:
        return {}
    heads = sum(not block.attention.absent for block in blocks)
    said = ", ".join(f"{kind} in {n} of {len(blocks)} layers" for kind, n in kinds.items())
    return {"mixers": f"{said}, heads in {heads}; a mixer is read as one part, L3.mixer"}


FLOATS = ("F64", "F32", "F16", "BF16")
"""What GGUF calls weights that are not quantised."""


def quantised(model: Weights) -> str | None:
    """How weights are stored that are read as float32, the most frequent way first."""
    names = model.checkpoint.names()
    said = (model.checkpoint.info(name).stored for name in names)
    counts = Counter(how for how in said if how is not None and how not in FLOATS)
    if not counts:
        return None
    shown = ", ".join(f"{n} as {how}" for how, n in counts.most_common(3))
    more = f" and {len(counts) - 3} more ways" if len(counts) > 3 else ""
    return f"quantised: of {len(names):,} tensors {shown}{more}; read as float32"


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
    if any(block.attention.relative is not None for block in a.blocks):
        return "by distance" + " and learned" * bool(a.positions)
    return "learned" if a.positions else "none"


def norms(model: Weights) -> str:
    blocks = [b for b in model.architecture.blocks if not b.attention.absent]
    attention = blocks[0].attention if blocks else None
    places = {
        "before": attention and blocks[-1].attention.pre_norm,
        "on the output of": attention and attention.post_norm,
        "after": attention and attention.sum_norm,
    }
    used = {place: norm for place, norm in places.items() if norm}
    if not used:
        return "none"
    kind = "LayerNorm" if next(iter(used.values())).kind == "layer" else "RMSNorm"
    return f"{kind} {' and '.join(used)} each sub-block"


LABELS = {
    "embed": "W_E (input embedding)",
    "unembed": "W_U (output embedding, E)",
    "unembed_bias": "b_U",
    "positions": "W_pos",
    "token_types": "W_type",
    "others": "what else there is, not read",
    "streams.spread": "embedding to the other streams",
    "streams.gather": "the other streams to the last step",
    "layer_inputs.table": "embeddings of the layers",
    "layer_inputs.project": "embedding to those of the layers",
    "layer_inputs.norm": "norm of that",
    "embed_norm": "norm of the embedding",
    "project_in": "E to d_model",
    "project_out": "d_model to U",
    "final_norm": "final norm",
    "head.dense": "LM head",
    "head.norm": "norm in the LM head",
    "blocks.attention.pre_norm": "norm before attention",
    "blocks.attention.q.linear": "Q",
    "blocks.attention.k.linear": "K",
    "blocks.attention.v.linear": "V",
    "blocks.attention.q.linear.down": "Q, to the latent",
    "blocks.attention.q.linear.norm": "norm of the queries' latent",
    "blocks.attention.k.linear.down": "K and V, to the latent",
    "blocks.attention.k.linear.norm": "norm of the keys' and values' latent",
    "blocks.attention.k.linear.tail": "K, rotary",
    "blocks.attention.sinks": "sinks",
    "blocks.attention.relative.table": "distances",
    "blocks.attention.relative.norm": "norm of the distances",
    "blocks.attention.relative.as_key.linear": "K, of distances",
    "blocks.attention.relative.as_query.linear": "Q, of distances",
    "blocks.attention.gate.linear": "gate of heads",
    "blocks.attention.others": "what else attention has, not read",
    "blocks.attention.q_norm": "norm of queries",
    "blocks.attention.k_norm": "norm of keys",
    "blocks.attention.v_norm": "norm of values",
    "blocks.attention.o": "O",
    "blocks.attention.post_norm": "norm on attention's output",
    "blocks.attention.sum_norm": "norm after attention",
    "blocks.mixer.pre_norm": "norm before mixer",
    "blocks.mixer.inputs": "mixer, in",
    "blocks.mixer.others": "what else a mixer has, not read",
    "blocks.mixer.w_out": "mixer, out",
    "blocks.mixer.post_norm": "norm on mixer's output",
    "blocks.laurel.inputs": "LAuReL, in",
    "blocks.laurel.w_out": "LAuReL, out",
    "blocks.laurel.post_norm": "norm on LAuReL's output",
    "blocks.ff.pre_norm": "norm before feed-forward",
    "blocks.ff.router_norm": "norm before the router",
    "blocks.ff.router": "router",
    "blocks.ff.routing.each": "factors of the experts",
    "blocks.ff.routing.correction": "bias of the choice of experts",
    "blocks.ff.shared_gate": "shared expert's gate",
    "blocks.ff.w_in": "in (keys)",
    "blocks.ff.w_gate": "gate",
    "blocks.ff.curve": "parameters of the activation",
    "blocks.ff.w_out": "out (values)",
    "blocks.ff.own_norm": "norm on the experts' output",
    "blocks.ff.shared_norm": "norm on the shared expert's output",
    "blocks.ff.post_norm": "norm on feed-forward's output",
    "blocks.ff.sum_norm": "norm after feed-forward",
    "blocks.altup.predict": "what the streams are predicted by",
    "blocks.altup.correct": "what the streams are corrected by",
    "blocks.altup.others": "what else mixes streams, not read",
    "blocks.others": "what else a layer has, not read",
    "blocks.factor": "factor on the layer's output",
}
"""What people call the parts of a model, in the order in which they are listed."""


def parameters(model: Weights) -> list[dict[str, Any]]:
    """Each kind of parameter, the tensors that hold it, and one such tensor's shape and dtype."""
    order = {label: i for i, label in enumerate(LABELS.values())}
    groups: dict[tuple[int, str, str], list[str]] = {}
    for path, part in walk(model.architecture):
        if (path == "unembed" and model.architecture.tied) or path in SHARED:
            continue
        path = path.replace(".v.linear.", ".k.linear.")  # values come through the keys' latent
        label, where = _place(path)
        for said, name in zip(_labels(label, part), tensors(part), strict=True):
            if name is not None and name in model.checkpoint.names():
                key = order[label], f"{said}{where}", _pattern(name)
                groups.setdefault(key, []).append(name)
    return [
        {
            "parameter": said,
            "tensor": pattern,
            "shape": list(model.checkpoint.info(names[0]).shape),
            "dtype": model.checkpoint.info(names[0]).stored
            or str(model.checkpoint.info(names[0]).dtype).removeprefix("torch."),
            "count": len(set(names)),
        }
        for (_, said, pattern), names in sorted(groups.items(), key=lambda group: group[0][0])
    ]


SHARED = (
    *("encoder.embed", "encoder.unembed"),
    *("blocks.cross.source_norm", "blocks.attention.source_norm", "blocks.laurel.pre_norm"),
)
"""What stands in the description of both stacks, or of two layers."""


def _place(path: str) -> tuple[str, str]:
    """What a part is called, and in which stack or attention it is where there are several."""
    inner = path.removeprefix("encoder.")
    where = ", encoder" if inner != path else ", cross-attention" * ("blocks.cross." in path)
    inner = inner.replace("blocks.cross.", "blocks.attention.")
    return LABELS[re.sub(r"\.(experts|shared)(?=\.)|\.(heads|joint)$", "", inner)], where


def _labels(label: str, part: Named) -> tuple[str, str]:
    """What a part's weight and bias are called."""
    if isinstance(part, Linear):
        return f"W_{label}", f"b_{label}"
    return label, f"{label}, bias"


def _pattern(name: str) -> str:
    """A tensor's name with {n} for the layer, {e} for the expert, {i} for what else is counted."""
    pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{n}", name, count=1)
    pattern = re.sub(r"(?<=experts\.)\d+", "{e}", pattern)
    return re.sub(r"(?<=\.)\d+(?=\.)", "{i}", pattern)


def one_head(model: Weights) -> dict[str, Any]:
    """What the token pairs of one head need: E and the head's slices."""
    a, c = model.architecture, model.checkpoint
    reads = (
        [_reading("E", a.unembed, list(c.info(a.unembed).shape), c.cost(a.unembed))]
        if a.unembed in c.names()
        else []
    )
    layers = (n for n, block in enumerate(a.blocks) if not block.attention.absent)
    if (layer := next(layers, None)) is None:
        return {"address": "none", "reads": reads, "bytes": sum(r["bytes"] for r in reads)}
    for kind in ("Q", "K", "V", "O"):
        group = head_group(model, layer, 0, kind)
        shape = [group.n, a.d_model] if kind in WRITES else [a.d_model, group.n]
        reads.append(_reading(f"W_{kind}", group.linear.weight, shape, group.cost))
    return {"address": f"L{layer}H0", "reads": reads, "bytes": sum(r["bytes"] for r in reads)}


def _reading(label: str, tensor: str, shape: list[int], cost: int) -> dict[str, Any]:
    return {"parameter": label, "tensor": tensor, "shape": shape, "bytes": cost}
