"""T5 (with Flan), mT5 and UMT5: encoder and decoder, pre-norm, biases by distance, scale 1.

Keys and values of cross-attention read the encoder's output, behind the encoder's final norm. The
first T5 has one matrix for both embeddings, and divides what it decodes by √d.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lexray.errors import LexrayError
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import MOST_ROWS, expect
from lexray.families.linear import Norm
from lexray.families.parts import Sizes, attention, projections
from lexray.families.registry import Config, Names, family
from lexray.families.relative import DistanceBias
from lexray.families.spec import Architecture, Attention, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "d_kv": 64,
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "relu",
}
GATED = DEFAULTS | {"feed_forward_proj": "gated-gelu"}


@family("umt5", title="UMT5", defaults=GATED)
@family("mt5", title="mT5", defaults=GATED)
@family("t5", title="T5", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    embed = t.pick("shared.weight", "encoder.embed_tokens.weight") or "shared.weight"
    scaled = divides(c)
    unembed = embed if scaled else (t.pick("lm_head.weight") or embed)
    ends: dict[str, Any] = {
        "embed": embed,
        "unembed": unembed,
        "tied": unembed == embed,
        "logit_scale": c["d_model"] ** -0.5 if scaled else 1.0,
    }
    encoder = stack(c, t, "encoder.", c["num_layers"], None, causal=False, **ends)
    n = c.get("num_decoder_layers") or c["num_layers"]
    source = encoder.final_norm
    assert source is not None
    return stack(c, t, "decoder.", n, source, causal=True, encoder=encoder, **ends)


def divides(c: Config) -> bool:
    """Whether what is decoded is divided by √d, by the words that transformers goes by."""
    if c.get("model_type") == "umt5":
        return True
    if c.get("model_type") == "mt5":
        return False
    said = c.get("scale_decoder_outputs")
    return bool(c["tie_word_embeddings"] if said is None else said)


def sizes(c: Config) -> Sizes:
    return {
        "d_model": c["d_model"],
        "n_heads": c["num_heads"],
        "n_kv_heads": c["num_heads"],
        "d_head": c["d_kv"],
        "d_mlp": c["d_ff"],
        "d_vocab": c["vocab_size"],
        "n_ctx": None,
    }


def stack(
    c: Config, t: Names, stem: str, n: int, source: Norm | None, *, causal: bool, **ends: Any
) -> Architecture:
    """One of the two; `source` is the norm of what a decoder's cross-attention reads."""
    norm = partial(t.norm, "rms", eps=c["layer_norm_epsilon"])
    blocks = (block(c, t, f"{stem}block.{i}", i, norm, source, causal) for i in range(n))
    return Architecture(
        **sizes(c),
        blocks=tuple(blocks),
        final_norm=norm(f"{stem}final_layer_norm"),
        causal=causal,
        **ends,
    )


def block(
    c: Config, t: Names, path: str, n: int, norm: Any, source: Norm | None, causal: bool
) -> Block:
    s, inner = sizes(c), f"{path}.layer."

    def attend(place: str, **more: Any) -> Attention:
        heads = projections(t, f"{inner}{place}.", s, ("q", "k", "v", "o"))
        pre = norm(f"{inner}{place[0]}.layer_norm")
        return attention(heads, s, scale=1.0, pre_norm=pre, **more)

    cross = None
    if source is not None:
        cross = attend("1.EncDecAttention", crosses=True, source_norm=source)
    first = path if c.get("model_type") == "umt5" else f"{path.rpartition('.')[0]}.0"
    bias = DistanceBias(
        f"{first}.layer.0.SelfAttention.relative_attention_bias.weight",
        c["relative_attention_num_buckets"],
        c["relative_attention_max_distance"],
        both_ways=not causal,
    )
    ff = "1" if cross is None else "2"
    return Block(
        attend("0.SelfAttention", relative=bias),
        feed_forward(c, t, f"{inner}{ff}.DenseReluDense.", norm(f"{inner}{ff}.layer_norm")),
        cross=cross,
        path=path,
    )


