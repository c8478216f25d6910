"""Cohere's Command R (1) and R7B (2): parallel block behind one bias-free LayerNorm, pair rotary.

Logits are scaled; Command R+ norms each head's queries and keys; Cohere 2 turns only the layers
that look through a window.
"""

from __future__ import annotations

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, gated, projections, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, QKNorm

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "logit_scale": 0.0625,
}
COHERE2 = DEFAULTS | {"sliding_window": 4096, "sliding_window_pattern": 4}


@family("cohere", title="Cohere", defaults=DEFAULTS | {"rope_theta": 500_000.0})
@family("cohere2", title="Cohere 2", defaults=COHERE2)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.", "")
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.", n) for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("layer", f"{body}norm", c["layer_norm_eps"]),
        logit_scale=c["logit_scale"],
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["layer_norm_eps"]
    norm = t.norm("layer", f"{stem}input_layernorm", eps)
    windowed = c.get("sliding_window") is not None
    slides = windowed and is_sliding(c, n)
    qk = c.get("use_qk_norm")
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"], kind="pair") if slides or not windowed else None,
            pre_norm=norm,
            q_norm=per_head(t, f"{stem}self_attn.q_norm", s["n_heads"], eps) if qk else None,
            k_norm=per_head(t, f"{stem}self_attn.k_norm", s["n_kv_heads"], eps) if qk else None,
            window=c.get("sliding_window") if slides else None,
        ),
        gated(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], pre_norm=norm),
        parallel=True,
    )


def is_sliding(c: Config, n: int) -> bool:
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    return bool((n + 1) % c["sliding_window_pattern"])


def per_head(t: Names, stem: str, n: int, eps: float) -> QKNorm:
    """One row of gains per head."""
    return QKNorm(heads=tuple(t.norm("layer", stem, eps, part=(h, h + 1)) for h in range(n)))


gguf.declare(
    "command-r",
    gguf.Naming(
        "cohere",
        {**gguf.LLAMA, **gguf.QK_NORMS},
        lambda m, c: {
            "logit_scale": m.need("logit_scale"),
            "use_qk_norm": "blk.0.attn_q_norm.weight" in m.file.names(),
        },
    ),
)
gguf.declare(
    "cohere2",
    gguf.Naming(
        "cohere2",
        gguf.LLAMA,
        lambda m, c: {
            "logit_scale": m.need("logit_scale"),
            "sliding_window": m.size("attention.sliding_window"),
        },
    ),
)
