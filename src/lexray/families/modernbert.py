"""ModernBERT: a pre-norm encoder, rotary, fused Wqkv and Wi, windows in two layers of three."""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, fused, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import Rotary, rotary
from lexray.families.spec import Architecture, Block, FeedForward, HeadTransform

DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_eps": 1e-5,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}


@family("modernbert", title="ModernBERT", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.tok_embeddings.weight", "model.", "")
    embed, eps = f"{body}embeddings.tok_embeddings.weight", c["norm_eps"]
    headed = "head.dense.weight" in t
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.", n) for n in range(c["num_hidden_layers"])),
        embed=embed,
        unembed=embed if c["tie_word_embeddings"] else "decoder.weight",
        unembed_bias=t.pick("decoder.bias"),
        tied=c["tie_word_embeddings"],
        embed_norm=t.norm("layer", f"{body}embeddings.norm", eps),
        final_norm=t.norm("layer", f"{body}final_norm", eps),
        head=HeadTransform(
            t.linear("head.dense"), c["classifier_activation"], t.norm("layer", "head.norm", eps)
        )
        if headed
        else None,
        causal=False,
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["norm_eps"]
    d_mlp, slides = s["d_mlp"], is_sliding(c, n)
    return Block(
        attention(
            fused(t, f"{stem}attn.Wqkv", f"{stem}attn.Wo", s),
            s,
            layer_rotary(c, s["d_head"], slides),
            pre_norm=t.norm("layer", f"{stem}attn_norm", eps) if n else None,
            window=c["local_attention"] // 2 + 1 if slides else None,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.Wi", start=d_mlp, size=d_mlp),
            w_gate=t.linear(f"{stem}mlp.Wi", start=0, size=d_mlp),
            w_out=t.linear(f"{stem}mlp.Wo"),
            activation=c["hidden_activation"],
            d_mlp=d_mlp,
            pre_norm=t.norm("layer", f"{stem}mlp_norm", eps),
        ),
    )


def is_sliding(c: Config, n: int) -> bool:
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    return bool(n % c["global_attn_every_n_layers"])


def layer_rotary(c: Config, d_head: int, slides: bool) -> Rotary:
    theta = c["local_rope_theta"] if slides else c["global_rope_theta"]
    kind = "sliding_attention" if slides else "full_attention"
    return rotary(c, d_head, layer_type=kind, theta=theta)


MODERNBERT_GGUF: gguf.Names = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "layers.{n}.attn_norm": "blk.{n}.attn_norm",
    "layers.{n}.attn.Wqkv": "blk.{n}.attn_qkv",
    "layers.{n}.attn.Wo": "blk.{n}.attn_output",
    "layers.{n}.mlp_norm": "blk.{n}.ffn_norm",
    "layers.{n}.mlp.Wi": "blk.{n}.ffn_up",
    "layers.{n}.mlp.Wo": "blk.{n}.ffn_down",
}


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The body alone; every how many layers one has no window, is three unless the file says it."""
    local = m.above_one("rope.freq_base_swa", 10_000.0)
    every = m.length("attention.sliding_window_pattern")
    thetas = {"full_attention": c["rope_theta"], "sliding_attention": local}
    return {
        "norm_eps": c["layer_norm_eps"] or c["rms_norm_eps"],
        "local_attention": m.size("attention.sliding_window"),
        "global_attn_every_n_layers": every,
        "hidden_activation": m.text("hidden_activation"),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
        "rope_scaling": None,
        "partial_rotary_factor": None,
        "architectures": ["ModernBertModel"],
    }


gguf.declare("modern-bert", gguf.Naming("modernbert", MODERNBERT_GGUF, gguf_config))
