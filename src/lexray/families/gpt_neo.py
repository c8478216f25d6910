"""GPT-Neo: as GPT-2 but with plain Linear weights, unscaled attention and alternating windows."""

from __future__ import annotations

from lexray.families.parts import Sizes, attention, projections, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "window_size": 256,
    "max_position_embeddings": 2048,
}
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


@family("gpt_neo", title="GPT-Neo", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    d_model, n_heads = c["hidden_size"], c.first("num_heads", "num_attention_heads")
    s: Sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_heads,
        "d_head": d_model // n_heads,
        "d_mlp": c.get("intermediate_size") or 4 * d_model,
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    kinds = layer_kinds(c)
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}h.{n}.", kind) for n, kind in enumerate(kinds)),
        final_norm=t.norm("layer", f"{body}ln_f", c["layer_norm_epsilon"]),
        positions=f"{body}wpe.weight",
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


def layer_kinds(c: Config) -> list[str]:
    """ "global" or "local" for each layer: [[["global", "local"], 12]] means 12 times the two."""
    n = c.first("num_layers", "num_hidden_layers")
    listed = c.get("attention_layers") or [
        kind for kinds, times in c.get("attention_types") or [] for kind in kinds * min(times, n)
    ]
    return list(listed) or [("global", "local")[i % 2] for i in range(n)]


def block(c: Config, t: Names, s: Sizes, stem: str, kind: str) -> Block:
    eps = c["layer_norm_epsilon"]
    return Block(
        attention(
            projections(t, f"{stem}attn.attention.", s, NAMES),
            s,
            scale=1.0,
            pre_norm=t.norm("layer", f"{stem}ln_1", eps),
            window=c["window_size"] if kind == "local" else None,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.c_fc"),
            w_out=t.linear(f"{stem}mlp.c_proj"),
            activation=c["activation_function"],
            d_mlp=s["d_mlp"],
            pre_norm=t.norm("layer", f"{stem}ln_2", eps),
        ),
    )
