"""Llama 1–3, and the many models with Llama's layout: SmolLM, Yi, Vicuna, TinyLlama, …

Also Mistral: Llama with a sliding window.
"""

from __future__ import annotations

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, gated, projections, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


@family("mistral", title="Mistral", defaults=DEFAULTS | {"sliding_window": 4096})
@family("llama", title="Llama", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix(
        "embed_tokens.weight", "model.", "", "language_model.model.", "model.language_model."
    )
    s = sizes(c)
    blocks = [block(c, t, f"{body}layers.{n}.") for n in range(c["num_hidden_layers"])]
    return Architecture(
        **s,
        blocks=tuple(blocks),
        final_norm=t.norm("rms", f"{body}norm", c["rms_norm_eps"]),
        **unembedding(
            c, t, f"{body}embed_tokens.weight", "lm_head.weight", "language_model.lm_head.weight"
        ),
    )


def block(c: Config, t: Names, stem: str) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"]),
            pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
            window=c.get("sliding_window"),
        ),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            pre_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
        ),
    )


def llama_gguf(m: gguf.Keys) -> gguf.Naming:
    """llama.cpp writes Llama, Mistral and Mixtral alike; only the last has experts."""
    names = {**gguf.LLAMA, **gguf.TURNED}
    if "blk.0.ffn_gate_inp.weight" not in m.file.names():
        return gguf.Naming("llama", names)
    names |= mixtral_names(old="blk.0.ffn_gate.0.weight" in m.file.names())
    return gguf.Naming("mixtral", names, lambda m, c: {"num_local_experts": c["num_experts"]})


def mixtral_names(old: bool) -> gguf.Names:
    """Until April 2024 each expert had tensors of its own; since then they are stacked."""
    moe = f"{gguf.LAYER}block_sparse_moe."

    def expert(kind: str) -> gguf.Stored:
        if old:
            return gguf.Stored(f"blk.{{n}}.ffn_{kind}.{{i}}")
        return gguf.Stored(f"blk.{{n}}.ffn_{kind}_exps", stacked=True)

    return {
        f"{moe}gate": "blk.{n}.ffn_gate_inp",
        f"{moe}experts.{{i}}.w1": expert("gate"),
        f"{moe}experts.{{i}}.w2": expert("down"),
        f"{moe}experts.{{i}}.w3": expert("up"),
    }


gguf.declare("llama", llama_gguf)