def feed_forward(c: Config, t: Names, stem: str, norm: Norm) -> FeedForward:
    gated, _, act = c["feed_forward_proj"].rpartition("-")
    return FeedForward(
        w_in=t.linear(f"{stem}{'wi_1' if gated else 'wi'}"),
        w_gate=t.linear(f"{stem}wi_0") if gated else None,
        w_out=t.linear(f"{stem}wo"),
        activation="gelu_new" if gated and act == "gelu" else act,
        d_mlp=c["d_ff"],
        pre_norm=norm,
    )


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    """mT5 is written as T5 is; UMT5 has biases by distance in every layer."""
    kind = "umt5" if "enc.blk.1.attn_rel_b.weight" in m.file.names() else "t5"
    names: dict[str, gguf.Stored] = {"shared": "token_embd", "lm_head": "output"}
    for side, ours, ff in (("enc", "encoder", 1), ("dec", "decoder", 2)):
        layer, theirs = f"{ours}.block.{{n}}.layer.", f"{side}.blk.{{n}}."
        names[f"{ours}.final_layer_norm"] = f"{side}.output_norm"
        parts = [(0, "SelfAttention", "attn")]
        parts += [(1, "EncDecAttention", "cross_attn")] if side == "dec" else []
        for i, module, name in parts:
            names[f"{layer}{i}.layer_norm"] = f"{theirs}{name}_norm"
            names |= {f"{layer}{i}.{module}.{x}": f"{theirs}{name}_{x}" for x in "qkvo"}
        names[f"{layer}0.SelfAttention.relative_attention_bias"] = f"{theirs}attn_rel_b"
        names[f"{layer}{ff}.layer_norm"] = f"{theirs}ffn_norm"
        gated = f"{theirs}ffn_gate".format(n=0) + ".weight" in m.file.names()
        dense = f"{layer}{ff}.DenseReluDense."
        names[dense + ("wi_1" if gated else "wi")] = f"{theirs}ffn_up"
        names[f"{dense}wi_0"] = f"{theirs}ffn_gate"
        names[f"{dense}wo"] = f"{theirs}ffn_down"
    return gguf.Naming(kind, names, common=gguf_config, layers=count_layers)


def count_layers(c: dict[str, Any]) -> int:
    return max(int(c["num_layers"]), int(c["num_decoder_layers"]))


def gguf_config(m: gguf.Keys, model_type: str) -> dict[str, Any]:
    """The words of T5's config. Which activation stands in a feed-forward, and from which distance
    on all are alike, llama.cpp knows without being told."""
    names, layers = m.file.names(), m.size("block_count")
    d_model, heads, width = (
        m.size(x) for x in ("embedding_length", "attention.head_count", "attention.key_length")
    )
    expect(m, "enc.blk.0.attn_o.weight", (d_model, heads * width))
    decoding = m.size("decoder_block_count", layers)
    if max(layers, decoding) > len(names) or heads * width > MOST_ROWS:
        raise LexrayError(f"{m.file.name}: the sizes in its metadata do not fit together")
    return {
        "model_type": model_type,
        "vocab_size": m.file.info("token_embd.weight").shape[0],
        "d_model": d_model,
        "d_kv": width,
        "d_ff": m.file.info("enc.blk.0.ffn_down.weight").shape[-1],
        "num_layers": layers,
        "num_decoder_layers": decoding,
        "num_heads": heads,
        "layer_norm_epsilon": m.need("attention.layer_norm_rms_epsilon"),
        "relative_attention_num_buckets": m.size("attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in names else "relu",
        "tie_word_embeddings": "output.weight" not in names,
        "decoder_start_token_id": m.get("decoder_start_token_id") or 0,
        "pad_token_id": m.file.metadata.get("tokenizer.ggml.padding_token_id"),
        "eos_token_id": m.file.metadata.get("tokenizer.ggml.eos_token_id"),
    }


gguf.declare("t5", gguf_names)
