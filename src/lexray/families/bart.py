"""BART, PLBart, mBART, Marian, Pegasus, M2M-100 (NLLB) and Blenderbot: encoder and decoder with
learned or fixed positions.

BART, PLBart and Marian norm sums; the others norm what sub-blocks read, and the end of each stack.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lexray.families.parts import Sizes, attention, projections
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Attention, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "scale_embedding": False,
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
}
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
EPS = 1e-5


M2M = DEFAULTS | {"scale_embedding": True, "activation_function": "relu"}


@family("blenderbot", title="Blenderbot", defaults=DEFAULTS | {"max_position_embeddings": 128})
@family("m2m_100", title="M2M-100, NLLB", defaults=M2M)
@family("plbart", title="PLBart", defaults=DEFAULTS | {"scale_embedding": True})
@family("pegasus", title="Pegasus", defaults=DEFAULTS | {"activation_function": "relu"})
@family("marian", title="Marian", defaults=DEFAULTS)
@family("mbart", title="mBART", defaults=DEFAULTS)
@family("bart", title="BART", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("shared.weight", "model.", "")
    embed = t.pick(f"{body}shared.weight", f"{body}encoder.embed_tokens.weight")
    embed = embed or f"{body}shared.weight"
    tied = c["tie_word_embeddings"]
    ends: dict[str, Any] = {
        "embed": embed,
        "unembed": embed if tied else "lm_head.weight",
        "tied": tied,
        "embed_scale": c["d_model"] ** 0.5 if c["scale_embedding"] else 1.0,
    }
    encoder = stack(c, t, f"{body}encoder.", None, **ends)
    return stack(
        c,
        t,
        f"{body}decoder.",
        encoder,
        **ends,
        encoder=encoder,
        unembed_bias=t.pick("final_logits_bias"),
    )


def stack(c: Config, t: Names, stem: str, source: Architecture | None, **ends: Any) -> Architecture:
    """The encoder, or the decoder of what `source` encodes."""
    side = "encoder" if source is None else "decoder"
    heads = c[f"{side}_attention_heads"]
    s: Sizes = {
        "d_model": c["d_model"],
        "n_heads": heads,
        "n_kv_heads": heads,
        "d_head": c["d_model"] // heads,
        "d_mlp": c[f"{side}_ffn_dim"],
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    norm = partial(t.norm, "layer", eps=EPS)
    pre = f"{stem}layer_norm.weight" in t
    layer = partial(block, c, t, s, pre, source)
    normed = f"{stem}layernorm_embedding.weight" in t
    learned = normed or c.get("model_type") == "blenderbot"
    return Architecture(
        **s,
        blocks=tuple(layer(f"{stem}layers.{n}.") for n in range(c[f"{side}_layers"])),
        final_norm=norm(f"{stem}layer_norm") if pre else None,
        embed_norm=norm(f"{stem}layernorm_embedding") if normed else None,
        embedder=f"{stem}embed_tokens" if normed else "",
        positions=f"{stem}embed_positions.weight" if learned else None,
        position_offset=2 if normed else 0,
        sinusoids=None if learned else f"{stem}embed_positions",
        causal=source is not None,
        **ends,
    )


def block(
    c: Config, t: Names, s: Sizes, pre: bool, source: Architecture | None, stem: str
) -> Block:
    def norms(name: str) -> dict[str, Any]:
        return {"pre_norm" if pre else "sum_norm": t.norm("layer", f"{stem}{name}", EPS)}

    def attend(name: str, **more: Any) -> Attention:
        heads = projections(t, f"{stem}{name}.", s, NAMES)
        return attention(heads, s, **norms(f"{name}_layer_norm"), **more)

    cross = None
    if source is not None:
        cross = attend("encoder_attn", crosses=True, source_norm=source.final_norm)
    return Block(
        attend("self_attn"),
        FeedForward(
            w_in=t.linear(f"{stem}fc1"),
            w_out=t.linear(f"{stem}fc2"),
            activation=c["activation_function"],
            d_mlp=s["d_mlp"],
            **norms("final_layer_norm"),
        ),
        cross=cross,
    )
