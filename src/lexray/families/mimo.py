"""MiMo V2 Flash: values narrower than queries and keys, and multiplied by a constant; layers with a
window have sinks, twice the heads of keys and values, and a rotary embedding of their own. Experts
are chosen as DeepSeek's, none is shared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lexray.errors import LexrayError
from lexray.families import llama
from lexray.families.experts import DEEPSEEK, deepseek_feed_forward
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import common_config
from lexray.families.linear import in_order
from lexray.families.parts import decoder, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

FULL, SLIDING = "full_attention", "sliding_attention"
TURNED = {"rope_type": "default", "partial_rotary_factor": 0.334}
DEFAULTS = DEEPSEEK | {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "head_dim": 192,
    "v_head_dim": 128,
    "sliding_window": 129,
    "attention_value_scale": 0.707,
    "n_shared_experts": 0,
    "rope_parameters": {
        FULL: TURNED | {"rope_theta": 5e6},
        SLIDING: TURNED | {"rope_theta": 1e4},
    },
}


@family("mimo_v2_flash", title="MiMo V2 Flash", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    """The first layer and every sixth look everywhere, and the first is dense, unless the config
    says which."""
    kinds, widths = c.get("layer_types"), c.get("mlp_layer_types")
    full = kinds[n] == FULL if kinds else n == 0 or (n + 1) % 6 == 0
    dense = widths[n] == "dense" if widths else n == 0
    s, own = sizes(c), f"{stem}self_attn."
    shared = s["n_kv_heads"] * (1 if full else 2)
    scale = c.get("attention_value_scale")
    plain = llama.block(
        c,
        t,
        stem,
        n,
        rotary=rotary(c, s["d_head"], layer_type=FULL if full else SLIDING, partial=0.334),
        window=None if full else c["sliding_window"],
        sinks=t.pick(f"{own}attention_sink_bias", f"{own}sinks"),
    )
    values = t.linear(f"{own}v_proj", factor=1.0 if scale is None else scale)
    heads = replace(
        plain.attention,
        k=in_order(t.linear(f"{own}k_proj"), shared, s["d_head"]),
        v=in_order(values, shared, c["v_head_dim"]),
    )
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    experts = c.with_entries(first_k_dense_replace=0, n_shared_experts=0)
    ff = plain.ff if dense else deepseek_feed_forward(experts, t, stem, n, norm)
    return replace(plain, attention=heads, ff=ff)


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    sinks = gguf.GGUFSource("blk.{n}.attn_sinks.weight", exact=True)
    names = {
        **gguf.LLAMA,
        **layouts.name_experts(m),
        **layouts.name_correction(f"{layouts.MLP}gate.e_score_correction_bias"),
        f"{gguf.LAYER}self_attn.attention_sink_bias": sinks,
    }
    return gguf.Naming("mimo_v2_flash", names, gguf_config, common=gguf_common)


def gguf_common(m: gguf.Keys, kind: str) -> dict[str, Any]:
    """Layers without a window have half the heads of keys and values of those with one."""
    width, counts = m.size("attention.value_length"), m.each("attention.head_count_kv")
    if counts is None:
        return common_config(m, kind, d_value=width)
    slides = m.each("attention.sliding_window_pattern")
    if slides is None:
        raise m.lacks("attention.sliding_window_pattern")
    full = {count for count, slide in zip(counts, slides, strict=False) if not slide}
    windowed = {count for count, slide in zip(counts, slides, strict=False) if slide}
    few = next(iter(full), 0) or next(iter(windowed), 0) // 2
    if few < 1 or not full <= {few} or not windowed <= {2 * few}:
        raise LexrayError(
            f"{m.file.name}: the heads of keys and values in its metadata do not go by "
            "attention.sliding_window_pattern; convert the model again, or try its safetensors"
        )
    return common_config(m, kind, n_kv=few, d_value=width)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The first converters did not write the factor on values: the family's own is meant."""
    sparse = set(layouts.layers_with(m, c, "ffn_gate_inp"))
    turned = {"rope_type": "default", "partial_rotary_factor": c["partial_rotary_factor"]}
    local = m.above_one("rope.freq_base_swa", 10_000.0)
    thetas = {FULL: c["rope_theta"], SLIDING: local}
    return {
        **layouts.deepseek_experts(m, c),
        **layouts.told_windows(m, c),
        "v_head_dim": m.size("attention.value_length"),
        "attention_value_scale": m.get("attention.value_scale"),
        "norm_topk_prob": True,
        "mlp_layer_types": [
            "sparse" if n in sparse else "dense" for n in range(c["num_hidden_layers"])
        ],
        "rope_parameters": {kind: turned | {"rope_theta": x} for kind, x in thetas.items()},
        "rope_scaling": None,
    }


gguf.declare("mimo2", gguf_names)
