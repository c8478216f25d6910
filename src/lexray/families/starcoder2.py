"""Starcoder 2: Llama's attention with biases, LayerNorms, and GPT-2's feed-forward."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import llama
from lexray.families.gguf import names as gguf
from lexray.families.parts import decoder, plain
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_epsilon": 1e-5,
    "rms_norm_eps": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
}


@family("starcoder2", title="Starcoder 2", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("layer", stem, c["norm_epsilon"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    before, after = (
        t.norm("layer", f"{stem}{name}_layernorm", c["norm_epsilon"])
        for name in ("input", "post_attention")
    )
    names = ("c_fc", "c_proj")
    act, d_mlp = c["hidden_act"], c["intermediate_size"]
    return replace(
        llama.block(c, t, stem, n, pre_norm=before),
        ff=plain(t, f"{stem}mlp.", d_mlp, act, names, pre_norm=after),
    )


gguf.declare(
    "starcoder2",
    gguf.Naming(
        "starcoder2",
        {
            **gguf.EMBEDDINGS,
            **gguf.ATTENTION,
            **gguf.NORMS,
            f"{gguf.LAYER}mlp.c_fc": "blk.{n}.ffn_up",
            f"{gguf.LAYER}mlp.c_proj": "blk.{n}.ffn_down",
        },
        lambda m, c: {
            "norm_epsilon": c["layer_norm_eps"],
            "sliding_window": m.length("attention.sliding_window"),
        },
    ),
)
