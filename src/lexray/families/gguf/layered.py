"""GGUF files of Gemma 4 and Gemma 3n, whose layers differ in their sizes."""

from __future__ import annotations

import math
from typing import Any

from lexray.errors import LexrayError
from lexray.families.gemma4 import FULL, SLIDING
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import MOST_ROWS, expect, n_layers

LAYER = gguf.LAYER
PER_LAYER_GGUF: gguf.Names = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    f"{LAYER}per_layer_input_gate": "blk.{n}.inp_gate",
    f"{LAYER}per_layer_projection": "blk.{n}.proj",
    f"{LAYER}post_per_layer_input_norm": "blk.{n}.post_norm",
}
BODY_GGUF: gguf.Names = {
    **gguf.LLAMA,
    **gguf.QK_NORMS,
    **gguf.AFTER,
    f"{LAYER}pre_feedforward_layernorm": "blk.{n}.ffn_norm",
    **PER_LAYER_GGUF,
}


def exactly(name: str, *, bare: bool = False) -> gguf.GGUFSource:
    return gguf.GGUFSource(name, exact=True, bare=bare)


GEMMA4_GGUF: gguf.Names = {
    **BODY_GGUF,
    f"{LAYER}layer_scalar": exactly("blk.{n}.layer_output_scale.weight"),
    f"{LAYER}post_feedforward_layernorm_1": "blk.{n}.post_ffw_norm_1",
    f"{LAYER}post_feedforward_layernorm_2": "blk.{n}.post_ffw_norm_2",
    f"{LAYER}pre_feedforward_layernorm_2": "blk.{n}.pre_ffw_norm_2",
    f"{LAYER}router.proj": gguf.GGUFSource("blk.{n}.ffn_gate_inp", bare=True),
    f"{LAYER}router.scale": exactly("blk.{n}.ffn_gate_inp.scale"),
    f"{LAYER}router.per_expert_scale": exactly("blk.{n}.ffn_down_exps.scale"),
    f"{LAYER}experts.gate_up_proj": exactly("blk.{n}.ffn_gate_up_exps.weight"),
    f"{LAYER}experts.down_proj": exactly("blk.{n}.ffn_down_exps.weight", bare=True),
}


