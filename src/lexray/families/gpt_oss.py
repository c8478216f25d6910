"""gpt-oss: biases everywhere, sinks that take attention, every second layer with a window; experts
whose gates and keys alternate in one matrix stored as (in, out), with a clamped activation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families import llama
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import rope_parameters
from lexray.families.linear import Linear, Norm
from lexray.families.parts import decoder
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, Experts, FeedForward

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
    "rope_theta": 150_000.0,
}
DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "head_dim": 64,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "hidden_act": "silu",
    "rope_parameters": YARN,
    "rope_theta": 150_000.0,
}
CLAMPED = "clamped swiglu"
"""(1 + up) · gate · σ(1.702 gate), gate and up limited to ± 7."""


@family("gpt_oss", title="gpt-oss", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    kinds = c.get("layer_types")
    slides = kinds[n] == "sliding_attention" if kinds else n % 2 == 0
    attention = llama.block(
        c,
        t,
        stem,
        n,
        window=c["sliding_window"] if slides else None,
        sinks=f"{stem}self_attn.sinks",
    )
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    return replace(attention, ff=mixture(c, t, f"{stem}mlp.", norm))


def mixture(c: Config, t: Names, stem: str, norm: Norm) -> Experts:
    count = range(c.first("num_local_experts", "num_experts"))
    return Experts(
        router=t.linear(f"{stem}router"),
        experts=tuple(expert(t, f"{stem}experts.", e, c["intermediate_size"]) for e in count),
        top_k=c.first("num_experts_per_tok", "experts_per_token"),
        normalise=True,
        module=stem.removesuffix("."),
        pre_norm=norm,
    )


def expert(t: Names, stem: str, e: int, d_mlp: int) -> FeedForward:
    both, down = (
        partial(Linear, stem + name, t.pick(f"{stem}{name}_bias"), in_first=True, expert=e)
        for name in ("gate_up_proj", "down_proj")
    )
    return FeedForward(
        w_in=both(start=1, size=d_mlp, step=2),
        w_gate=both(start=0, size=d_mlp, step=2),
        w_out=down(),
        activation=CLAMPED,
        d_mlp=d_mlp,
    )


MLP = f"{gguf.LAYER}mlp."


def both(suffix: str, axis: int, transposed: bool) -> gguf.GGUFJoined:
    """Gates and keys, which take turns, and which the converter takes apart."""
    parts = tuple(
        gguf.GGUFSource(f"blk.{{n}}.ffn_{x}_exps.{suffix}", exact=True, transposed=transposed)
        for x in ("gate", "up")
    )
    return gguf.GGUFJoined(parts, axis, alternate=True)


GPT_OSS_GGUF: gguf.Names = {
    **gguf.EMBEDDINGS,
    **gguf.ATTENTION,
    f"{gguf.LAYER}input_layernorm": "blk.{n}.attn_norm",
    f"{gguf.LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
    f"{gguf.LAYER}self_attn.sinks": gguf.GGUFSource("blk.{n}.attn_sinks.weight", exact=True),
    f"{MLP}router": "blk.{n}.ffn_gate_inp",
    f"{MLP}experts.gate_up_proj": both("weight", 2, transposed=True),
    f"{MLP}experts.gate_up_proj_bias": both("bias", 1, transposed=False),
    f"{MLP}experts.down_proj": gguf.GGUFSource(
        "blk.{n}.ffn_down_exps.weight", exact=True, transposed=True
    ),
    f"{MLP}experts.down_proj_bias": gguf.GGUFSource("blk.{n}.ffn_down_exps.bias", exact=True),
}


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Every second layer has a window; that YaRN does not round is not stored."""
    return {
        "num_local_experts": c["num_experts"],
        "intermediate_size": layouts.expert_width(m),
        "sliding_window": m.size("attention.sliding_window"),
        **rope_parameters(c, truncate=False),
    }


gguf.declare("gpt-oss", gguf.Naming("gpt_oss", GPT_OSS_GGUF, gguf_config))
