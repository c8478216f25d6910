"""Hunyuan: Llama whose norms of queries and keys stand behind the rotary embedding; the mixtures
have a shared expert in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.parts import decoder, gated, same_for_all, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu"}


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


gguf.declare("hunyuan-dense", gguf.Naming("hunyuan_v1_dense", HUNYUAN_GGUF))
gguf.declare("hunyuan-moe", moe_gguf)
