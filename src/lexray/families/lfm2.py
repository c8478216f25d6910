"""LFM2 and its mixture of experts: short gated convolutions, and every few layers attention.

A convolution reads three streams from one map: what is convolved, and a gate before and after it.
"""

from __future__ import annotations

from typing import Any

from lexray.families.experts import W1_W3_W2, mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.mixers import attends, mixer, no_attention
from lexray.families.parts import attention, decoder, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, Routing

DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "block_auto_adjust_ff_dim": False,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
DENSE = DEFAULTS | {"block_auto_adjust_ff_dim": True}
MOE = DEFAULTS | {
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1792,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}


@family("lfm2", title="LFM2", defaults=DENSE)
@family("lfm2_moe", title="LFM2 (MoE)", defaults=MOE)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: norm(c, t, stem), "embedding_norm")  # the last one


def norm(c: Config, t: Names, stem: str) -> Norm:
    return t.norm("rms", stem, c["norm_eps"])


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, before = sizes(c), norm(c, t, f"{stem}operator_norm")
    ff = feed_forward(c, t, f"{stem}feed_forward.", n, norm(c, t, f"{stem}ffn_norm"))
    if not attends(t, stem):
        d, name = s["d_model"], f"{stem}conv."
        conv = mixer(
            t,
            name,
            {"in_proj": 3 * d},
            d,
            "convolution",
            ("conv.weight", "conv.bias"),
            pre_norm=before,
        )
        return Block(no_attention(s), ff, mixer=conv)
    own = f"{stem}self_attn."
    p = projections(t, own, s, ("q_proj", "k_proj", "v_proj", "out_proj"))
    normed = qk_norms(t, s, own, c["norm_eps"], "{}_layernorm")
    return Block(attention(p, s, rotary(c, s["d_head"]), pre_norm=before, **normed), ff)


def feed_forward(c: Config, t: Names, stem: str, n: int, before: Norm) -> FeedForward | Experts:
    if f"{stem}gate.weight" not in t:
        gate, up, down = (t.linear(stem + name) for name in W1_W3_W2)
        return FeedForward(up, down, "silu", d_mlp(c), w_gate=gate, pre_norm=before)
    return mixture(
        t,
        stem,
        c["num_experts"],
        c["moe_intermediate_size"],
        "silu",
        W1_W3_W2,
        top_k=c["num_experts_per_tok"],
        normalise=c["norm_topk_prob"],
        routing=Routing(
            score="sigmoid",
            correction=t.pick(f"{stem}expert_bias"),
            scale=c["routed_scaling_factor"],
        ),
        pre_norm=before,
    )


def d_mlp(c: Config) -> int:
    """The config's width, or two thirds of it, stretched and rounded up."""
    width: int = c.first("intermediate_size", "block_ff_dim")
    if not c["block_auto_adjust_ff_dim"]:
        return width
    width = int(2 * width / 3)
    if (more := c.get("block_ffn_dim_multiplier")) is None:
        return width
    step = c["block_multiple_of"]
    return int(step * ((int(more * width) + step - 1) // step))


FF = f"{gguf.LAYER}feed_forward."
CONVOLUTION = f"{gguf.LAYER}conv."
LFM2_GGUF: gguf.Names = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    f"{gguf.LAYER}operator_norm": "blk.{n}.attn_norm",
    f"{gguf.LAYER}ffn_norm": "blk.{n}.ffn_norm",
    **{
        f"{gguf.LAYER}self_attn.{ours}": f"blk.{{n}}.{theirs}"
        for ours, theirs in {
            "q_proj": "attn_q",
            "k_proj": "attn_k",
            "v_proj": "attn_v",
            "out_proj": "attn_output",
            "q_layernorm": "attn_q_norm",
            "k_layernorm": "attn_k_norm",
        }.items()
    },
    f"{CONVOLUTION}in_proj": "blk.{n}.shortconv.in_proj",
    f"{CONVOLUTION}out_proj": "blk.{n}.shortconv.out_proj",
    **layouts.name_convolution(f"{CONVOLUTION}conv", "shortconv.conv"),
    f"{FF}w1": "blk.{n}.ffn_gate",
    f"{FF}w2": "blk.{n}.ffn_down",
    f"{FF}w3": "blk.{n}.ffn_up",
}


def lfm2_gguf(m: gguf.Keys) -> gguf.Naming:
    """Some files call the last norm what it is."""
    sparse = layouts.width(m, "ffn_gate_inp") is not None
    experts = layouts.name_experts(m, FF, names=W1_W3_W2) if sparse else {}
    correction = layouts.name_correction(f"{FF}expert_bias")
    names = {**LFM2_GGUF, **experts, **correction}
    if "output_norm.weight" in m.file.names():
        names["model.embedding_norm"] = "output_norm"
    return gguf.Naming("lfm2_moe" if sparse else "lfm2", names, gguf_config)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "norm_eps": c["rms_norm_eps"],
        "conv_L_cache": m.size("shortconv.l_cache"),
        "layer_types": layouts.layer_kinds(m, c, "conv"),
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": c["intermediate_size"],
        "num_dense_layers": m.get("leading_dense_block_count"),
        "moe_intermediate_size": layouts.expert_width(m),
    }


gguf.declare("lfm2", lfm2_gguf)
gguf.declare("lfm2moe", lfm2_gguf)
