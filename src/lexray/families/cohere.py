"""Cohere's Command R (1) and R7B (2): parallel block behind one bias-free LayerNorm, pair rotary.

Logits are scaled; Command R+ norms each head's queries and keys; Cohere 2 turns only the layers
that look through a window, and has mixtures of experts.
"""

from __future__ import annotations

from lexray.families.experts import mixture
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, QKNorm, Routing

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "logit_scale": 0.0625,
}
COHERE2 = DEFAULTS | {"sliding_window": 4096, "sliding_window_pattern": 4}
MOE = COHERE2 | {
    "num_experts_per_tok": 2,
    "num_shared_experts": 0,
    "norm_topk_prob": True,
    "expert_selection_fn": "softmax",
    "shared_expert_combination_strategy": "average",
    "prefix_dense_sliding_window_pattern": 1,
    "first_k_dense_replace": 0,
}


@family("cohere", title="Cohere", defaults=DEFAULTS | {"rope_theta": 500_000.0})
@family("cohere2", title="Cohere 2", defaults=COHERE2)
@family("cohere2_moe", title="Cohere 2 (MoE)", defaults=MOE)
def describe(c: Config, t: Names) -> Architecture:
    """Inside a multimodal model logits are not scaled: its head stands outside the language part,
    and does without."""
    body = t.prefix("embed_tokens.weight", "model.", "")
    scale = 1.0 if "language_model." in body else c["logit_scale"]
    return decoder(
        c,
        t,
        block,
        lambda stem: norm_of(c, t, stem),
        logit_scale=scale,
        settings=(("logit_scale", scale),),
    )


def norm_of(c: Config, t: Names, stem: str) -> Norm:
    """A LayerNorm, unless the config has a word on RMSNorms."""
    if (eps := c.get("rms_norm_eps")) is not None and c.get("model_type") == "cohere2_moe":
        return t.norm("rms", stem, eps)
    return t.norm("layer", stem, c["layer_norm_eps"])


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["layer_norm_eps"]
    norm = norm_of(c, t, f"{stem}input_layernorm")
    windowed = c.get("sliding_window") is not None
    slides = windowed and is_sliding(c, n)
    turns = slides or not windowed or (is_dense(c, n) and always_turns(c))
    qk = c.get("use_qk_norm")
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"], kind="pair") if turns else None,
            pre_norm=norm,
            q_norm=per_head(t, f"{stem}self_attn.q_norm", s["n_heads"], eps) if qk else None,
            k_norm=per_head(t, f"{stem}self_attn.k_norm", s["n_kv_heads"], eps) if qk else None,
            window=c.get("sliding_window") if slides else None,
        ),
        feed_forward(c, t, stem, n, norm),
        parallel=True,
    )


def is_sliding(c: Config, n: int) -> bool:
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    first = c.get("first_k_dense_replace") or 0
    if n < first:
        return bool((n + 1) % c["prefix_dense_sliding_window_pattern"])
    return bool((n - first + 1) % c["sliding_window_pattern"])


def is_dense(c: Config, n: int) -> bool:
    """Whether layer n of a mixture is one without experts; of other models none is meant."""
    if kinds := c.get("mlp_layer_types"):
        return bool(kinds[n] == "dense")
    return n < (c.get("first_k_dense_replace") or 0)


def always_turns(c: Config) -> bool:
    """Whether a mixture's dense layers are rotary also where they see everything."""
    return bool(c.get("prefix_dense_sliding_window_pattern") == 1)


def feed_forward(c: Config, t: Names, stem: str, n: int, norm: Norm) -> FeedForward | Experts:
    """Experts are averaged with the shared ones, or the two are added."""
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    if not c.get("num_experts") or is_dense(c, n):
        width = c.get("prefix_dense_intermediate_size") or d_mlp
        return gated(t, f"{stem}mlp.", width, act, pre_norm=norm)
    shared, stem = c["num_shared_experts"], f"{stem}mlp."
    sigmoid = c["expert_selection_fn"] == "sigmoid"
    average = bool(shared) and c["shared_expert_combination_strategy"] == "average"
    return mixture(
        t,
        stem,
        c["num_experts"],
        d_mlp,
        act,
        top_k=c["num_experts_per_tok"],
        normalise=c["norm_topk_prob"] or not sigmoid,
        routing=Routing("sigmoid" if sigmoid else "softmax"),
        shared=gated(t, f"{stem}shared_experts.", d_mlp * shared, act) if shared else None,
        share=0.5 if average else 1.0,
        pre_norm=norm,
    )


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
