"""Jamba and Bamba: one layer of attention without positions (Bamba: half of each head rotary) to
seven of a state space, Mamba's first (Jamba) or second; Jamba has experts in every other layer."""

from __future__ import annotations

from typing import Any

from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.mixers import MAMBA1, attends, mamba2, mixer, no_attention
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, Mixer

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_expand": 2,
}
BAMBA = DEFAULTS | {
    "rms_norm_eps": 1e-5,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
}


@family("jamba", title="Jamba", defaults=DEFAULTS)
@family("bamba", title="Bamba", defaults=BAMBA)
def describe(c: Config, t: Names) -> Architecture:
    def norm(stem: str) -> Norm:
        return t.norm("rms", stem, c["rms_norm_eps"])

    return decoder(c, t, block, norm, "final_layernorm")


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    before = t.norm("rms", f"{stem}input_layernorm", eps)
    ff = feed_forward(c, t, f"{stem}feed_forward.", t.norm("rms", f"{stem}pre_ff_layernorm", eps))
    if not attends(t, stem):
        return Block(no_attention(s), ff, mixer=state_space(c, t, f"{stem}mamba.", before))
    turns = c.get("model_type") != "jamba"
    p = projections(t, f"{stem}self_attn.", s)
    turned = rotary(c, s["d_head"], partial=0.5) if turns else None
    return Block(attention(p, s, turned, pre_norm=before), ff)


def state_space(c: Config, t: Names, stem: str, before: Norm) -> Mixer:
    """Mamba's second, or its first: values and gates, and all else made from these."""
    if f"{stem}x_proj.weight" not in t:
        return mamba2(c, t, stem, before)
    d_inner = c["mamba_expand"] * c["hidden_size"]
    width = {"in_proj": 2 * d_inner}
    return mixer(t, stem, width, d_inner, "state space", MAMBA1, pre_norm=before)


def feed_forward(c: Config, t: Names, stem: str, norm: Norm) -> FeedForward | Experts:
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    if f"{stem}router.weight" not in t:
        return gated(t, stem, d_mlp, act, pre_norm=norm)
    return mixture(
        t,
        stem,
        c["num_experts"],
        d_mlp,
        act,
        router="router",
        top_k=c["num_experts_per_tok"],
        normalise=False,
        pre_norm=norm,
    )


FF = f"{gguf.LAYER}feed_forward."


def jamba_names() -> gguf.Names:
    """What is not a state space in Jamba, Bamba and Falcon-H1; the last has a name of its own for
    a norm."""
    return {
        **gguf.ATTENTION,
        "model.embed_tokens": "token_embd",
        "model.final_layernorm": "output_norm",
        "lm_head": "output",
        f"{gguf.LAYER}input_layernorm": "blk.{n}.attn_norm",
        f"{FF}gate_proj": "blk.{n}.ffn_gate",
        f"{FF}up_proj": "blk.{n}.ffn_up",
        f"{FF}down_proj": "blk.{n}.ffn_down",
        f"{gguf.LAYER}pre_ff_layernorm": "blk.{n}.ffn_norm",
        f"{gguf.LAYER}pre_ff_layernorm.weight": gguf.GGUFSource("blk.{n}.ffn_norm", exact=True),
    }


STATE = f"{gguf.LAYER}mamba."
MAMBA_GGUF: gguf.Names = {
    f"{STATE}in_proj": "blk.{n}.ssm_in",
    f"{STATE}out_proj": "blk.{n}.ssm_out",
    f"{STATE}x_proj": "blk.{n}.ssm_x",
    f"{STATE}dt_proj": "blk.{n}.ssm_dt",
    **layouts.name_convolution(f"{STATE}conv1d"),
    f"{STATE}A_log": gguf.GGUFSource("blk.{n}.ssm_a", exact=True, undo=layouts.undo_decay),
    f"{STATE}D": gguf.GGUFSource("blk.{n}.ssm_d", exact=True),
    **{f"{STATE}{x}_layernorm": f"blk.{{n}}.ssm_{x}_norm" for x in ("dt", "b", "c")},
}


def jamba_gguf(m: gguf.Keys) -> gguf.Naming:
    experts = layouts.name_experts(m, FF, router="router")
    return gguf.Naming("jamba", {**jamba_names(), **MAMBA_GGUF, **experts}, jamba_config)


def jamba_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    count = c["num_hidden_layers"]
    attend, sparse = (layouts.layers_with(m, c, x) for x in ("attn_output", "ffn_gate_inp"))
    each, first = layouts.period(m, attend, count, "attention")
    every, start = layouts.period(m, sparse, count, "experts")
    return {
        "attn_layer_period": each,
        "attn_layer_offset": first,
        "expert_layer_period": every,
        "expert_layer_offset": start,
        "num_experts": c.get("num_experts", 1),
        "mamba_d_state": m.size("ssm.state_size"),
        "mamba_d_conv": m.size("ssm.conv_kernel"),
        "mamba_dt_rank": m.size("ssm.time_step_rank"),
        "mamba_expand": m.size("ssm.inner_size") // c["hidden_size"],
    }


gguf.declare("jamba", jamba_gguf)
