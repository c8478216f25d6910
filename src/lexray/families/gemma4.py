"""Gemma 4 (text, dense and with experts): Gemma 3 with gains as they are stored, and with

- heads that are wider in the layers without a window, where values may be the keys, unnormed,
- values that are normed, without a gain,
- late layers that use the keys and values of the last layer of their kind that has its own,
- in the small models a second embedding, of which each layer gets a part of its own: a gate of the
  stream lets it in behind the feed-forward,
- a factor on all that leaves a layer,
- experts beside the feed-forward, each side with norms of its own, and a router with another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families.experts import mixture
from lexray.families.gemma import GEMMA3, activation, layer_rotary
from lexray.families.linear import Linear, Norm, in_order
from lexray.families.parts import (
    Sizes,
    decoder,
    gated,
    projections,
    same_for_all,
    sizes,
)
from lexray.families.registry import Config, Names, family
from lexray.families.spec import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    LayerInputs,
    Mixer,
    Routing,
)

FULL, SLIDING = "full_attention", "sliding_attention"
DEFAULTS = GEMMA3 | {
    "sliding_window": 512,
    "vocab_size": 262_144,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "num_kv_shared_layers": 0,
    "attention_k_eq_v": False,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}
UNIFIED = DEFAULTS | {"sliding_window": 1024, "hidden_size_per_layer_input": 0}


@family("gemma4_text", "gemma4", name="gemma4", title="Gemma 4", defaults=DEFAULTS)
@family(
    "gemma4_unified_text",
    "gemma4_unified",
    name="gemma4_unified",
    title="Gemma 4 (unified)",
    defaults=UNIFIED,
)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        embed_scale=c["hidden_size"] ** 0.5,
        causal=c.get("use_bidirectional_attention") != "all",
        logit_cap=c.get("final_logit_softcapping"),
        layer_inputs=layer_inputs(c, t),
        alone=(("num_kv_shared_layers", 0),) if c["num_kv_shared_layers"] else (),
    )


def layer_inputs(c: Config, t: Names) -> LayerInputs | None:
    """The second embedding, where there is one."""
    if not c["hidden_size_per_layer_input"]:
        return None
    body = t.prefix("embed_tokens.weight", "model.", "")
    return LayerInputs(
        f"{body}embed_tokens_per_layer.weight",
        t.linear(f"{body}per_layer_model_projection"),
        t.norm("rms", f"{body}per_layer_projection_norm", c["rms_norm_eps"]),
        c["hidden_size_per_layer_input"],
    )


def kind_of(c: Config, n: int) -> str:
    """Every sixth layer has no window, unless the config says which; the last one never has."""
    if n == c["num_hidden_layers"] - 1:
        return FULL
    if kinds := c.get("layer_types"):
        return str(kinds[n])
    return FULL if (n + 1) % 6 == 0 else SLIDING


KindOf = Callable[[Config, int], str]


def shared_layer(c: Config, n: int, kind: KindOf = kind_of) -> int | None:
    """The layer whose keys and values this one uses: the last of its kind that has its own."""
    first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
    if n < first:
        return None
    own = [m for m in range(first) if kind(c, m) == kind(c, n)]
    if not own:
        raise ValueError(f"no layer before {first} has keys and values of the kind of layer {n}")
    return own[-1]


def layer_sizes(c: Config, n: int) -> Sizes:
    """Those of one layer: in those without a window heads are wider, and keys may be fewer."""
    s, own = sizes(c), _own_entries(c, n)
    if own is None and kind_of(c, n) == FULL:
        fewer = c.get("num_global_key_value_heads") if c["attention_k_eq_v"] else None
        own = {"head_dim": c["global_head_dim"], "num_key_value_heads": fewer}
    if own:
        s["d_head"] = own.get("head_dim") or s["d_head"]
        s["n_kv_heads"] = own.get("num_key_value_heads") or s["n_kv_heads"]
    if s["n_heads"] % s["n_kv_heads"]:
        raise ValueError(f"{s['n_heads']} heads cannot share {s['n_kv_heads']} of keys and values")
    return s


def _own_entries(c: Config, n: int) -> Mapping[str, Any] | None:
    """What the config says of one layer, as transformers writes it since 5.23."""
    said = c.get("per_layer_config")
    if not isinstance(said, Mapping):
        return None
    own = said.get(n, said.get(str(n), {}))
    return own if isinstance(own, Mapping) else {}


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    factor = t.pick(f"{stem}layer_scalar")
    return Block(
        attend(c, t, stem, n),
        feed_forward(c, t, stem, n),
        mixer=layer_embedding(c, t, stem, norm(f"{stem}post_per_layer_input_norm")),
        factor=None if factor is None else Norm("fixed", factor),
        path=stem.removesuffix("."),
    )


def attend(c: Config, t: Names, stem: str, n: int) -> Attention:
    eps, slides, s = c["rms_norm_eps"], kind_of(c, n) == SLIDING, layer_sizes(c, n)
    return Attention(
        **queries_keys_values(c, t, stem, n, s),
        rotary=layer_rotary(c, s["d_head"], slides),
        pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
        post_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
        window=window(c) if slides else None,
    )


def queries_keys_values(
    c: Config, t: Names, stem: str, n: int, s: Sizes, kind: KindOf = kind_of
) -> dict[str, Any]:
    """A layer's own queries, and keys and values of the layer that has them, which may be the same;
    all are normed, and nothing else divides their products."""
    shares, norm = shared_layer(c, n, kind), partial(t.norm, "rms", eps=c["rms_norm_eps"])
    owner = stem if shares is None else f"{stem.removesuffix(f'{n}.')}{shares}."
    k, v = (t.linear(f"{owner}self_attn.{name}_proj") for name in "kv")
    if v.weight not in t and k.weight in t:
        v = k
    bare = Norm("rms", None, eps=c["rms_norm_eps"])
    return {
        **projections(t, f"{stem}self_attn.", s),
        "k": in_order(k, s["n_kv_heads"], s["d_head"]),
        "v": in_order(v, s["n_kv_heads"], s["d_head"]),
        "scale": 1.0,
        "q_norm": same_for_all(norm(f"{stem}self_attn.q_norm"), s["n_heads"]),
        "k_norm": same_for_all(norm(f"{owner}self_attn.k_norm"), s["n_kv_heads"]),
        "v_norm": same_for_all(bare, s["n_kv_heads"]),
        "shares": shares,
        "source_norm": None if shares is None else norm(f"{owner}input_layernorm"),
    }


def window(c: Config) -> int:
    """Where all tokens look both ways, half of it lies to each side, and one more."""
    width: int = c["sliding_window"]
    return width // 2 + 2 if c.get("use_bidirectional_attention") == "all" else width


def layer_embedding(c: Config, t: Names, stem: str, norm: Norm) -> Mixer | None:
    """What a layer takes of its own embedding of the token, where there is one."""
    width = c["hidden_size_per_layer_input"]
    if not width:
        return None
    return Mixer(
        (t.linear(f"{stem}per_layer_input_gate", size=width),),
        t.linear(f"{stem}per_layer_projection"),
        width,
        "layer embedding",
        last=True,
        post_norm=norm,
    )


def feed_forward(c: Config, t: Names, stem: str, n: int) -> FeedForward | Experts:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    wide = c["use_double_wide_mlp"] and shared_layer(c, n) is not None
    d_mlp = c["intermediate_size"] * (2 if wide else 1)
    before, after = (norm(f"{stem}{x}_feedforward_layernorm") for x in ("pre", "post"))
    dense = gated(t, f"{stem}mlp.", d_mlp, activation(c), pre_norm=before, post_norm=after)
    return experts(c, t, stem, dense) if c["enable_moe_block"] else dense


def experts(c: Config, t: Names, stem: str, dense: FeedForward) -> Experts:
    """The feed-forward as a shared expert, the experts beside it."""
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    beside, behind = (norm(f"{stem}post_feedforward_layernorm_{i}") for i in (1, 2))
    scale = Norm("rms", f"{stem}router.scale", eps=c["rms_norm_eps"])
    many = mixture(
        t,
        stem,
        c["num_experts"],
        c["moe_intermediate_size"],
        activation(c),
        router="router.proj",
        top_k=c["top_k_experts"],
        normalise=True,
        routing=Routing(each=f"{stem}router.per_expert_scale"),
        shared=replace(dense, w_out=through(dense.w_out, beside), post_norm=None),
        router_norm=replace(scale, factor=c["hidden_size"] ** -0.5),
        own_norm=behind,
        shared_norm=beside,
        pre_norm=norm(f"{stem}pre_feedforward_layernorm_2"),
        post_norm=dense.post_norm,
    )
    each = (replace(x, w_out=through(x.w_out, behind)) for x in many.experts)
    return replace(many, experts=tuple(each), module=f"{stem}experts")


def through(linear: Linear, norm: Norm) -> Linear:
    """What a map writes, with the gain of the norm behind it."""
    return replace(linear, gain=norm.gain)
