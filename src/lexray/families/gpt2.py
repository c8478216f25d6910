"""GPT-2: Conv1D weights (in, out), one fused matrix with the columns q | k | v, biases."""

from __future__ import annotations

from dataclasses import replace

from lexray.families.gguf import names as gguf
from lexray.families.parts import Sizes, attention, fused, gpt_sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "n_positions": 1024,
}


@family("gpt2", "gpt-sw3", title="GPT-2", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    s = gpt_sizes(c)
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, body, n) for n in range(c["n_layer"])),
        final_norm=t.norm("layer", f"{body}ln_f", c["layer_norm_epsilon"]),
        positions=f"{body}wpe.weight",
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


@family("openai-gpt", title="GPT", defaults=DEFAULTS | {"afn": "gelu", "n_positions": 512})
def describe_first(c: Config, t: Names) -> Architecture:
    """The first GPT norms sums, and nothing behind the last."""
    body, s = t.prefix("tokens_embed.weight", "transformer.", ""), gpt_sizes(c)
    c = c.with_entries(activation_function={"gelu": "gelu_new"}.get(c["afn"], c["afn"]))
    blocks = (block(c, t, s, body, n) for n in range(c["n_layer"]))
    return Architecture(
        **s,
        blocks=tuple(norm_sums(x) for x in blocks),
        positions=f"{body}positions_embed.weight",
        **unembedding(c, t, f"{body}tokens_embed.weight", "lm_head.weight"),
    )


def norm_sums(block: Block) -> Block:
    """The same block with each norm behind its sum, not before what its sub-block reads."""
    heads, ff = block.attention, block.ff
    return replace(
        block,
        attention=replace(heads, pre_norm=None, sum_norm=heads.pre_norm),
        ff=replace(ff, pre_norm=None, sum_norm=ff.pre_norm),
    )


def block(c: Config, t: Names, s: Sizes, body: str, n: int) -> Block:
    stem, eps = f"{body}h.{n}.", c["layer_norm_epsilon"]
    scale = s["d_head"] ** -0.5 if c.get("scale_attn_weights", True) else 1.0
    if c.get("scale_attn_by_inverse_layer_idx"):
        scale /= n + 1
    return Block(
        attention(
            fused(t, f"{stem}attn.c_attn", f"{stem}attn.c_proj", s, in_first=True),
            s,
            scale=scale,
            pre_norm=t.norm("layer", f"{stem}ln_1", eps),
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.c_fc", in_first=True),
            w_out=t.linear(f"{stem}mlp.c_proj", in_first=True),
            activation=c["activation_function"],
            d_mlp=s["d_mlp"],
            pre_norm=t.norm("layer", f"{stem}ln_2", eps),
        ),
    )


H = "transformer.h.{n}."
gguf.declare(
    "gpt2",
    gguf.Naming(
        "gpt2",
        {
            "transformer.wte": "token_embd",
            "transformer.wpe": "position_embd",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
            f"{H}ln_1": "blk.{n}.attn_norm",
            f"{H}attn.c_attn": gguf.GGUFSource("blk.{n}.attn_qkv", transposed=True),
            f"{H}attn.c_proj": gguf.GGUFSource("blk.{n}.attn_output", transposed=True),
            f"{H}ln_2": "blk.{n}.ffn_norm",
            f"{H}mlp.c_fc": gguf.GGUFSource("blk.{n}.ffn_up", transposed=True),
            f"{H}mlp.c_proj": gguf.GGUFSource("blk.{n}.ffn_down", transposed=True),
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
