"""AFMoE (Arcee's Trinity): norms before and behind sub-blocks, gated heads, rotary positions in
layers with a window alone, and after some dense layers experts, chosen by their sigmoids."""

from __future__ import annotations

from functools import partial
from typing import Any

from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import in_order
from lexray.families.parts import attention, decoder, gated, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Attention, Block, Experts, FeedForward, Routing

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "head_dim": 128,
    "num_dense_layers": 1,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "route_scale": 1.0,
    "global_attn_every_n_layers": 4,
    "sliding_window": 1024,
}


@family("afmoe", title="AFMoE", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        embed_scale=c["hidden_size"] ** 0.5 if c.get("mup_enabled") else 1.0,
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    return Block(attend(c, t, stem, n), feed_forward(c, t, stem, n))


def attend(c: Config, t: Names, stem: str, n: int) -> Attention:
    s, eps = sizes(c), c["rms_norm_eps"]
    gate = t.linear(f"{stem}self_attn.gate_proj")
    slides = is_sliding(c, n)
    return attention(
        projections(t, f"{stem}self_attn.", s),
        s,
        rotary(c, s["d_head"]) if slides else None,
        pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
        post_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
        gate=in_order(gate, s["n_heads"], s["d_head"]),
        window=c["sliding_window"] if slides else None,
        **qk_norms(t, s, f"{stem}self_attn.", eps),
    )


def is_sliding(c: Config, n: int) -> bool:
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    return bool((n + 1) % c["global_attn_every_n_layers"])


def feed_forward(c: Config, t: Names, stem: str, n: int) -> FeedForward | Experts:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    norms: dict[str, Any] = {f"{x}_norm": norm(f"{stem}{x}_mlp_layernorm") for x in ("pre", "post")}
    act, width = c["hidden_act"], c["moe_intermediate_size"]
    if n < c["num_dense_layers"]:
        return gated(t, f"{stem}mlp.", c["intermediate_size"], act, **norms)
    beside = width * c["num_shared_experts"]
    return mixture(
        t,
        f"{stem}mlp.",
        c["num_experts"],
        width,
        act,
        router="router.gate",
        top_k=c["num_experts_per_tok"],
        normalise=True,
        routing=Routing("sigmoid", correction=f"{stem}mlp.expert_bias", scale=c["route_scale"]),
        shared=gated(t, f"{stem}mlp.shared_experts.", beside, act) if beside else None,
        **norms,
    )


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    """Which layers have windows and that embeddings are scaled is no metadata: llama.cpp knows."""
    names = {
        **gguf.EMBEDDINGS,
        **gguf.ATTENTION,
        **gguf.QK_NORMS,
        **gguf.MLP,
        f"{gguf.LAYER}self_attn.gate_proj": "blk.{n}.attn_gate",
        f"{gguf.LAYER}input_layernorm": "blk.{n}.attn_norm",
        f"{gguf.LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
        f"{gguf.LAYER}pre_mlp_layernorm": "blk.{n}.ffn_norm",
        f"{gguf.LAYER}post_mlp_layernorm": "blk.{n}.post_ffw_norm",
        **layouts.name_experts(m, router="router.gate"),
        **layouts.name_shared(f"{layouts.MLP}shared_experts"),
        **layouts.name_correction(f"{layouts.MLP}expert_bias"),
    }
    return gguf.Naming("afmoe", names, gguf_config)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    experts = layouts.deepseek_experts(m, c)
    return {
        "moe_intermediate_size": experts["moe_intermediate_size"],
        "num_shared_experts": experts["n_shared_experts"],
        "num_dense_layers": experts["first_k_dense_replace"],
        "route_scale": experts["routed_scaling_factor"],
        "global_attn_every_n_layers": 4,
        "mup_enabled": True,
        **layouts.windows(m, c),
    }


gguf.declare("afmoe", gguf_names)