def gemma4_common(m: gguf.Keys, kind: str) -> dict[str, Any]:
    """Its config's words. Heads of layers without a window are wider; whether they have fewer keys,
    the tensors tell."""
    heads, wide = m.even("attention.head_count"), m.size("attention.key_length")
    c = body_config(m, kind, max(wide, m.size("attention.key_length_swa", wide)) * heads)
    widths = {FULL: wide, SLIDING: m.size("attention.key_length_swa", wide)}
    counts: dict[str, int] = {}
    for n, each in enumerate(c["layer_types"]):
        expect(m, f"blk.{n}.attn_output.weight", (c["hidden_size"], heads * widths[each]))
        if has(m, n, "attn_k"):
            rows = m.file.info(f"blk.{n}.attn_k.weight").shape[0]
            expect(m, f"blk.{n}.attn_k.weight", (rows, c["hidden_size"]))
            if counts.setdefault(each, rows // widths[each]) * widths[each] != rows or not rows:
                raise m.uneven("attention.head_count_kv")
    sizes = {
        each: {"head_dim": widths[each], "num_key_value_heads": counts.get(each, 1)}
        for each in (FULL, SLIDING)
    }
    full = [n for n, each in enumerate(c["layer_types"]) if each == FULL]
    return {
        **c,
        **sizes[SLIDING],
        "global_head_dim": wide,
        "per_layer_config": dict.fromkeys(full, sizes[FULL]),
        "attention_k_eq_v": any(has(m, n, "attn_k") and not has(m, n, "attn_v") for n in full),
    }


def body_config(m: gguf.Keys, kind: str, rows: int) -> dict[str, Any]:
    """What both have; `rows`: of all heads of a layer together."""
    count = n_layers(m)
    if count > len(m.file.names()) or rows > MOST_ROWS:
        raise LexrayError(f"{m.file.name}: the sizes in its metadata do not fit together")
    return {
        "model_type": kind,
        "hidden_size": m.size("embedding_length"),
        "num_hidden_layers": count,
        "num_attention_heads": m.even("attention.head_count"),
        "vocab_size": m.file.info("token_embd.weight").shape[0],
        "max_position_embeddings": m.length("context_length"),
        "rms_norm_eps": m.need("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": m.get("final_logit_softcapping"),
        "num_kv_shared_layers": m.length("attention.shared_kv_layers") or 0,
        **second_embedding(m, count),
        "tie_word_embeddings": "output.weight" not in m.file.names(),
        **layouts.told_windows(m, {"num_hidden_layers": count}),
    }


def second_embedding(m: gguf.Keys, count: int) -> dict[str, int]:
    """The one of which each layer has a part, where there is one."""
    width, name = m.length("embedding_length_per_layer_input") or 0, "per_layer_token_embd.weight"
    if not width:
        return {"hidden_size_per_layer_input": 0}
    if name not in m.file.names():
        raise LexrayError(
            f"{m.file.name} lacks {name}, of which each layer has {width} columns by its metadata"
        )
    rows = m.file.info(name).shape[0]
    expect(m, name, (rows, count * width))
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": rows}


def has(m: gguf.Keys, n: int, stem: str) -> bool:
    return f"blk.{n}.{stem}.weight" in m.file.names()


def mlp_widths(m: gguf.Keys, c: dict[str, Any]) -> list[int]:
    """Of each layer."""
    layers = range(c["num_hidden_layers"])
    return [m.file.info(f"blk.{n}.ffn_down.weight").shape[-1] for n in layers]


def gemma4_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    widths, router = mlp_widths(m, c), layouts.width(m, "ffn_gate_inp")
    return {
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "enable_moe_block": router is not None,
        "num_experts": router,
        "top_k_experts": None if router is None else m.size("expert_used_count"),
        "moe_intermediate_size": layouts.expert_width(m),
        "rope_parameters": gemma4_rope(m, c),
    }


UNTURNED = 1e20
"""Frequencies that are divided by more than this are none."""


def gemma4_rope(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Of layers without a window some pairs do not turn: their frequencies are divided by 10³⁰."""
    wide, factors = c["global_head_dim"], m.file.read("rope_freqs.weight").flatten().tolist()
    turned = [x for x in factors if x < UNTURNED]
    if len(factors) != wide // 2 or len(set(turned)) > 1 or factors[: len(turned)] != turned:
        raise LexrayError(
            f"{m.file.name}: rope_freqs.weight should have {wide // 2} factors, of which the first "
            "are alike and the others put out what they divide; try the model's safetensors"
        )
    narrow = c["head_dim"]
    if (turning := m.size("rope.dimension_count_swa", narrow)) > narrow:
        raise LexrayError(f"{m.file.name}: the sizes in its metadata do not fit together")
    share = gguf.share(turning, narrow)
    return {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": m.above_one("rope.freq_base", 1e6),
            "partial_rotary_factor": gguf.share(2 * len(turned), wide),
            **({"factor": turned[0]} if turned and turned[0] != 1 else {}),
        },
        SLIDING: {
            "rope_type": "default",
            "rope_theta": m.above_one("rope.freq_base_swa", 1e4),
            "partial_rotary_factor": share,
        },
    }


gguf.declare("gemma4", gguf.Naming("gemma4_text", GEMMA4_GGUF, gemma4_config, common=gemma4_common))


GEMMA3N_GGUF: gguf.Names = {
    **BODY_GGUF,
    "model.altup_projections.{i}": gguf.GGUFSource("altup_proj", stacked=True),
    "model.altup_unembed_projections.{i}": gguf.GGUFSource("altup_unembd_proj", stacked=True),
    f"{LAYER}altup.correct_output_scale": exactly("blk.{n}.altup_correct_scale.weight"),
    f"{LAYER}altup.correction_coefs": "blk.{n}.altup_correct_coef",
    f"{LAYER}altup.prediction_coefs": "blk.{n}.altup_predict_coef",
    f"{LAYER}altup.modality_router": "blk.{n}.altup_router",
    f"{LAYER}altup.router_norm": "blk.{n}.altup_router_norm",
    f"{LAYER}laurel.linear_left": "blk.{n}.laurel_l",
    f"{LAYER}laurel.linear_right": "blk.{n}.laurel_r",
    f"{LAYER}laurel.post_laurel_norm": "blk.{n}.laurel_post_norm",
}


def gemma3n_common(m: gguf.Keys, kind: str) -> dict[str, Any]:
    heads, width = m.even("attention.head_count"), m.size("attention.key_length")
    c = body_config(m, kind, heads * width)
    expect(m, "blk.0.attn_output.weight", (c["hidden_size"], heads * width))
    return c | {"head_dim": width, "num_key_value_heads": m.even("attention.head_count_kv", heads)}


def gemma3n_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Which share of the gates is cut off the file tells by how many deviations that is."""
    cut = m.numbers("activation_sparsity_scale")
    thetas = {FULL: ("rope.freq_base", 1e6), SLIDING: ("rope.freq_base_swa", 1e4)}
    return {
        "intermediate_size": mlp_widths(m, c),
        "altup_num_inputs": m.size("altup.num_inputs"),
        "altup_active_idx": m.get("altup.active_idx"),
        "laurel_rank": layouts.width(m, "laurel_l"),
        "activation_sparsity_pattern": None if cut is None else [share_below(x) for x in cut],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": m.above_one(*key)}
            for kind, key in thetas.items()
        },
    }


def share_below(deviations: float) -> float:
    """Of a normal distribution; none for an infinite distance below."""
    return (1 + math.erf(deviations / math.sqrt(2))) / 2


gguf.declare(
    "gemma3n", gguf.Naming("gemma3n_text", GEMMA3N_GGUF, gemma3n_config, common=gemma3n_common)
)
