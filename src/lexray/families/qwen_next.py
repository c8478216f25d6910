"""Qwen3-Next and Qwen 3.5: three layers of gated linear attention (DeltaNet) to one of attention.

Heads have a gate: half of what the query's map gives multiplies, as a sigmoid, what a head writes.
Norms are stored as w and used as 1 + w; a quarter of each head is rotary.
"""

from __future__ import annotations

from typing import Any, Literal

from lexray.errors import LexrayError
from lexray.families import qwen
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import expect, find_tensor
from lexray.families.gguf.pieces import Order
from lexray.families.linear import Heads, Norm
from lexray.families.mixers import DELTA, attends, mixer, no_attention
from lexray.families.parts import attention, decoder, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Attention, Block, Mixer

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MOE = DEFAULTS | {"norm_topk_prob": True}


@family("qwen3_next", title="Qwen3-Next", defaults=MOE | {"num_experts_per_tok": 10})
@family("qwen3_5_text", "qwen3_5", title="Qwen 3.5", defaults=DEFAULTS)
@family(
    "qwen3_5_moe_text",
    "qwen3_5_moe",
    title="Qwen 3.5 (MoE)",
    defaults=MOE | {"num_experts_per_tok": 8},
)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: norm(c, t, stem))


def norm(c: Config, t: Names, stem: str) -> Norm:
    return t.norm("rms", stem, c["rms_norm_eps"], plus_one=True)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    before = norm(c, t, f"{stem}input_layernorm")
    ff = qwen.feed_forward(c, t, stem, n, norm(c, t, f"{stem}post_attention_layernorm"))
    if attends(t, stem):
        return Block(gated_heads(c, t, f"{stem}self_attn.", before), ff)
    return Block(no_attention(sizes(c)), ff, mixer=delta_net(c, t, f"{stem}linear_attn.", before))


def gated_heads(c: Config, t: Names, stem: str, before: Norm) -> Attention:
    """Each head's query and, beside it, its gate."""
    s = sizes(c)
    p, width = projections(t, stem, s), s["d_head"]
    query, gate = (
        Heads(p["q"].linear, tuple((2 * h + i) * width for h in range(s["n_heads"])), width)
        for i in (0, 1)
    )
    p["q"] = query
    normed = qk_norms(t, s, stem, c["rms_norm_eps"], plus_one=True)
    return attention(p, s, rotary(c, width, partial=0.25), pre_norm=before, gate=gate, **normed)


def delta_net(c: Config, t: Names, stem: str, before: Norm) -> Mixer:
    """Queries, keys, values and gates (z) in one map or two, decays and rates (b, a) likewise."""
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    n_values = c["linear_num_value_heads"]
    values = n_values * c["linear_value_head_dim"]
    if f"{stem}in_proj_qkvz.weight" in t:
        inputs = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * n_values}
    else:
        inputs = {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": n_values,
            "in_proj_a": n_values,
        }
    return mixer(t, stem, inputs, values, "linear attention", DELTA, pre_norm=before)


LINEAR = f"{gguf.LAYER}linear_attn."


def plus_one(ours: str, theirs: str) -> gguf.Names:
    return {ours: gguf.GGUFSource(theirs, added=1.0)}


COMMON: gguf.Names = {
    **gguf.LLAMA,
    **plus_one("model.norm", "output_norm"),
    **plus_one(f"{gguf.LAYER}input_layernorm", "blk.{n}.attn_norm"),
    **plus_one(f"{gguf.LAYER}post_attention_layernorm", "blk.{n}.post_attention_norm"),
    **plus_one(f"{gguf.LAYER}self_attn.q_norm", "blk.{n}.attn_q_norm"),
    **plus_one(f"{gguf.LAYER}self_attn.k_norm", "blk.{n}.attn_k_norm"),
    f"{LINEAR}norm": "blk.{n}.ssm_norm",
}


def grouped(c: dict[str, Any]) -> list[int]:
    """All queries, keys, values and gates, where Hugging Face has each key head's side by side."""
    n, keys, values = (
        c[f"linear_{x}"] for x in ("num_key_heads", "key_head_dim", "value_head_dim")
    )
    wide = c["linear_num_value_heads"] // n * values
    starts = (0, n * keys, 2 * n * keys, 2 * n * keys + n * wide)
    widths = (keys, keys, wide, wide)
    return [
        start + head * size + i
        for head in range(n)
        for start, size in zip(starts, widths, strict=True)
        for i in range(size)
    ]


