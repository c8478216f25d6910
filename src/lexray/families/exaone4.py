"""EXAONE 4: norms on what sub-blocks write and on each head's queries and keys; where some layers
look through a window, the others go without rotary positions. The mixture (K-EXAONE) norms what
sub-blocks read, and has DeepSeek's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families.experts import DEEPSEEK, deepseek_feed_forward
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, decoder, gated, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu"}


@family("exaone4", title="EXAONE 4", defaults=DEFAULTS | {"sliding_window": 4096})
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps, window = sizes(c), c["rms_norm_eps"], c.get("sliding_window")
    slides = window is not None and is_sliding(c, n)
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"]) if slides or window is None else None,
            post_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
            **qk_norms(t, s, f"{stem}self_attn.", eps),
            window=window if slides else None,
        ),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            post_norm=t.norm("rms", f"{stem}post_feedforward_layernorm", eps),
        ),
    )


MOE = {name: value for name, value in DEEPSEEK.items() if name != "n_shared_experts"}


@family(
    "exaone_moe",
    title="EXAONE (MoE)",
    defaults=DEFAULTS
    | MOE
    | {"sliding_window": 4096, "first_k_dense_replace": 1}
    | {"num_shared_experts": 1, "routed_scaling_factor": 2.5},
)
def describe_moe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, moe_block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def moe_block(c: Config, t: Names, stem: str, n: int) -> Block:
    before, between = (
        t.norm("rms", f"{stem}{x}_layernorm", c["rms_norm_eps"])
        for x in ("input", "post_attention")
    )
    heads = replace(block(c, t, stem, n).attention, pre_norm=before, post_norm=None)
    return Block(heads, deepseek_feed_forward(c, t, stem, n, between))


def is_sliding(c: Config, n: int) -> bool:
    """All but every fourth layer, or as a pattern of letters has it ("LLLG")."""
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    pattern = c.get("sliding_window_pattern") or 4
    if isinstance(pattern, str):
        return pattern[n % len(pattern)] == "L" and n + 1 != c["num_hidden_layers"]
    return bool((n + 1) % pattern)


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    """Without a window every layer sees everything, and every layer is rotary."""
    names = {**gguf.EMBEDDINGS, **gguf.ATTENTION, **gguf.MLP, **gguf.QK_NORMS, **gguf.AFTER}
    if m.length("attention.sliding_window") is None:
        return gguf.Naming("exaone4", names, all_seeing, without=("sliding_window",))
    return gguf.Naming("exaone4", names, layouts.windows)


def all_seeing(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {"layer_types": ["full_attention"] * c["num_hidden_layers"]}


gguf.declare("exaone4", gguf_names)


def moe_gguf(m: gguf.Keys) -> gguf.Naming:
    names = {
        **gguf.LLAMA,
        **gguf.QK_NORMS,
        **layouts.name_experts(m),
        **layouts.name_shared(f"{layouts.MLP}shared_experts"),
        **layouts.name_correction(f"{layouts.MLP}e_score_correction_bias"),
    }
    return gguf.Naming("exaone_moe", names, moe_config)


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    experts = layouts.deepseek_experts(m, c)
    shared = experts.pop("n_shared_experts", None)
    return {**experts, "num_shared_experts": shared, **layouts.windows(m, c)}


gguf.declare("exaone-moe", moe_gguf)
