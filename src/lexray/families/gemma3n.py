"""Gemma 3n (text): Gemma 4's keys, values and embeddings of the layers, in four streams at once.

A layer reads one of the streams, as it is predicted from all, and corrects all by what it wrote
(AltUp); beside attention stands a narrow map of the same input (LAuReL); in the first layers most
gates are cut off. Heads, neurons and what the layers' embeddings write read as everywhere. The
streams and the narrow map are named and not read, and passes are not recorded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lexray.families.gemma import GEMMA3, activation, layer_rotary
from lexray.families.gemma4 import FULL, SLIDING, layer_embedding, layer_inputs, queries_keys_values
from lexray.families.parts import decoder, gated, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Attention, Block, FeedForward

DEFAULTS = GEMMA3 | {
    "sliding_window": 512,
    "vocab_size": 262_400,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "num_kv_shared_layers": 15,
    "altup_num_inputs": 4,
}
BETWEEN = (
    *("altup.correct_output_scale", "altup.correction_coefs.weight"),
    *("altup.prediction_coefs.weight", "altup.modality_router.weight", "altup.router_norm.weight"),
    *("laurel.linear_left.weight", "laurel.linear_right.weight", "laurel.post_laurel_norm.weight"),
)
MOST_STREAMS = 100
SPARSE_LAYERS, SPARSITY = 10, 0.95
"""Of models with more layers, unless the config says which."""


@family("gemma3n_text", "gemma3n", name="gemma3n", title="Gemma 3n", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    n, streams = c["num_hidden_layers"], c["altup_num_inputs"]
    if not 1 <= streams <= MOST_STREAMS:
        raise ValueError(f"it speaks of {streams} streams")
    widths = c.each("intermediate_size", n)
    c = c.with_entries(intermediate_size=max(widths), widths=widths)
    body = t.prefix("embed_tokens.weight", "model.", "")
    maps = ("altup_projections", "altup_unembed_projections")
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        embed_scale=c["hidden_size"] ** 0.5,
        logit_cap=c.get("final_logit_softcapping"),
        layer_inputs=layer_inputs(c, t),
        streams=streams,
        others=tuple(f"{body}{x}.{i}.weight" for x in maps for i in range(streams - 1)),
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    return Block(
        attend(c, t, stem, n),
        feed_forward(c, t, stem, n),
        mixer=layer_embedding(c, t, stem, norm(f"{stem}post_per_layer_input_norm")),
        others=tuple(stem + name for name in BETWEEN),
        path=stem.removesuffix("."),
    )


def kind_of(c: Config, n: int) -> str:
    """Every fifth layer has no window, unless the config says which."""
    if kinds := c.get("layer_types"):
        return str(kinds[n])
    return FULL if (n + 1) % 5 == 0 else SLIDING


def attend(c: Config, t: Names, stem: str, n: int) -> Attention:
    s, slides = sizes(c), kind_of(c, n) == SLIDING
    return Attention(
        **queries_keys_values(c, t, stem, n, s, kind_of),
        rotary=layer_rotary(c, s["d_head"], slides),
        pre_norm=t.norm("rms", f"{stem}input_layernorm", c["rms_norm_eps"]),
        post_norm=t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"]),
        window=c["sliding_window"] if slides else None,
    )


def feed_forward(c: Config, t: Names, stem: str, n: int) -> FeedForward:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    before, after = (norm(f"{stem}{x}_feedforward_layernorm") for x in ("pre", "post"))
    dense = gated(t, f"{stem}mlp.", c["widths"][n], activation(c), pre_norm=before, post_norm=after)
    return replace(dense, sparsity=sparsity(c, n))


def sparsity(c: Config, n: int) -> float:
    """Which share of the gates is cut off, if they are spread as usual."""
    layers = c["num_hidden_layers"]
    if c.get("activation_sparsity_pattern") is not None:
        return float(c.each("activation_sparsity_pattern", layers)[n])
    return SPARSITY if n < SPARSE_LAYERS < layers else 0.0