def next_gguf(m: gguf.Keys) -> gguf.Naming:
    """The first files had all inputs of linear attention in one, as Hugging Face has them."""
    parts = gguf.GGUFSource("blk.{n}.attn_qkv"), gguf.GGUFSource("blk.{n}.attn_gate")
    whole = layouts.width(m, "ssm_in") is not None
    names: gguf.Names = {
        **COMMON,
        f"{LINEAR}in_proj_qkvz": "blk.{n}.ssm_in"
        if whole
        else gguf.GGUFJoined(parts, rows=grouped),
        f"{LINEAR}in_proj_ba": "blk.{n}.ssm_ba",
        f"{LINEAR}out_proj": "blk.{n}.ssm_out",
        **layouts.name_convolution(f"{LINEAR}conv1d"),
        f"{LINEAR}A_log": gguf.GGUFSource("blk.{n}.ssm_a", exact=True, undo=layouts.undo_decay),
        f"{LINEAR}dt_bias": gguf.GGUFSource("blk.{n}.ssm_dt.bias", exact=True),
        **layouts.name_experts(m),
        **qwen.SHARED,
    }
    return gguf.Naming("qwen3_next", names, gguf_config)


def tiled(each: Literal["one", "value"], before: bool = False) -> Order:
    """Value heads come key head by key head in Hugging Face, first of each, second of each … in
    llama.cpp; `before` them stand all queries and keys."""

    def rows(c: dict[str, Any]) -> list[int]:
        n, size = c["linear_num_key_heads"], 1 if each == "one" else c["linear_value_head_dim"]
        first = 2 * n * c["linear_key_head_dim"] if before else 0
        heads = range(c["linear_num_value_heads"])
        group = len(heads) // n
        return [
            *range(first),
            *(first + (h % group * n + h // group) * size + i for h in heads for i in range(size)),
        ]

    return rows


KEYS_TOO, VALUES, ONES = tiled("value", before=True), tiled("value"), tiled("one")


def qwen35_gguf(m: gguf.Keys) -> gguf.Naming:
    source = gguf.GGUFSource
    names: gguf.Names = {
        **COMMON,
        f"{LINEAR}in_proj_qkv": source("blk.{n}.attn_qkv", rows=KEYS_TOO),
        f"{LINEAR}in_proj_z": source("blk.{n}.attn_gate", rows=VALUES),
        f"{LINEAR}in_proj_b": source("blk.{n}.ssm_beta", rows=ONES),
        f"{LINEAR}in_proj_a": source("blk.{n}.ssm_alpha", rows=ONES),
        f"{LINEAR}out_proj": source("blk.{n}.ssm_out", columns=VALUES),
        f"{LINEAR}conv1d.weight": source(
            "blk.{n}.ssm_conv1d.weight", exact=True, unit=1, rows=KEYS_TOO
        ),
        f"{LINEAR}A_log": source("blk.{n}.ssm_a", exact=True, rows=ONES, undo=layouts.undo_decay),
        f"{LINEAR}dt_bias": source("blk.{n}.ssm_dt.bias", exact=True, rows=ONES),
    }
    if m.file.architecture == "qwen35":
        return gguf.Naming("qwen3_5_text", names, gguf_config)
    experts = {**layouts.name_experts(m), **qwen.SHARED}
    return gguf.Naming("qwen3_5_moe_text", {**names, **experts}, gguf_config)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The sizes of linear attention, checked before rows are counted by them."""
    keys, values = m.size("ssm.group_count"), m.size("ssm.time_step_rank")
    inner, state = m.size("ssm.inner_size"), m.size("ssm.state_size")
    out = find_tensor(m, "ssm_out") or "blk.0.ssm_out.weight"
    kernel = find_tensor(m, "ssm_conv1d") or "blk.0.ssm_conv1d.weight"
    expect(m, out, (c["hidden_size"], inner))
    expect(m, kernel, (2 * keys * state + inner, m.size("ssm.conv_kernel")))
    if values % keys or inner % values:
        raise LexrayError(f"{m.file.name}: the sizes in its metadata do not fit together")
    return qwen.moe_config(m, c) | {
        "layer_types": layouts.layer_kinds(m, c, "linear_attention"),
        "linear_conv_kernel_dim": m.size("ssm.conv_kernel"),
        "linear_key_head_dim": state,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_value_head_dim": inner // values,
    }


gguf.declare("qwen3next", next_gguf)
gguf.declare("qwen35", qwen35_gguf)
gguf.declare("qwen35moe", qwen35_gguf)
