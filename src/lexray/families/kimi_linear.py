"""Kimi Linear: DeepSeek's latent attention without positions in one layer of four, linear attention
in the others, whose states forget by dimension; experts as DeepSeek's, under Mixtral's names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lexray.families import deepseek
from lexray.families.experts import W1_W3_W2, deepseek_feed_forward
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
