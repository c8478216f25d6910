"""GPT-NeoX and Pythia: fused (head, 3, d_head), partial rotary, parallel block with two norms."""

from __future__ import annotations

from lexray.families.gguf import names as gguf
from lexray.families.linear import interleaved
from lexray.families.parts import Sizes, attention, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "use_parallel_residual": True,
}


@family("gpt_neox", title="GPT-NeoX", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_in.weight", "gpt_neox.", "")
    return Architecture(
        **plain_sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.") for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("layer", f"{body}final_layer_norm", c["layer_norm_eps"]),
        **unembedding(c, t, f"{body}embed_in.weight", "embed_out.weight", "lm_head.weight"),
    )


def plain_sizes(c: Config) -> Sizes:
    """Every head has keys and values of its own, whatever the config says."""
    s = sizes(c)
    s["n_kv_heads"] = s["n_heads"]
    return s


def block(c: Config, t: Names, stem: str) -> Block:
    s, eps = plain_sizes(c), c["layer_norm_eps"]
    qkv = t.linear(f"{stem}attention.query_key_value")
    q, k, v = (interleaved(qkv, s["n_heads"], s["d_head"], part) for part in range(3))
    partial = c.get("rotary_pct", 0.25)
    return Block(
        attention(
            {"q": q, "k": k, "v": v, "o": t.linear(f"{stem}attention.dense")},
            s,
            rotary(c, s["d_head"], theta=c.get("rotary_emb_base", 10_000), partial=partial),
            pre_norm=t.norm("layer", f"{stem}input_layernorm", eps),
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.dense_h_to_4h"),
            w_out=t.linear(f"{stem}mlp.dense_4h_to_h"),
            activation=c["hidden_act"],
            d_mlp=s["d_mlp"],
            pre_norm=t.norm("layer", f"{stem}post_attention_layernorm", eps),
        ),
        parallel=c["use_parallel_residual"] is True,
    )


N = "gpt_neox.layers.{n}."
gguf.declare(
    "gptneox",
    gguf.Naming(
        "gpt_neox",
        {
            "gpt_neox.embed_in": "token_embd",
            "gpt_neox.final_layer_norm": "output_norm",
            "embed_out": "output",
            f"{N}input_layernorm": "blk.{n}.attn_norm",
            f"{N}attention.query_key_value": gguf.GGUFSource("blk.{n}.attn_qkv", rows=gguf.regroup),
            f"{N}attention.dense": "blk.{n}.attn_output",
            f"{N}post_attention_layernorm": "blk.{n}.ffn_norm",
            f"{N}mlp.dense_h_to_4h": "blk.{n}.ffn_up",
            f"{N}mlp.dense_4h_to_h": "blk.{n}.ffn_down",
        },
        lambda m, c: {
            "use_parallel_residual": bool(m.get("use_parallel_residual", True)),
            "rotary_pct": gguf.share(m.size("rope.dimension_count"), c["head_dim"]),
        },
    ),
)
