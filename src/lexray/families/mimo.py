"""MiMo V2 Flash: values narrower than queries and keys, and multiplied by a constant; layers with a
window have sinks, twice the heads of keys and values, and a rotary embedding of their own. Experts
are chosen as DeepSeek's, none is shared."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lexray.families import llama
from lexray.families.experts import DEEPSEEK, deepseek_feed_forward
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
