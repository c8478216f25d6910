"""Falcon-H1: in every layer heads and a state space read the same stream side by side, and both
are added to it. Constant factors stand on embeddings, inputs, keys, gates, outputs and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.jamba import jamba_names
from lexray.families.linear import Norm, in_order
from lexray.families.mixers import mamba2
from lexray.families.parts import decoder, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "mamba_expand": 2,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mlp_multipliers": [1.0, 1.0],
    **dict.fromkeys(
        (
            *("embedding_multiplier", "lm_head_multiplier", "key_multiplier"),
            *("attention_in_multiplier", "attention_out_multiplier"),
            *("ssm_in_multiplier", "ssm_out_multiplier"),
        ),
        1.0,
    ),
}


@family("falcon_h1", title="Falcon-H1", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        "final_layernorm",
        embed_scale=c["embedding_multiplier"],
        logit_scale=c["lm_head_multiplier"],
    )


def times(factor: float) -> Norm | None:
    """What a sub-block writes is multiplied by this."""
    return None if factor == 1 else Norm("fixed", None, factor=factor)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s = sizes(c)
    plain = llama.block(c, t, stem, n)
    before = t.norm("rms", f"{stem}input_layernorm", c["rms_norm_eps"])
    keys = replace(plain.attention.k.linear, factor=c["key_multiplier"])
    heads = replace(
        plain.attention,
        k=in_order(keys, s["n_kv_heads"], s["d_head"]),
        pre_norm=replace(before, factor=c["attention_in_multiplier"]),
        post_norm=times(c["attention_out_multiplier"]),
        window=None,
    )
    beside = mamba2(
        c,
        t,
        f"{stem}mamba.",
        replace(before, factor=c["ssm_in_multiplier"]),
        post_norm=times(c["ssm_out_multiplier"]),
    )
    return Block(heads, feed_forward(c, t, stem), mixer=beside)


def feed_forward(c: Config, t: Names, stem: str) -> FeedForward:
    gate, down = c["mlp_multipliers"]
    up, middle, out = (f"{stem}feed_forward.{name}_proj" for name in ("up", "gate", "down"))
    return FeedForward(
        w_in=t.linear(up),
        w_gate=t.linear(middle, factor=gate),
        w_out=t.linear(out),
        activation=c["hidden_act"],
        d_mlp=c["intermediate_size"],
        pre_norm=t.norm("rms", f"{stem}pre_ff_layernorm", c["rms_norm_eps"]),
        post_norm=times(down),
    )


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The converter multiplies all factors into the weights."""
    inner, normed = m.size("ssm.inner_size"), layouts.layers_with(m, c, "ssm_norm")
    return layouts.mamba2_config(m, c) | {
        "mamba_d_ssm": inner,
        "mamba_rms_norm": bool(normed),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
        **{key: 1.0 for key in DEFAULTS if key.endswith("_multiplier")},
    }


gguf.declare(
    "falcon-h1",
    gguf.Naming(
        "falcon_h1",
        {
            **jamba_names(),
            **layouts.name_mamba2(f"{gguf.LAYER}mamba."),
        },
        gguf_config,
    ),
)
