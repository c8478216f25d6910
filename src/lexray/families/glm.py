"""GLM-4: half of each head rotary in adjacent pairs, gates and keys in one matrix.

The models of 2025 norm what sub-blocks write as well; the mixtures (GLM-4.5) have Llama's names,
halves of pairs, optional norms of queries and keys, and DeepSeek's experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.experts import DEEPSEEK, deepseek_feed_forward
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import find_tensor
from lexray.families.parts import decoder, gated_at_once, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1.5625e-07,
    "hidden_act": "silu",
    "head_dim": 128,
    "num_key_value_heads": 2,
}
MOE = DEEPSEEK | {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "first_k_dense_replace": 1,
}


VISION = DEFAULTS | {
    "rms_norm_eps": 1e-5,
    "head_dim": None,
    "partial_rotary_factor": 1.0,
    "num_key_value_heads": None,
}


@family("glm4v_text", "glm4v", title="GLM-4V", defaults=VISION, runs_as="glm4")
@family("glm_ocr_text", "glm_ocr", title="GLM-OCR", defaults=VISION, runs_as="glm4")
@family("glm", title="GLM-4 (2024)", defaults=DEFAULTS)
@family("glm4", title="GLM-4", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    """What a config leaves out means one thing here and another there: transformers is told."""
    s, body = sizes(c), t.prefix("embed_tokens.weight", "model.", "")
    settings = {
        "head_dim": s["d_head"],
        "num_key_value_heads": s["n_kv_heads"],
        "attention_bias": f"{body}layers.0.self_attn.q_proj.bias" in t,
    }
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        settings=tuple(settings.items()),
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    both = f"{stem}post_self_attn_layernorm.weight" in t
    after_attention, after_mlp = (
        t.norm("rms", f"{stem}post_{x}_layernorm", eps) if both else None
        for x in ("self_attn", "mlp")
    )
    turns = rotary(c, s["d_head"], kind="pair", partial=0.5)
    plain = llama.block(c, t, stem, n, rotary=turns, post_norm=after_attention)
    before = plain.ff.pre_norm
    norms = {"pre_norm": before, "post_norm": after_mlp}
    return replace(plain, ff=gated_at_once(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], **norms))


@family("glm4_moe", title="GLM-4.5 (MoE)", defaults=MOE | {"partial_rotary_factor": 0.5})
@family(
    "glm4v_moe_text",
    "glm4v_moe",
    title="GLM-4.5V",
    defaults=MOE | {"partial_rotary_factor": 0.5},
    runs_as="glm4_moe",
)
@family("solar_open", title="Solar Open", defaults=MOE | {"head_dim": 128, "rope_theta": 1e6})
@family("dots1", title="dots.llm1", defaults=MOE)
def describe_moe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, moe_block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def moe_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    plain = llama.block(c, t, stem, n, **qk_norms(t, s, f"{stem}self_attn.", eps))
    norm = t.norm("rms", f"{stem}post_attention_layernorm", eps)
    return replace(plain, ff=deepseek_feed_forward(c, t, stem, n, norm))


def glm_gguf(m: gguf.Keys) -> gguf.Naming:
    """GLM-4 of 2024; files made of its first release have queries, keys and values in one."""
    names = {**FUSED}
    if layouts.width(m, "attn_qkv") is not None:
        names |= {f"{gguf.LAYER}self_attn.{x}_proj": third(i) for i, x in enumerate("qkv")}
    return gguf.Naming("glm", names)


def third(number: int) -> gguf.GGUFSource:
    def part(c: dict[str, Any]) -> tuple[int, int]:
        n, n_kv, size = (c[x] for x in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        ends = [0, n * size, (n + n_kv) * size, (n + 2 * n_kv) * size]
        return ends[number], ends[number + 1]

    return gguf.GGUFSource("blk.{n}.attn_qkv", part=part)


FUSED: gguf.Names = {
    **gguf.EMBEDDINGS,
    **gguf.ATTENTION,
    **gguf.NORMS,
    f"{gguf.LAYER}mlp.gate_up_proj": "blk.{n}.ffn_up",
    f"{gguf.LAYER}mlp.down_proj": "blk.{n}.ffn_down",
}
NORMS: gguf.Names = {
    f"{gguf.LAYER}post_self_attn_layernorm": "blk.{n}.post_attention_norm",
    f"{gguf.LAYER}post_mlp_layernorm": "blk.{n}.post_ffw_norm",
}


def moe_gguf(m: gguf.Keys) -> gguf.Naming:
    """Solar Open is written as GLM-4.5 is, and differs in nothing that its tensors do not show."""
    names = {**gguf.LLAMA, **gguf.QK_NORMS, **layouts.name_experts(m), **layouts.DEEPSEEK}
    before = find_tensor(m, "post_attention_norm")
    if before is not None:
        names[f"{gguf.LAYER}post_attention_layernorm"] = "blk.{n}.post_attention_norm"
    kind = "dots1" if m.file.architecture == "dots1" else "glm4_moe"
    return gguf.Naming(kind, names, moe_config)


def moe_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    normed = bool(layouts.layers_with(m, c, "attn_q_norm"))
    return layouts.deepseek_experts(m, c) | {"use_qk_norm": normed}


gguf.declare("chatglm", glm_gguf)
gguf.declare("glm4", gguf.Naming("glm4", {**FUSED, **NORMS}))
gguf.declare("glm4moe", moe_gguf)
gguf.declare("dots1", moe_gguf)
