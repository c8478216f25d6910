"""Hunyuan: Llama whose norms of queries and keys stand behind the rotary embedding; the mixtures
have a shared expert in every layer."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import llama
from lexray.families.experts import mixture
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
