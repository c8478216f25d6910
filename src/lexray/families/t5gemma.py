"""T5Gemma and T5Gemma 2: encoder and decoder of Gemma's blocks, Gemma 2's and Gemma 3's.

The encoder of the first may be wider than its decoder, and has an embedding of its own. In the
second one softmax weighs a decoder's own positions and the source's: `L3H2` and `L3X2` are the same
maps, reading the stream and reading what the encoder gives. Queries are turned by their positions
there too, and the source's keys are not: each is met as if it stood at position 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families.gemma import GEMMA2, GEMMA3, activation, is_sliding, layer_rotary
from lexray.families.parts import Sizes, attention, gated, projections, qk_norms, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Attention, Block

STACK = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
FIRST = GEMMA2 | STACK | {"vocab_size": 256_000}
SECOND = GEMMA3 | STACK | {"attn_logit_softcapping": None}
HEAD = "lm_head.out_proj.weight"


@family("t5gemma", title="T5Gemma", defaults={"tie_word_embeddings": True})
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("decoder.norm.weight", "model.", "")
    within, own = (stack_config(c, side, FIRST) for side in ("encoder", "decoder"))
    encoder = stack(within, t, f"{body}encoder.", None)
    tied = own.with_entries(tie_word_embeddings=c["tie_word_embeddings"])
    return stack(tied, t, f"{body}decoder.", encoder)


@family("t5gemma2", title="T5Gemma 2", defaults={"tie_word_embeddings": True})
def describe_merged(c: Config, t: Names) -> Architecture:
    body = t.prefix("decoder.norm.weight", "model.", "")
    inside = "text_model." if f"{body}encoder.text_model.norm.weight" in t else ""
    within, own = (stack_config(c, side, SECOND) for side in ("encoder", "decoder"))
    source = f"{body}encoder.{inside}"
    encoder = stack(within, t, source, None)
    shared = t.pick(encoder.embed, f"{body}decoder.embed_tokens.weight") or encoder.embed
    ends: dict[str, Any] = unembedding(c, t, shared, HEAD)
    encoder = replace(encoder, **ends, others=special(t, source))
    decoder = stack(own, t, f"{body}decoder.", encoder)
    return replace(decoder, **ends, others=special(t, f"{body}decoder."))


def special(t: Names, stem: str) -> tuple[str, ...]:
    """The vector of the token behind an image, which stands instead of its embedding."""
    name = f"{stem}embed_tokens.eoi_embedding"
    return (name,) if name in t else ()


def stack_config(c: Config, side: str, defaults: Mapping[str, Any]) -> Config:
    """What the config says of one stack; an encoder may be multimodal."""
    own = c.get(side) or {}
    inner = own.get("text_config")
    return Config(inner if isinstance(inner, Mapping) else own, defaults)


def stack(c: Config, t: Names, stem: str, source: Architecture | None) -> Architecture:
    """The encoder, or the decoder of what `source` encodes."""
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"], plus_one=True)
    layers = range(c["num_hidden_layers"])
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{stem}layers.{n}.", n, source) for n in layers),
        final_norm=norm(f"{stem}norm"),
        embed_scale=c["hidden_size"] ** 0.5,
        causal=source is not None,
        logit_cap=None if source is None else c.get("final_logit_softcapping"),
        encoder=source,
        sourced=source is not None,
        **ends(c, t, f"{stem}embed_tokens.weight", source),
    )


def ends(c: Config, t: Names, embed: str, source: Architecture | None) -> dict[str, Any]:
    """The decoder's embeddings; an encoder, which predicts nothing, is read through its own."""
    whole = c if source is not None else c.with_entries(tie_word_embeddings=True)
    return unembedding(whole, t, embed, HEAD)


def block(c: Config, t: Names, stem: str, n: int, source: Architecture | None) -> Block:
    s, norm = sizes(c), partial(t.norm, "rms", eps=c["rms_norm_eps"], plus_one=True)
    own = attend(c, t, s, f"{stem}self_attn.", n)
    cross = None
    if source is not None:
        apart = f"{stem}cross_attn.q_proj.weight" in t
        name = "cross_attn" if apart else "self_attn"
        cross = replace(
            attend(c, t, s, f"{stem}{name}.", n),
            **dict(zip(("pre_norm", "post_norm"), around(norm, stem, name), strict=True)),
            rotary=None if apart else own.rotary,
            window=None,
            crosses=True,
            source_norm=source.final_norm,
        )
    pre, post = around(norm, stem, "self_attn")
    before, after = around(norm, stem, "feedforward")
    return Block(
        replace(own, pre_norm=pre, post_norm=post, **sight(c, n, source, own)),
        gated(t, f"{stem}mlp.", s["d_mlp"], activation(c), pre_norm=before, post_norm=after),
        cross=cross,
    )


def around(norm: Any, stem: str, name: str) -> tuple[Any, Any]:
    """The norms before and behind a sub-block."""
    return norm(f"{stem}pre_{name}_layernorm"), norm(f"{stem}post_{name}_layernorm")


def attend(c: Config, t: Names, s: Sizes, stem: str, n: int) -> Attention:
    normed = qk_norms(t, s, stem, c["rms_norm_eps"], plus_one=True)
    return attention(
        projections(t, stem, s),
        s,
        layer_rotary(c, s["d_head"], is_sliding(c, n)),
        scale=c["query_pre_attn_scalar"] ** -0.5,
        cap=None if normed["q_norm"] else c.get("attn_logit_softcapping"),
        **normed,
    )


def sight(c: Config, n: int, source: Architecture | None, own: Attention) -> dict[str, Any]:
    """How far a layer with a window sees. An encoder's lies to both sides: all of it to each in the
    first T5Gemma, half of it in the second, which then sees no further back than ahead."""
    if not is_sliding(c, n):
        return {}
    width: int = c["sliding_window"]
    if source is not None:
        return {"window": width}
    if own.q_norm is None:
        return {"window": width + 1}
    return {"window": (width + 1) // 2, "ahead": width // 2 + 1}
