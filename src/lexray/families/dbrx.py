"""DBRX: fused and clipped q | k | v, LayerNorms without biases, experts end to end in a matrix."""

from __future__ import annotations

from typing import Any

from lexray.families.experts import each_expert
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import rope_parameters
from lexray.families.linear import Linear
from lexray.families.parts import Sizes, attention, fused, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "d_model": 2048,
    "n_heads": 16,
    "n_layers": 24,
    "max_seq_len": 2048,
    "vocab_size": 32_000,
    "attn_config": {},
    "ffn_config": {},
}
EPS = 1e-5


@family("dbrx", title="DBRX", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    s, how = sizes(c), rope(c)
    return Architecture(
        **s,
        blocks=tuple(
            block(c, t, s, f"{body}blocks.{n}.", how) for n in range(_either(c, "n_layers"))
        ),
        final_norm=t.norm("layer", f"{body}norm_f", EPS),
        settings=(("rope_parameters", how),),
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


NAMES = {
    "d_model": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "max_seq_len": "max_position_embeddings",
}
"""Its own words, and those of most configs."""


def _either(c: Config, name: str) -> int:
    said = c.get(NAMES[name])
    size: int = c[name] if said is None else said
    return size


def attn_config(c: Config) -> Config:
    return Config(c["attn_config"], {"kv_n_heads": 1})


def ff_config(c: Config) -> Config:
    sizes = {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}
    return Config(c["ffn_config"], sizes | {"moe_normalize_expert_weights": 1.0})


def sizes(c: Config) -> Sizes:
    d_model, n_heads = _either(c, "d_model"), _either(c, "n_heads")
    if not 1 <= (shared := attn_config(c)["kv_n_heads"]) <= n_heads <= d_model:
        raise ValueError(f"it speaks of {n_heads} heads in {d_model} dimensions, {shared} of keys")
    return {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": shared,
        "d_head": d_model // n_heads,
        "d_mlp": ff_config(c)["ffn_hidden_size"],
        "d_vocab": c["vocab_size"],
        "n_ctx": _either(c, "max_seq_len"),
    }


def rope(c: Config) -> dict[str, Any]:
    """The first files say their base with the attention, later ones where all others do."""
    theta = attn_config(c).get("rope_theta") or 10_000.0
    return {"rope_type": "default", "rope_theta": theta} | dict(c.get("rope_parameters") or {})


def block(c: Config, t: Names, s: Sizes, stem: str, how: dict[str, Any]) -> Block:
    inner = f"{stem}norm_attn_norm."
    return Block(
        attention(
            fused(t, f"{inner}attn.Wqkv", f"{inner}attn.out_proj", s),
            s,
            rotary({"rope_parameters": how}, s["d_head"]),
            pre_norm=t.norm("layer", f"{inner}norm_1", EPS),
            clip=attn_config(c).get("clip_qkv"),
        ),
        experts(c, t, s, f"{stem}ffn.", f"{inner}norm_2"),
    )


def experts(c: Config, t: Names, s: Sizes, stem: str, norm: str) -> Experts:
    how = ff_config(c)
    if (power := how.get("moe_normalize_expert_weights")) not in (None, 1):
        raise ValueError(f"weights of experts of norm {power} are unknown; 1 or none is")
    act, n = (how.get("ffn_act_fn") or {}).get("name") or "silu", how["moe_num_experts"]
    return Experts(
        router=t.linear(f"{stem}router.layer"),
        experts=tuple(expert(s, f"{stem}experts.mlp.", e, act) for e in each_expert(n)),
        top_k=how["moe_top_k"],
        normalise=power is not None,
        module=stem.removesuffix("."),
        pre_norm=t.norm("layer", norm, EPS),
    )


def expert(s: Sizes, stem: str, e: int, activation: str) -> FeedForward:
    """Expert e of gates, keys and values that lie expert after expert, a row for each neuron."""
    size = s["d_mlp"]
    gate, key = (Linear(f"{stem}{x}", start=e * size, size=size) for x in ("w1", "v1"))
    value = Linear(f"{stem}w2", in_first=True, rows=(e * size, size))
    return FeedForward(key, value, activation, size, w_gate=gate)


LAYER = "transformer.blocks.{n}."
NORMED = f"{LAYER}norm_attn_norm."


def end_to_end(name: str, *, transposed: bool = False) -> gguf.GGUFJoined:
    """A stack of experts as one matrix."""
    stack = gguf.GGUFSource(name, stacked=True, exact=True, transposed=transposed)
    return gguf.GGUFJoined((stack,))


DBRX_GGUF: gguf.Names = {
    "transformer.wte": "token_embd",
    "transformer.norm_f": "output_norm",
    "lm_head": "output",
    f"{NORMED}norm_1": "blk.{n}.attn_norm",
    f"{NORMED}norm_2": "blk.{n}.attn_output_norm",
    f"{NORMED}attn.Wqkv": "blk.{n}.attn_qkv",
    f"{NORMED}attn.out_proj": "blk.{n}.attn_output",
    f"{LAYER}ffn.router.layer": "blk.{n}.ffn_gate_inp",
    f"{LAYER}ffn.experts.mlp.w1": end_to_end("blk.{n}.ffn_gate_exps.weight"),
    f"{LAYER}ffn.experts.mlp.v1": end_to_end("blk.{n}.ffn_up_exps.weight"),
    f"{LAYER}ffn.experts.mlp.w2": end_to_end("blk.{n}.ffn_down_exps.weight", transposed=True),
}


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """In its own words. llama.cpp takes it for granted that the weights of experts add up to 1."""
    how = rope_parameters(c)
    theta, clip = how["rope_parameters"]["rope_theta"], m.get("attention.clamp_kqv")
    kv = {"kv_n_heads": c["num_key_value_heads"], "clip_qkv": clip, "rope_theta": theta}
    ff = {
        "ffn_hidden_size": c["intermediate_size"],
        "moe_num_experts": c["num_experts"],
        "moe_top_k": c["num_experts_per_tok"],
    }
    own = {ours: c[theirs] for ours, theirs in NAMES.items()}
    return own | how | {"attn_config": kv, "ffn_config": ff}


gguf.declare("dbrx", gguf.Naming("dbrx", DBRX_GGUF, gguf_config))
