"""Llama 4: adjacent-pair rotary in three of four layers, queries and keys normed there and grown
with their position elsewhere; a router whose sigmoid scales what the chosen expert reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families import llama
from lexray.families.experts import each_expert
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Linear, Norm
from lexray.families.parts import decoder, gated, same_for_all, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, Routing, Temperature

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "head_dim": 128,
    "rope_theta": 500_000.0,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}


@family("llama4_text", "llama4", title="Llama 4", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    attention = llama.block(c, t, stem, n, window=None, **positions(c, n))
    return replace(attention, ff=feed_forward(c, t, f"{stem}feed_forward.", n, norm))


def positions(c: Config, n: int) -> dict[str, Any]:
    """How a layer knows of positions: rotary within a chunk, or (every fourth) not at all."""
    listed = c.get("no_rope_layers")
    turned = bool(listed[n]) if listed else bool((n + 1) % c["no_rope_layer_interval"])
    if not turned:
        tuned = c["attn_temperature_tuning"]
        grows = Temperature(c["attn_scale"], c["floor_scale"], first=1) if tuned else None
        return {"rotary": None, "temperature": grows}
    s, bare = sizes(c), Norm("rms", None, eps=c["rms_norm_eps"])
    normed = bool(c.get("use_qk_norm"))
    return {
        "rotary": rotary(c, s["d_head"], kind="pair"),
        "chunk": c.get("attention_chunk_size"),
        "q_norm": same_for_all(bare, s["n_heads"]) if normed else None,
        "k_norm": same_for_all(bare, s["n_kv_heads"]) if normed else None,
    }


def feed_forward(c: Config, t: Names, stem: str, n: int, norm: Norm) -> FeedForward | Experts:
    step, d_mlp, act = c["interleave_moe_layer_step"], c["intermediate_size"], c["hidden_act"]
    listed = c.get("moe_layers")
    sparse = n in listed if listed is not None else step > 0 and n % step == step - 1
    if not sparse:
        return gated(t, stem, c["intermediate_size_mlp"], act, pre_norm=norm)
    both, down = f"{stem}experts.gate_up_proj", f"{stem}experts.down_proj"
    return Experts(
        router=Linear(f"{stem}router.weight"),
        experts=tuple(
            FeedForward(
                w_in=Linear(both, in_first=True, start=d_mlp, size=d_mlp, expert=e),
                w_gate=Linear(both, in_first=True, start=0, size=d_mlp, expert=e),
                w_out=Linear(down, in_first=True, expert=e),
                activation=act,
                d_mlp=d_mlp,
            )
            for e in each_expert(c["num_local_experts"])
        ),
        top_k=c["num_experts_per_tok"],
        normalise=False,
        module=stem.removesuffix("."),
        routing=Routing("sigmoid", on_input=True),
        shared=gated(t, f"{stem}shared_expert.", d_mlp, act),
        pre_norm=norm,
    )


FF = f"{gguf.LAYER}feed_forward."


def stack(kind: str) -> gguf.GGUFSource:
    return gguf.GGUFSource(f"blk.{{n}}.ffn_{kind}_exps.weight", exact=True, transposed=True)


LLAMA4_GGUF: gguf.Names = {
    **gguf.EMBEDDINGS,
    **gguf.ATTENTION,
    **gguf.NORMS,
    f"{FF}gate_proj": "blk.{n}.ffn_gate",
    f"{FF}up_proj": "blk.{n}.ffn_up",
    f"{FF}down_proj": "blk.{n}.ffn_down",
    f"{FF}router": "blk.{n}.ffn_gate_inp",
    f"{FF}experts.gate_up_proj": gguf.GGUFJoined((stack("gate"), stack("up")), 2),
    f"{FF}experts.down_proj": stack("down"),
    **layouts.name_shared(f"{FF}shared_expert"),
}


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp takes for granted of Llama 4 is what the family's defaults say, but for the
    norms of queries and keys: the model with 128 experts has none."""
    return {
        "num_local_experts": c["num_experts"],
        "intermediate_size": layouts.expert_width(m),
        "intermediate_size_mlp": c["intermediate_size"],
        "interleave_moe_layer_step": m.size("interleave_moe_layer_step", 1),
        "use_qk_norm": c["num_experts"] != 128,
    }


gguf.declare("llama4", gguf.Naming("llama4_text", LLAMA4_GGUF, gguf_config))
