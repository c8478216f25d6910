"""XGLM: OPT's names, embeddings scaled by √d, positions that are calculated and not learned."""

from __future__ import annotations

from lexray.families.parts import Sizes, attention, plain, projections, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": True,
    "activation_function": "gelu",
    "max_position_embeddings": 2048,
    "scale_embedding": True,
}
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
EPS = 1e-5


@family("xglm", title="XGLM", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.", "")
    d_model, n = (
        c.first("d_model", "hidden_size"),
        c.first("attention_heads", "num_attention_heads"),
    )
    s: Sizes = {
        "d_model": d_model,
        "n_heads": n,
        "n_kv_heads": n,
        "d_head": d_model // n,
        "d_mlp": c["ffn_dim"],
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    n_layers = c.first("num_layers", "num_hidden_layers")
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}layers.{n}.") for n in range(n_layers)),
        final_norm=t.norm("layer", f"{body}layer_norm", EPS),
        embed_scale=d_model**0.5 if c["scale_embedding"] else 1.0,
        sinusoids=f"{body}embed_positions",
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s, NAMES),
            s,
            pre_norm=t.norm("layer", f"{stem}self_attn_layer_norm", EPS),
        ),
        plain(
            t,
            stem,
            s["d_mlp"],
            c["activation_function"],
            ("fc1", "fc2"),
            pre_norm=t.norm("layer", f"{stem}final_layer_norm", EPS),
        ),
    )
