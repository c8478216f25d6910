"""Falcon, in three layouts of its fused query_key_value:

- new architecture (40B, 180B, Falcon 2): groups of g queries, one key, one value;
- multi-query (7B): all queries, then the one key and the one value;
- RW: (head, 3, d_head), sequential, ALiBi.
"""

from __future__ import annotations

from lexray.families.gguf import names as gguf
from lexray.families.linear import Heads, interleaved
from lexray.families.parts import Projections, Sizes, attention, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "alibi": False,
    "max_position_embeddings": 2048,
}


@family("falcon", title="Falcon", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("word_embeddings.weight", "transformer.", "")
    d_model, n_heads = c.first("hidden_size", "n_embed"), c["num_attention_heads"]
    new, multi_query = c.get("new_decoder_architecture"), c.get("multi_query")
    s: Sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": 1 if multi_query and not new else c.get("num_kv_heads") or n_heads,
        "d_head": d_model // n_heads,
        "d_mlp": c.get("ffn_hidden_size") or 4 * d_model,
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}h.{n}.") for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("layer", f"{body}ln_f", c["layer_norm_epsilon"]),
        **unembedding(c, t, f"{body}word_embeddings.weight", "lm_head.weight"),
    )


def heads(c: Config, t: Names, s: Sizes, stem: str) -> Projections:
    qkv, o = t.linear(f"{stem}query_key_value"), t.linear(f"{stem}dense")
    n, n_kv, r = s["n_heads"], s["n_kv_heads"], s["d_head"]
    if not c.get("new_decoder_architecture") and not c.get("multi_query"):
        q, k, v = (interleaved(qkv, n, r, part) for part in range(3))
        return {"q": q, "k": k, "v": v, "o": o}
    group = n // n_kv
    first = [(g * (group + 2)) * r for g in range(n_kv)]
    return {
        "q": Heads(qkv, tuple(first[h // group] + h % group * r for h in range(n)), r),
        "k": Heads(qkv, tuple(start + group * r for start in first), r),
        "v": Heads(qkv, tuple(start + (group + 1) * r for start in first), r),
        "o": o,
    }


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    eps, parallel = c["layer_norm_epsilon"], c.get("parallel_attn")
    two = c.get("num_ln_in_parallel_attn") or (2 if c.get("new_decoder_architecture") else 1)
    before_attention, before_mlp = (
        ("input_layernorm", "post_attention_layernorm")
        if not parallel
        else ("ln_attn", "ln_mlp")
        if two == 2
        else ("input_layernorm", "input_layernorm")
    )
    alibi = c.get("alibi")
    return Block(
        attention(
            heads(c, t, s, f"{stem}self_attention."),
            s,
            None if alibi else rotary(c, s["d_head"]),
            pre_norm=t.norm("layer", stem + before_attention, eps),
            alibi=s["d_head"] ** -0.5 if alibi else 0.0,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.dense_h_to_4h"),
            w_out=t.linear(f"{stem}mlp.dense_4h_to_h"),
            activation=c["activation"],
            d_mlp=s["d_mlp"],
            pre_norm=t.norm("layer", stem + before_mlp, eps),
        ),
        parallel=bool(parallel or c.get("new_decoder_architecture")),
    )


H = "transformer.h.{n}."
FALCON_GGUF: gguf.Names = {
    "transformer.word_embeddings": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    f"{H}self_attention.query_key_value": gguf.GGUFSource("blk.{n}.attn_qkv", rows=gguf.regroup),
    f"{H}self_attention.dense": "blk.{n}.attn_output",
    f"{H}mlp.dense_h_to_4h": "blk.{n}.ffn_up",
    f"{H}mlp.dense_4h_to_h": "blk.{n}.ffn_down",
}


def falcon_gguf(m: gguf.Keys) -> gguf.Naming:
    """Where there are two norms, they are called attn_norm_2 (attention) and attn_norm (MLP)."""
    two = "blk.0.attn_norm_2.weight" in m.file.names()
    norms = (
        {f"{H}ln_attn": "blk.{n}.attn_norm_2", f"{H}ln_mlp": "blk.{n}.attn_norm"}
        if two
        else {f"{H}input_layernorm": "blk.{n}.attn_norm"}
    )
    return gguf.Naming(
        "falcon",
        {**FALCON_GGUF, **norms},
        lambda m, c: {
            "new_decoder_architecture": two or c["num_key_value_heads"] > 1,
            "num_ln_in_parallel_attn": 2 if two else 1,
            "num_kv_heads": c["num_key_value_heads"],
            "ffn_hidden_size": c["intermediate_size"],
        },
    )


gguf.declare("falcon", falcon_gguf)
