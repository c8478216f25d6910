"""MPT: fused q | k | v, bias-free LayerNorms, ALiBi instead of positions."""

from __future__ import annotations

from lexray.checkpoint.fields import whole
from lexray.families.gguf import names as gguf
from lexray.families.parts import Sizes, attention, fused, plain, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "max_seq_len": 2048,
    "attn_config": {},
}


@family("mpt", title="MPT", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    d_model, n_heads = c.first("d_model", "hidden_size"), c.first("n_heads", "num_attention_heads")
    s: Sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "d_head": d_model // n_heads,
        "d_mlp": 4 * d_model,
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_seq_len"],
    }
    n_layers = c.first("n_layers", "num_hidden_layers")
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}blocks.{n}.") for n in range(n_layers)),
        final_norm=t.norm("layer", f"{body}norm_f", c["layer_norm_epsilon"]),
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    eps, how = c["layer_norm_epsilon"], c["attn_config"]
    return Block(
        attention(
            fused(t, f"{stem}attn.Wqkv", f"{stem}attn.out_proj", s),
            s,
            scale=how.get("softmax_scale"),
            pre_norm=t.norm("layer", f"{stem}norm_1", eps),
            alibi=1.0,
            alibi_most=how.get("alibi_bias_max") or 8,
            clip=how.get("clip_qkv"),
        ),
        plain(
            t,
            f"{stem}ffn.",
            s["d_mlp"],
            "gelu",
            pre_norm=t.norm("layer", f"{stem}norm_2", eps),
        ),
    )


B = "transformer.blocks.{n}."
gguf.declare(
    "mpt",
    gguf.Naming(
        "mpt",
        {
            "transformer.wte": "token_embd",
            "transformer.norm_f": "output_norm",
            "lm_head": "output",
            f"{B}norm_1": "blk.{n}.attn_norm",
            f"{B}attn.Wqkv": "blk.{n}.attn_qkv",
            f"{B}attn.out_proj": "blk.{n}.attn_output",
            f"{B}norm_2": "blk.{n}.ffn_norm",
            f"{B}ffn.up_proj": "blk.{n}.ffn_up",
            f"{B}ffn.down_proj": "blk.{n}.ffn_down",
        },
        lambda m, c: {
            "d_model": c["hidden_size"],
            "n_heads": c["num_attention_heads"],
            "n_layers": c["num_hidden_layers"],
            "max_seq_len": c["max_position_embeddings"],
            "attn_config": {
                "alibi_bias_max": whole(slope := m.get("attention.max_alibi_bias")) or slope,
                "clip_qkv": m.get("attention.clamp_kqv"),
            },
        },
    ),
)
