"""Gemma 3n (text): Gemma 4's keys, values and embeddings of the layers, in four streams at once.

A layer reads one of the streams, as it is predicted from all, and corrects all by what it wrote
(AltUp); beside attention stands a narrow map of the same input (LAuReL); in the first layers most
gates are cut off. What a layer takes of its own embedding goes to all streams but the first.
Heads, neurons and what the layers' embeddings write read as everywhere. The maps between streams
and the narrow one are not read as words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lexray.families.gemma import GEMMA3, activation, layer_rotary
from lexray.families.gemma4 import FULL, SLIDING, layer_embedding, layer_inputs, queries_keys_values
from lexray.families.linear import Norm
from lexray.families.parts import decoder, gated, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Attention, Block, FeedForward, Mixer
from lexray.families.streams import AltUp, Streams

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
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "laurel_rank": 64,
}
MOST_STREAMS = 100
SPARSE_LAYERS, SPARSITY = 10, 0.95
"""Of models with more layers, unless the config says which."""


@family("gemma3n_text", "gemma3n", name="gemma3n", title="Gemma 3n", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    n = c["num_hidden_layers"]
    widths = c.each("intermediate_size", n)
    c = c.with_entries(intermediate_size=max(widths), widths=widths)
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"]),
        embed_scale=c["hidden_size"] ** 0.5,
        logit_cap=c.get("final_logit_softcapping"),
        layer_inputs=layer_inputs(c, t),
        streams=streams(c, t),
        alone=(("num_kv_shared_layers", 0),) if c["num_kv_shared_layers"] else (),
    )


def streams(c: Config, t: Names) -> Streams:
    """How many there are, which one is worked on, and the maps at both ends."""
    n, active = c["altup_num_inputs"], c["altup_active_idx"]
    if not 1 <= n <= MOST_STREAMS:
        raise ValueError(f"it speaks of {n} streams")
    if not 0 <= active < n:
        raise ValueError(f"it works on stream {active} of {n}, which are counted from 0")
    body = t.prefix("embed_tokens.weight", "model.", "")
    ends = ("altup_projections", "altup_unembed_projections")
    spread, gather = (tuple(t.linear(f"{body}{x}.{i}") for i in range(n - 1)) for x in ends)
    return Streams(n, active, spread, gather)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    last = layer_embedding(c, t, stem, norm(f"{stem}post_per_layer_input_norm"))
    if last is not None and c["altup_correct_scale"]:
        last = replace(last, pre_norm=Norm("fixed", f"{stem}altup.correct_output_scale"))
    return Block(
        attend(c, t, stem, n),
        feed_forward(c, t, stem, n),
        mixer=last,
        laurel=narrow_map(c, t, stem),
        altup=mix_streams(c, t, stem),
        path=stem.removesuffix("."),
    )


def narrow_map(c: Config, t: Names, stem: str) -> Mixer:
    """LAuReL: what attention reads, through few dimensions."""
    norm, rank = partial(t.norm, "rms", eps=c["rms_norm_eps"]), c["laurel_rank"]
    return Mixer(
        (t.linear(f"{stem}laurel.linear_left", size=rank),),
        t.linear(f"{stem}laurel.linear_right"),
        rank,
        "LAuReL",
        pre_norm=norm(f"{stem}input_layernorm"),
        post_norm=norm(f"{stem}laurel.post_laurel_norm"),
    )


def mix_streams(c: Config, t: Names, stem: str) -> AltUp:
    stem = f"{stem}altup."
    others = ["modality_router.weight", "router_norm.weight"]
    if not c["altup_correct_scale"]:
        others.append("correct_output_scale")
    return AltUp(
        t.linear(f"{stem}prediction_coefs"),
        t.linear(f"{stem}correction_coefs"),
        tuple(stem + name for name in others),
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
