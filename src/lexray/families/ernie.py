"""ERNIE 4.5: Llama with adjacent-pair rotary; its mixtures have dense layers at both ends, a bias
on the choice of experts, and shared experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.parts import decoder, gated, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, Routing

DEFAULTS = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500_000.0,
}
MOE = DEFAULTS | {
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
}


@family("ernie4_5", title="ERNIE 4.5", defaults=DEFAULTS | {"head_dim": 128})
@family("ernie4_5_moe", title="ERNIE 4.5 (MoE)", defaults=MOE)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    turns = rotary(c, sizes(c)["d_head"], kind="pair")
    plain = llama.block(c, t, stem, n, rotary=turns)
    if f"{stem}mlp.gate.weight" not in t:
        return plain
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    return replace(plain, ff=experts(c, t, stem, norm))


def experts(c: Config, t: Names, stem: str, norm: Norm) -> Experts:
    width, shared = c["moe_intermediate_size"], c["moe_num_shared_experts"]
    statics = ("mlp.moe_statics", "mlp.gate.moe_statics")
    correction = t.pick(*(f"{stem}{name}.e_score_correction_bias" for name in statics))
    return mixture(
        t,
        f"{stem}mlp.",
        c["moe_num_experts"],
        width,
        c["hidden_act"],
        top_k=c["moe_k"],
        normalise=True,
        routing=Routing(correction=correction),
        shared=gated(t, f"{stem}mlp.shared_experts.", width * shared, c["hidden_act"])
        if shared
        else None,
        pre_norm=norm,
    )


for architecture in ("ernie4_5", "paddleocr"):  # whose pictures lie in another file
    gguf.declare(architecture, gguf.Naming("ernie4_5", gguf.LLAMA))


STATICS = f"{gguf.LAYER}mlp.moe_statics.e_score_correction_bias"


def moe_gguf(m: gguf.Keys) -> gguf.Naming:
    correction = gguf.GGUFSource("blk.{n}.exp_probs_b.bias", exact=True, one_row=True)
    shared = layouts.name_shared(f"{gguf.LAYER}mlp.shared_experts")
    names = {**gguf.LLAMA, **layouts.name_experts(m), **shared, STATICS: correction}
    return gguf.Naming("ernie4_5_moe", names, moe_config)


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    own, sparse = layouts.deepseek_experts(m, c), layouts.layers_with(m, c, "ffn_gate_inp")
    return {
        "moe_num_experts": c["num_experts"],
        "moe_k": c["num_experts_per_tok"],
        "moe_intermediate_size": own["moe_intermediate_size"],
        "moe_num_shared_experts": own["n_shared_experts"],
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "moe_layer_interval": m.size("interleave_moe_layer_step", 1),
    }


gguf.declare("ernie4_5-moe", moe_gguf)
