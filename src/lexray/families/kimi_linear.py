"""Kimi Linear: DeepSeek's latent attention without positions in one layer of four, linear attention
in the others, whose states forget by dimension; experts as DeepSeek's, under Mixtral's names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families import deepseek
from lexray.families.experts import W1_W3_W2, deepseek_feed_forward
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.mixers import DELTA, attends, mixer, no_attention
from lexray.families.parts import decoder, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, Mixer

OTHER_WORDS = {
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "max_position_embeddings": "model_max_length",
}
"""What its config calls entries that DeepSeek's has too."""
BETWEEN = (
    *DELTA,
    *("g_b_proj.weight", "f_b_proj.weight"),
    *(f"forget_gate.{name}" for name in ("f_b_proj.weight", "dt_bias", "A_log")),
)
DEFAULTS = deepseek.DEFAULTS | {
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.446,
    "num_key_value_heads": 32,
    "first_k_dense_replace": 1,
}
HEADS, WIDTH = 32, 128
"""Of linear attention, unless the config says otherwise."""


@family("kimi_linear", title="Kimi Linear", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    given = {ours: c.get(theirs) for ours, theirs in OTHER_WORDS.items() if theirs in c}
    c = c.with_entries(**{key: value for key, value in given.items() if value is not None})
    whole = decoder(c, t, block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))
    width = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    return replace(whole, d_head=width, n_kv_heads=whole.n_heads)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    first, second = (norm(f"{stem}{name}_layernorm") for name in ("input", "post_attention"))
    held = (f"{stem}block_sparse_moe.{name}.weight" for name in ("gate", "up_proj"))
    inside = "block_sparse_moe." if t.pick(*held) else "mlp."
    sparse = f"{stem}{inside}gate.weight" in t
    own = c.with_entries(first_k_dense_replace=0 if sparse else n + 1)
    ff = deepseek_feed_forward(own, t, stem, n, second, inside=inside, names=W1_W3_W2)
    if attends(t, stem, "self_attn.kv_b_proj"):
        heads = replace(deepseek.attend(c, t, stem, n), rotary=None, pre_norm=first)
        return Block(heads, ff)
    return Block(no_attention(sizes(c)), ff, mixer=linear(c, t, f"{stem}self_attn.", first))


def linear(c: Config, t: Names, stem: str, norm: Norm) -> Mixer:
    """Queries, keys, values, what is written at all, and the narrow beginnings of what is forgotten
    and of the gate on what is read."""
    said = Config(c.get("linear_attn_config") or {})  # whose entries are looked at as all are
    width = said.get("head_dim") or c.get("linear_head_dim") or WIDTH
    count = said.get("num_heads") or c.get("linear_num_heads") or HEADS
    forget = "f_a_proj" if f"{stem}f_a_proj.weight" in t else "forget_gate.f_a_proj"
    inputs = dict.fromkeys(("q_proj", "k_proj", "v_proj"), width * count)
    inputs |= {"b_proj": count, "g_a_proj": width, forget: width}
    return mixer(
        t, stem, inputs, width * count, "linear attention", BETWEEN, out="o_proj", pre_norm=norm
    )


ATTENTION, MOE = f"{gguf.LAYER}self_attn.", f"{gguf.LAYER}block_sparse_moe."
LINEAR_GGUF: gguf.Names = {
    f"{ATTENTION}{ours}": f"blk.{{n}}.ssm_{theirs}"
    for ours, theirs in (
        ("b_proj", "beta"),
        ("f_a_proj", "f_a"),
        ("f_b_proj", "f_b"),
        ("g_a_proj", "g_a"),
        ("g_b_proj", "g_b"),
        ("o_norm", "norm"),
    )
}


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    """Kernels and decays have axes of length one, which other programs than the converter cut."""
    kernel = (-1, 1, m.size("ssm.conv_kernel"))
    decay = gguf.GGUFSource(
        "blk.{n}.ssm_a", exact=True, shaped=(1, 1, -1, 1), undo=layouts.undo_decay
    )
    inside = {ours: x for ours, x in deepseek.names_gguf(m).items() if ".mlp." not in ours}
    names: gguf.Names = {
        **inside,
        **LINEAR_GGUF,
        **{
            f"{ATTENTION}{x}_conv1d": gguf.GGUFSource(f"blk.{{n}}.ssm_conv1d_{x}", shaped=kernel)
            for x in "qkv"
        },
        f"{ATTENTION}A_log": decay,
        f"{ATTENTION}dt_bias": gguf.GGUFSource("blk.{n}.ssm_dt.bias", exact=True),
        **{ours.replace(".mlp.", ".block_sparse_moe."): x for ours, x in gguf.MLP.items()},
        **layouts.name_experts(m, MOE, names=("w1", "w3", "w2")),
        **layouts.name_shared(f"{MOE}shared_experts"),
        **layouts.name_correction(f"{MOE}gate.e_score_correction_bias"),
    }
    return gguf.Naming("kimi_linear", names, gguf_config, deepseek.direct(m))


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp takes it for granted that the weights of experts are made to add up to 1."""
    full, sparse = (
        set(layouts.layers_with(m, c, stem)) for stem in ("attn_kv_a_mqa", "ffn_gate_inp")
    )
    layers, width = range(c["num_hidden_layers"]), m.size("kda.head_dim")
    own = deepseek.latent_config(m, c) | layouts.deepseek_experts(m, c) | {"norm_topk_prob": True}
    return {
        **own,
        **{theirs: (c | own).get(ours) for ours, theirs in OTHER_WORDS.items()},
        "model_max_length": m.size("context_length"),
        "layer_types": [f"{'full' if n in full else 'linear'}_attention" for n in layers],
        "mlp_layer_types": ["sparse" if n in sparse else "dense" for n in layers],
        "linear_head_dim": width,
        "linear_num_heads": layouts.width(m, "ssm_beta"),
        "linear_conv_kernel_dim": m.size("ssm.conv_kernel"),
        "rope_scaling": None,
    }


gguf.declare("kimi-linear", gguf_names)
