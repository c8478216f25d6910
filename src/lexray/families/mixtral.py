"""Mixtral: Mistral's attention, eight experts called w1 (gate), w3 (up) and w2 (down) on disk.

MiniMax M2 and Phi-3.5-MoE name theirs alike. MiniMax's choose experts by sigmoids and norm queries
and keys over all heads jointly; Phi's have LayerNorms and a router of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import W1_W3_W2, mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.parts import decoder, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, QKNorm, Routing

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
}
MINIMAX = DEFAULTS | {"rms_norm_eps": 1e-6, "rope_theta": 5e6, "head_dim": 128}
PHIMOE = DEFAULTS | {"num_local_experts": 16, "num_key_value_heads": None}


@family("mixtral", title="Mixtral", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    return replace(llama.block(c, t, stem, n), ff=experts(c, t, stem, norm))


def experts(c: Config, t: Names, stem: str, norm: Norm, **rest: Any) -> Experts:
    on_disk, live = f"{stem}block_sparse_moe.", f"{stem}mlp."
    moe = on_disk if f"{on_disk}gate.weight" in t else live
    router = "router" if f"{moe}router.weight" in t else "gate"
    usual = {"top_k": c["num_experts_per_tok"], "normalise": True, "pre_norm": norm}
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    more = usual | rest
    return mixture(t, moe, c["num_local_experts"], d_mlp, act, W1_W3_W2, router, **more)


@family("minimax_m2", title="MiniMax M2", defaults=MINIMAX)
def describe_minimax(c: Config, t: Names) -> Architecture:
    return decoder(c, t, minimax_block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def minimax_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    norm = t.norm("rms", f"{stem}post_attention_layernorm", eps)
    moes = (f"{stem}block_sparse_moe.", f"{stem}mlp.")
    correction = t.pick(*(f"{moe}e_score_correction_bias" for moe in moes))
    partial = (c.get("rotary_dim") or s["d_head"]) / s["d_head"]
    plain = llama.block(
        c,
        t,
        stem,
        n,
        rotary=rotary(c, s["d_head"], partial=partial),
        q_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.q_norm", eps)),
        k_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.k_norm", eps)),
        window=None,
    )
    routing = Routing("sigmoid", correction)
    return replace(plain, ff=experts(c, t, stem, norm, routing=routing))


@family("phimoe", title="Phi-3.5-MoE", defaults=PHIMOE)
def describe_phimoe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, phimoe_block, lambda stem: t.norm("layer", stem, c["rms_norm_eps"]))


def phimoe_block(c: Config, t: Names, stem: str, n: int) -> Block:
    """The second expert is weighted as if the first were not there, so weights may exceed one."""
    before, after = (
        t.norm("layer", f"{stem}{name}_layernorm", c["rms_norm_eps"])
        for name in ("input", "post_attention")
    )
    routing = Routing("sparsemixer", jitter=c.get("router_jitter_noise", 0.01))
    ff = experts(c, t, stem, after, routing=routing, normalise=False)
    return replace(llama.block(c, t, stem, n, pre_norm=before), ff=ff)


MOE = f"{gguf.LAYER}block_sparse_moe."


def minimax_gguf(m: gguf.Keys) -> gguf.Naming:
    experts = layouts.name_experts(m, MOE, names=W1_W3_W2)
    correction = layouts.name_correction(f"{MOE}e_score_correction_bias")
    return gguf.Naming(
        "minimax_m2",
        {**gguf.LLAMA, **gguf.QK_NORMS, **experts, **correction},
        lambda m, c: moe_config(m, c) | {"rotary_dim": m.size("rope.dimension_count")},
    )


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_local_experts": c["num_experts"],
        "intermediate_size": layouts.expert_width(m),
    }


def phimoe_gguf(m: gguf.Keys) -> gguf.Naming:
    experts = layouts.name_experts(m, MOE, names=W1_W3_W2)
    return gguf.Naming("phimoe", {**gguf.LLAMA, **experts}, moe_config)


gguf.declare("minimax-m2", minimax_gguf)
gguf.declare("phimoe", phimoe_gguf)
