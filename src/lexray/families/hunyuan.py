"""Hunyuan: Llama whose norms of queries and keys stand behind the rotary embedding; the mixtures
have a shared expert in every layer. Hunyuan 3 has these norms before it, and DeepSeek's choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.parts import decoder, gated, qk_norms, same_for_all, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, Routing

DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
V3 = DEFAULTS | {
    "head_dim": 128,
    "num_shared_experts": 1,
    "router_scaling_factor": 2.826,
    "rope_theta": 11_158_840.0,
}


@family(
    "hunyuan_vl_text",
    "hunyuan_vl",
    title="Hunyuan-VL",
    defaults=DEFAULTS | {"tie_word_embeddings": True},
    runs_as="hunyuan_v1_dense",
)
@family("hunyuan_v1_dense", title="Hunyuan", defaults=DEFAULTS)
@family("hunyuan_v1_moe", title="Hunyuan-MoE", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps, act = sizes(c), c["rms_norm_eps"], c["hidden_act"]
    q, k = (t.norm("rms", f"{stem}self_attn.{x}_layernorm", eps) for x in ("query", "key"))
    plain = llama.block(
        c,
        t,
        stem,
        n,
        q_norm=same_for_all(q, s["n_heads"], turned=True),
        k_norm=same_for_all(k, s["n_kv_heads"], turned=True),
    )
    if f"{stem}mlp.gate.wg.weight" not in t:
        return plain
    count, top_k = (each(c.first(key), n) for key in ("num_experts", "moe_topk"))
    experts = mixture(
        t,
        f"{stem}mlp.",
        count,
        s["d_mlp"],
        act,
        router="gate.wg",
        top_k=top_k,
        normalise=True,
        shared=gated(t, f"{stem}mlp.shared_mlp.", s["d_mlp"], act),
        pre_norm=plain.ff.pre_norm,
    )
    return replace(plain, ff=experts)


@family("hy_v3", title="Hunyuan 3", defaults=V3)
def describe_v3(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block_v3, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block_v3(c: Config, t: Names, stem: str, n: int) -> Block:
    """The first layer is dense, unless the config says which; files have other names than modules
    for the router, what corrects its choice, and the shared expert."""
    s, mlp, act = sizes(c), f"{stem}mlp.", c["hidden_act"]
    plain = llama.block(c, t, stem, n, **qk_norms(t, s, f"{stem}self_attn.", c["rms_norm_eps"]))
    kinds, width = c.get("mlp_layer_types"), c["moe_intermediate_size"]
    if kinds[n] == "dense" if kinds else n == 0:
        return plain
    corrections = (f"{mlp}expert_bias", f"{mlp}e_score_correction_bias")
    beside = "shared_mlp" if f"{mlp}shared_mlp.up_proj.weight" in t else "shared_experts"
    experts = mixture(
        t,
        mlp,
        c.first("num_experts", "num_local_experts"),
        width,
        act,
        router="router.gate" if f"{mlp}router.gate.weight" in t else "gate",
        top_k=c["num_experts_per_tok"],
        normalise=True,
        routing=Routing("sigmoid", t.pick(*corrections), scale=c["router_scaling_factor"]),
        shared=gated(t, f"{mlp}{beside}.", width * c["num_shared_experts"], act),
        pre_norm=plain.ff.pre_norm,
    )
    return replace(plain, ff=experts)


def each(value: int | list[int], n: int) -> int:
    """One number for all layers, or one for each."""
    return value[n] if isinstance(value, list) else value


HUNYUAN_GGUF: gguf.Names = {
    **gguf.LLAMA,
    f"{gguf.LAYER}self_attn.query_layernorm": "blk.{n}.attn_q_norm",
    f"{gguf.LAYER}self_attn.key_layernorm": "blk.{n}.attn_k_norm",
}


def moe_gguf(m: gguf.Keys) -> gguf.Naming:
    experts = layouts.name_experts(m, router="gate.wg")
    shared = layouts.name_shared(f"{layouts.MLP}shared_mlp")
    return gguf.Naming("hunyuan_v1_moe", {**HUNYUAN_GGUF, **experts, **shared}, moe_config)


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "moe_topk": c["num_experts_per_tok"],
        "intermediate_size": layouts.expert_width(m),
    }


for architecture in ("hunyuan-dense", "hunyuan_vl"):
    gguf.declare(architecture, gguf.Naming("hunyuan_v1_dense", HUNYUAN_GGUF))
gguf.declare("hunyuan-moe", moe_gguf)
