"""BLOOM: fused (head, 3, d_head), ALiBi instead of positions, a LayerNorm after the embedding."""

from __future__ import annotations

from lexray.errors import LexrayError
from lexray.families.gguf import names as gguf
from lexray.families.linear import interleaved
from lexray.families.parts import Sizes, attention, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}


@family("bloom", title="BLOOM", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    if c.get("apply_residual_connection_post_layernorm"):
        raise LexrayError("BLOOM with apply_residual_connection_post_layernorm is not supported")
    body = t.prefix("word_embeddings.weight", "transformer.", "")
    d_model, n_heads = c.first("hidden_size", "n_embed"), c.first("n_head", "num_attention_heads")
    s: Sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "d_head": d_model // n_heads,
        "d_mlp": 4 * d_model,
        "d_vocab": c["vocab_size"],
        "n_ctx": c.get("seq_length"),
    }
    eps = c["layer_norm_epsilon"]
    n_layers = c.first("n_layer", "num_hidden_layers")
    return Architecture(
        **s,
        blocks=tuple(block(t, s, f"{body}h.{n}.", eps) for n in range(n_layers)),
        embed_norm=t.norm("layer", f"{body}word_embeddings_layernorm", eps),
        final_norm=t.norm("layer", f"{body}ln_f", eps),
        **unembedding(c, t, f"{body}word_embeddings.weight", "lm_head.weight"),
    )


def block(t: Names, s: Sizes, stem: str, eps: float) -> Block:
    qkv = t.linear(f"{stem}self_attention.query_key_value")
    q, k, v = (interleaved(qkv, s["n_heads"], s["d_head"], part) for part in range(3))
    return Block(
        attention(
            {"q": q, "k": k, "v": v, "o": t.linear(f"{stem}self_attention.dense")},
            s,
            pre_norm=t.norm("layer", f"{stem}input_layernorm", eps),
            alibi=1.0,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.dense_h_to_4h"),
            w_out=t.linear(f"{stem}mlp.dense_4h_to_h"),
            activation="gelu_new",
            d_mlp=s["d_mlp"],
            pre_norm=t.norm("layer", f"{stem}post_attention_layernorm", eps),
        ),
    )


H = "transformer.h.{n}."
gguf.declare(
    "bloom",
    gguf.Naming(
        "bloom",
        {
            "transformer.word_embeddings": "token_embd",
            "transformer.word_embeddings_layernorm": "token_embd_norm",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            f"{H}input_layernorm": "blk.{n}.attn_norm",
            f"{H}self_attention.query_key_value": gguf.GGUFSource(
                "blk.{n}.attn_qkv", rows=gguf.regroup
            ),
            f"{H}self_attention.dense": "blk.{n}.attn_output",
            f"{H}post_attention_layernorm": "blk.{n}.ffn_norm",
            f"{H}mlp.dense_h_to_4h": "blk.{n}.ffn_up",
            f"{H}mlp.dense_4h_to_h": "blk.{n}.ffn_down",
        },
        lambda m, c: {
            "n_layer": c["num_hidden_layers"],
            "n_head": c["num_attention_heads"],
            "seq_length": c["max_position_embeddings"],
        },
    ),
)
