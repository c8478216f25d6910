"""Llama 1–3, and the many models with Llama's layout: SmolLM, Yi, Vicuna, TinyLlama, …

Also Mistral: Llama with a sliding window; its later models let queries grow with their position.
Helium turns adjacent dimensions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Temperature

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
EMU = DEFAULTS | {"rms_norm_eps": 1e-5, "rope_theta": 1e6}
MISTRAL = DEFAULTS | {"sliding_window": 4096}
PADDLE = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500_000.0,
    "head_dim": 128,
}


@family("paddleocr_vl_text", "paddleocr_vl", title="PaddleOCR-VL", defaults=PADDLE, runs_as="llama")
@family("emu3_text_model", title="Emu3", defaults=EMU)
@family("cwm", title="Code World Model", defaults=DEFAULTS)
@family("seed_oss", title="Seed-OSS", defaults=DEFAULTS | {"head_dim": 128})
@family("ministral3", title="Ministral 3", defaults=DEFAULTS | {"head_dim": 128})
@family("ministral", title="Ministral", defaults=MISTRAL)
@family("mistral", title="Mistral", defaults=MISTRAL)
@family("llama", "iquestcoder", "internlm3", title="Llama", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


@family("helium", title="Helium", defaults=DEFAULTS | {"rms_norm_eps": 1e-8})
def describe_in_pairs(c: Config, t: Names) -> Architecture:
    """Adjacent dimensions are turned together."""
    turned = rotary(c, sizes(c)["d_head"], kind="pair")
    own = partial(block, rotary=turned)
    return decoder(c, t, own, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int, **changed: Any) -> Block:
    """`changed`: what a relative has otherwise in its attention."""
    s, eps = sizes(c), c["rms_norm_eps"]
    usual: dict[str, Any] = {
        "rotary": rotary(c, s["d_head"]),
        "pre_norm": t.norm("rms", f"{stem}input_layernorm", eps),
        "window": window(c, n),
        "temperature": temperature(c),
    }
    return Block(
        attention(projections(t, f"{stem}self_attn.", s), s, **usual | changed),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            pre_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
        ),
    )


def window(c: Config, n: int) -> int | None:
    """The config's window, in those layers that have one if it names them."""
    kinds = c.get("layer_types")
    slides = kinds is None or kinds[n] == "sliding_attention"
    return c.get("sliding_window") if slides else None


def temperature(c: Config) -> Temperature | None:
    """Ministral 3's queries grow beyond the context it was first trained with."""
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if not rope.get("llama_4_scaling_beta"):
        return None
    return Temperature(rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"])


def llama_gguf(m: gguf.Keys) -> gguf.Naming:
    """llama.cpp writes Llama, Mistral and Mixtral alike; only the last has experts."""
    names = {**gguf.LLAMA, **gguf.TURNED}
    if "blk.0.ffn_gate_inp.weight" not in m.file.names():
        return gguf.Naming("llama", names)
    names |= mixtral_names(old="blk.0.ffn_gate.0.weight" in m.file.names())
    return gguf.Naming("mixtral", names, lambda m, c: {"num_local_experts": c["num_experts"]})


def mixtral_names(old: bool) -> gguf.Names:
    """Until April 2024 each expert had tensors of its own; since then they are stacked."""
    moe = f"{gguf.LAYER}block_sparse_moe."

    def expert(kind: str) -> gguf.GGUFSource:
        if old:
            return gguf.GGUFSource(f"blk.{{n}}.ffn_{kind}.{{i}}")
        return gguf.GGUFSource(f"blk.{{n}}.ffn_{kind}_exps", stacked=True)

    return {
        f"{moe}gate": "blk.{n}.ffn_gate_inp",
        f"{moe}experts.{{i}}.w1": expert("gate"),
        f"{moe}experts.{{i}}.w2": expert("down"),
        f"{moe}experts.{{i}}.w3": expert("up"),
    }


gguf.declare("llama", llama_gguf)


def mistral3_gguf(m: gguf.Keys) -> gguf.Naming:
    """Mistral Small 3, or Ministral 3, whose queries grow with their position."""
    names = {**gguf.LLAMA, **gguf.TURNED}
    if not m.get("attention.temperature_scale"):
        return gguf.Naming("mistral", names, without=("sliding_window",))
    return gguf.Naming("ministral3", names, ministral_rope)


def ministral_rope(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    even = m.get("rope.scaling.yarn_log_multiplier")
    beta = {"llama_4_scaling_beta": m.get("attention.temperature_scale")}
    rope = (c["rope_scaling"] or {}) | beta | {"mscale": even, "mscale_all_dim": even}
    return {"rope_scaling": rope}


gguf.declare("mistral3", mistral3_gguf)
gguf.declare(
    "seed_oss",
    gguf.Naming(
        "seed_oss",
        {
            **gguf.LLAMA,
            f"{gguf.LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
        },
    ),
)
