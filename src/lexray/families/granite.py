"""Granite 3 and 4: Llama with constant factors on embeddings, scores, what sub-blocks write, and
logits; its mixtures have one fused matrix of all experts' gates and keys, some of them a shared
expert. Most layers of Granite 4 are state spaces, and its attention may have no
positions at all. The models with windows have sinks, and in each layer rotations of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import in_stacks
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.jamba import jamba_names
from lexray.families.linear import Linear, Norm
from lexray.families.mixers import attends, mamba2, no_attention
from lexray.families.parts import decoder, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
HYBRID = DEFAULTS | {
    "mamba_expand": 2,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
}
DOCLING = DEFAULTS | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}
WINDOWS = DEFAULTS | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 128}


@family("granite", title="Granite", defaults=DEFAULTS)
@family("granite_docling_text", title="Granite-Docling", defaults=DOCLING, runs_as="granite")
@family("granite_swa", title="Granite, windows", defaults=WINDOWS)
@family("granitemoe_swa", title="Granite-MoE, windows", defaults=WINDOWS)
@family("granitemoe", title="Granite-MoE", defaults=DEFAULTS)
@family("granitemoeshared", title="Granite-MoE, shared", defaults=DEFAULTS)
@family("granitemoehybrid", title="Granite 4", defaults=HYBRID)
@family("hyperclovax", title="HyperCLOVA X", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    """HyperCLOVA X multiplies its logits, where Granite divides them."""
    scaling = c["logits_scaling"]
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        embed_scale=c["embedding_multiplier"],
        logit_scale=scaling if c.get("model_type") == "hyperclovax" else 1 / scaling,
    )


def factor(c: Config) -> Norm | None:
    """What sub-blocks write is multiplied by."""
    times = c["residual_multiplier"]
    return None if times == 1 else Norm("fixed", None, factor=times)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    times = factor(c)
    own = {"scale": c["attention_multiplier"], "post_norm": times} | look(c, t, stem, n)
    plain = llama.block(c, t, stem, n, **own)
    moe = f"{stem}block_sparse_moe."
    sparse = t.pick(f"{moe}router.layer.weight", f"{moe}router.weight") is not None
    dense = shared(c, t, f"{stem}shared_mlp.") or plain.ff
    ff = experts(c, t, stem, moe) if sparse else dense
    whole = replace(plain, ff=replace(ff, pre_norm=plain.ff.pre_norm, post_norm=times))
    if c.get("model_type") == "hyperclovax":
        return with_post_norms(c, t, stem, whole)
    if c.get("model_type") != "granitemoehybrid":
        return whole
    if attends(t, stem):
        still = c.get("position_embedding_type") != "rope"
        heads = replace(whole.attention, rotary=None) if still else whole.attention
        return replace(whole, attention=heads)
    assert plain.attention.pre_norm is not None
    state = mamba2(c, t, f"{stem}mamba.", plain.attention.pre_norm, post_norm=times)
    return replace(whole, attention=no_attention(sizes(c)), mixer=state)


def look(c: Config, t: Names, stem: str, n: int) -> dict[str, Any]:
    """What attention has in the models with windows: three layers of four look through one, unless
    the config says which; a layer's own base of rotations may be 0, which means none."""
    sinks = f"{stem}self_attn.sinks"
    if sinks not in t:
        return {}
    kinds, bases = c.get("layer_types"), c.get("layer_rope_theta")
    slides = kinds[n] == "sliding_attention" if kinds else n % 4 != 0
    own: dict[str, Any] = {"sinks": sinks, "window": c["sliding_window"] if slides else None}
    if bases is None:
        return own
    base = c.each("layer_rope_theta", c["num_hidden_layers"])[n]
    turns = (c.get("rope_parameters") or {}) | {"rope_theta": base}
    entries = c.with_entries(rope_parameters=turns)
    return own | {"rotary": rotary(entries, sizes(c)["d_head"]) if base else None}


def with_post_norms(c: Config, t: Names, stem: str, block: Block) -> Block:
    """HyperCLOVA X norms what sub-blocks write, if it says so, before the factor."""
    scale = c.get("attention_multiplier") or sizes(c)["d_head"] ** -0.5
    heads, ff = replace(block.attention, scale=scale), block.ff
    if f"{stem}post_norm1.weight" in t:
        first, second = (
            replace(t.norm("rms", stem + name, c["rms_norm_eps"]), factor=c["residual_multiplier"])
            for name in ("post_norm1", "post_norm2")
        )
        heads, ff = replace(heads, post_norm=first), replace(ff, post_norm=second)
    return replace(block, attention=heads, ff=ff)


