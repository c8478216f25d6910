"""Qwen 2, 2.5 and 3, and their mixtures of experts.

Qwen2 has biases on queries, keys and values only; Qwen3 norms each head's queries and keys instead.
Mellum 2 is Qwen3-MoE with windows in some layers, which have a rotary embedding of their own.
"""

from __future__ import annotations

from typing import Any

from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Linear, Norm
from lexray.families.parts import attention, decoder, gated, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import Rotary, rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward

DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
QWEN3 = DEFAULTS | {"head_dim": 128}
VISION = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_text")
"""The language parts of Qwen2-VL, 2.5-VL and 2.5-Omni; older configs have them at their top
level."""
MELLUM = QWEN3 | {
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "sliding_window": 1024,
    "use_sliding_window": True,
}
MOE = {"decoder_sparse_step": 1, "norm_topk_prob": False}
OMNI = DEFAULTS | MOE | {"num_experts_per_tok": 8, "norm_topk_prob": True}


@family("qwen2", *VISION, title="Qwen2", defaults=DEFAULTS)
@family("qwen3", "qwen3_vl_text", title="Qwen3", defaults=QWEN3)
@family("qwen2_moe", title="Qwen2-MoE", defaults=DEFAULTS | MOE | {"num_experts_per_tok": 4})
@family("qwen3_moe", title="Qwen3-MoE", defaults=DEFAULTS | MOE | {"num_experts_per_tok": 8})
@family("qwen3_omni_moe_text", title="Qwen3-Omni", defaults=OMNI, runs_as="qwen3_moe")
@family("mellum", title="Mellum 2", defaults=MELLUM)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            layer_rotary(c, s["d_head"], n),
            pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
            **qk_norms(t, s, f"{stem}self_attn.", eps),
            window=window(c, n),
        ),
        feed_forward(c, t, stem, n, t.norm("rms", f"{stem}post_attention_layernorm", eps)),
    )


def layer_rotary(c: Config, d_head: int, n: int) -> Rotary:
    """Mellum has one for layers with a window, and one for the others."""
    kinds = c.get("layer_types")
    return rotary(c, d_head, layer_type=kinds[n] if kinds else None)


def window(c: Config, n: int) -> int | None:
    """No layer looks through a window unless the config says so."""
    return c.get("sliding_window") if c.get("use_sliding_window") and slides(c, n) else None


def slides(c: Config, n: int) -> bool:
    """Where there are windows: in the upper layers, or as each mixture of experts has it."""
    kind, first = c.get("model_type"), c.get("max_window_layers", 28)
    if kind == "qwen3_moe":
        return True
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    return bool(n % 2 == 0 and n < first if kind == "qwen2_moe" else n >= first)


def feed_forward(c: Config, t: Names, stem: str, n: int, norm: Norm) -> FeedForward | Experts:
    n_experts = c.get("num_experts") or c.get("num_local_experts") or 0
    kinds = c.get("mlp_layer_types")
    dense = kinds[n] == "dense" if kinds else n in (c.get("mlp_only_layers") or [])
    sparse = not dense and n_experts > 0
    if not sparse or (n + 1) % c.get("decoder_sparse_step", 1):
        return gated(t, f"{stem}mlp.", c["intermediate_size"], c["hidden_act"], pre_norm=norm)
    shared = f"{stem}mlp.shared_expert."
    width = c.get("shared_expert_intermediate_size")
    return mixture(
        t,
        f"{stem}mlp.",
        n_experts,
        c["moe_intermediate_size"],
        c["hidden_act"],
        top_k=c["num_experts_per_tok"],
        normalise=bool(c.get("norm_topk_prob")),
        shared=gated(t, shared, width, c["hidden_act"]) if width else None,
        shared_gate=Linear(f"{stem}mlp.shared_expert_gate.weight") if width else None,
        pre_norm=norm,
    )


SHARED: gguf.Names = {
    **layouts.name_shared(f"{layouts.MLP}shared_expert"),
    f"{layouts.MLP}shared_expert_gate": gguf.GGUFSource("blk.{n}.ffn_gate_inp_shexp", one_row=True),
}


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Widths are taken from the tensors, since the first files did not have them as metadata.

    Whether the chosen experts' weights are normalised is not stored: Qwen2's alone are not.
    """
    return {
        "moe_intermediate_size": layouts.expert_width(m),
        "shared_expert_intermediate_size": layouts.width(m, "ffn_up_shexp"),
        "norm_topk_prob": c["model_type"] != "qwen2_moe",
    }


def qwen2_moe_gguf(m: gguf.Keys) -> gguf.Naming:
    names = {**gguf.LLAMA, **layouts.name_experts(m), **SHARED}
    return gguf.Naming("qwen2_moe", names, moe_config)


def qwen3_moe_gguf(m: gguf.Keys) -> gguf.Naming:
    names = {**gguf.LLAMA, **gguf.QK_NORMS, **layouts.name_experts(m)}
    return gguf.Naming("qwen3_moe", names, moe_config)


gguf.declare("qwen2", gguf.Naming("qwen2", gguf.LLAMA))
gguf.declare("qwen2vl", gguf.Naming("qwen2", gguf.LLAMA))
gguf.declare("qwen3", gguf.Naming("qwen3", {**gguf.LLAMA, **gguf.QK_NORMS}))
gguf.declare("qwen3vl", gguf.Naming("qwen3", {**gguf.LLAMA, **gguf.QK_NORMS}))
gguf.declare("qwen2moe", qwen2_moe_gguf)
gguf.declare("qwen3moe", qwen3_moe_gguf)
gguf.declare("qwen3vlmoe", qwen3_moe_gguf)
