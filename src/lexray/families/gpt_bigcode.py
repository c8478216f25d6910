"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 with Linear weights, one head of keys and values."""

from __future__ import annotations

from lexray.families.gguf import names as gguf
from lexray.families.linear import interleaved
from lexray.families.parts import (
    Projections,
    Sizes,
    attention,
    fused,
    gpt_sizes,
    plain,
    unembedding,
)
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_pytorch_tanh",
    "n_positions": 1024,
    "multi_query": True,
}


@family("gpt_bigcode", title="GPT-BigCode", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    s = gpt_sizes(c)
    if c["multi_query"]:
        s["n_kv_heads"] = 1
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}h.{n}.") for n in range(c["n_layer"])),
        final_norm=t.norm("layer", f"{body}ln_f", c["layer_norm_epsilon"]),
        positions=f"{body}wpe.weight",
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    eps = c["layer_norm_epsilon"]
    return Block(
        attention(
            heads(c, t, s, f"{stem}attn."),
            s,
            scale=s["d_head"] ** -0.5 if c.get("scale_attn_weights", True) else 1.0,
            pre_norm=t.norm("layer", f"{stem}ln_1", eps),
        ),
        plain(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["activation_function"],
            ("c_fc", "c_proj"),
            pre_norm=t.norm("layer", f"{stem}ln_2", eps),
        ),
    )


def heads(c: Config, t: Names, s: Sizes, stem: str) -> Projections:
    """All queries, the key, the value; or (head, 3, d_head) where each head has its own."""
    if c["multi_query"]:
        return fused(t, f"{stem}c_attn", f"{stem}c_proj", s)
    qkv = t.linear(f"{stem}c_attn")
    q, k, v = (interleaved(qkv, s["n_heads"], s["d_head"], part) for part in range(3))
    return {"q": q, "k": k, "v": v, "o": t.linear(f"{stem}c_proj")}


H = "transformer.h.{n}."
gguf.declare(
    "starcoder",
    gguf.Naming(
        "gpt_bigcode",
        {
            "transformer.wte": "token_embd",
            "transformer.wpe": "position_embd",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            f"{H}ln_1": "blk.{n}.attn_norm",
            f"{H}attn.c_attn": "blk.{n}.attn_qkv",
            f"{H}attn.c_proj": "blk.{n}.attn_output",
            f"{H}ln_2": "blk.{n}.ffn_norm",
            f"{H}mlp.c_fc": "blk.{n}.ffn_up",
            f"{H}mlp.c_proj": "blk.{n}.ffn_down",
        },
        lambda m, c: {
            "n_embd": c["hidden_size"],
            "n_layer": c["num_hidden_layers"],
            "n_head": c["num_attention_heads"],
            "n_inner": c["intermediate_size"],
            "n_positions": c["max_position_embeddings"],
        },
    ),
)