def experts(c: Config, t: Names, stem: str, moe: str) -> Experts:
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    both = t.pick(f"{moe}input_linear.weight", f"{moe}experts.gate_up_proj")
    down = t.pick(f"{moe}output_linear.weight", f"{moe}experts.down_proj")
    assert both is not None
    assert down is not None
    router = t.pick(f"{moe}router.layer.weight", f"{moe}router.weight")
    count = range(c["num_local_experts"])
    beside = shared(c, t, f"{stem}shared_mlp.")
    return Experts(
        router=Linear(router or ""),
        experts=tuple(in_stacks(both, down, e, d_mlp, act) for e in count),
        top_k=c["num_experts_per_tok"],
        normalise=True,
        module=moe.removesuffix("."),
        shared=beside,
        shared_beside=beside is not None,
    )


def shared(c: Config, t: Names, stem: str) -> FeedForward | None:
    """A feed-forward beside the experts, gates and keys in one matrix."""
    both, d_mlp = f"{stem}input_linear", c.get("shared_intermediate_size") or 0
    if f"{both}.weight" not in t:
        return None
    return FeedForward(
        w_in=t.linear(both, start=d_mlp, size=d_mlp),
        w_gate=t.linear(both, start=0, size=d_mlp),
        w_out=t.linear(f"{stem}output_linear"),
        activation=c["hidden_act"],
        d_mlp=d_mlp,
    )


MOE = f"{gguf.LAYER}block_sparse_moe."
SHARED = f"{gguf.LAYER}shared_mlp."


def factors(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "embedding_multiplier": m.get("embedding_scale"),
        "residual_multiplier": m.get("residual_scale"),
        "attention_multiplier": m.get("attention.scale"),
        "logits_scaling": m.get("logit_scale"),
    }


def both(gate: str, up: str, axis: int) -> gguf.GGUFJoined:
    """Gates and keys, which the converter takes apart."""
    sources = gguf.GGUFSource(f"blk.{{n}}.{gate}"), gguf.GGUFSource(f"blk.{{n}}.{up}")
    return gguf.GGUFJoined(sources, axis)


EXPERTS: gguf.Names = {
    f"{MOE}router.layer": "blk.{n}.ffn_gate_inp",
    f"{MOE}input_linear": both("ffn_gate_exps", "ffn_up_exps", axis=1),
    f"{MOE}output_linear": "blk.{n}.ffn_down_exps",
    f"{SHARED}input_linear": both("ffn_gate_shexp", "ffn_up_shexp", axis=0),
    f"{SHARED}output_linear": "blk.{n}.ffn_down_shexp",
}
DENSE: gguf.Names = {
    f"{SHARED}input_linear": both("ffn_gate", "ffn_up", axis=0),
    f"{SHARED}output_linear": "blk.{n}.ffn_down",
}


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return factors(m, c) | {
        "num_local_experts": c.get("num_experts", 0),
        "intermediate_size": layouts.expert_width(m),
        "shared_intermediate_size": layouts.width(m, "ffn_up_shexp"),
    }


def moe_gguf(m: gguf.Keys) -> gguf.Naming:
    shared = layouts.width(m, "ffn_up_shexp")
    kind = "granitemoe" if shared is None else "granitemoeshared"
    return gguf.Naming(kind, {**gguf.LLAMA, **gguf.TURNED, **EXPERTS}, moe_config)


def hybrid_gguf(m: gguf.Keys) -> gguf.Naming:
    """Bamba is written as Granite 4 too: it alone has positions."""
    state = layouts.name_mamba2(f"{gguf.LAYER}mamba.")
    if m.get("rope.scaling.finetuned") is True:
        return gguf.Naming("bamba", {**jamba_names(), **gguf.TURNED, **state}, bamba_config)
    own = {**gguf.EMBEDDINGS, **gguf.ATTENTION, **gguf.TURNED, **gguf.NORMS, **state}
    inner = DENSE if layouts.width(m, "ffn_gate_inp") is None else EXPERTS
    return gguf.Naming("granitemoehybrid", {**own, **inner}, hybrid_config)


def hybrid_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    shared = layouts.width(m, "ffn_up_shexp") or layouts.width(m, "ffn_up")
    kinds = layouts.layer_kinds(m, c, "linear_attention")
    own = {"shared_intermediate_size": shared, "layer_types": kinds}
    d_mlp = layouts.expert_width(m) or c["intermediate_size"]
    return {**moe_config(m, c), **layouts.mamba2_config(m, c), **own, "intermediate_size": d_mlp}


def bamba_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    attend = layouts.layers_with(m, c, "attn_output")
    return layouts.mamba2_config(m, c) | {"attn_layer_indices": attend}


gguf.declare("granite", gguf.Naming("granite", {**gguf.LLAMA, **gguf.TURNED}, factors))
gguf.declare("granitemoe", moe_gguf)
gguf.declare("granitehybrid", hybrid_gguf)
