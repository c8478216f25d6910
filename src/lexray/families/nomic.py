"""Nomic BERT: BERT with rotary positions and gated feed-forwards, without biases; files have
queries, keys and values in one matrix, modules have them apart, and each its own names."""

from __future__ import annotations

from typing import Any

from lexray.families.bert import DEFAULTS, encoder, lm_head
from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, fused, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

NOMIC = DEFAULTS | {"hidden_act": "silu", "rope_theta": 1000.0, "max_position_embeddings": 2048}


@family("nomic_bert", title="Nomic BERT", defaults=NOMIC)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.word_embeddings.weight", "nomic_bert.", "")
    stems = (f"{body}encoder.layers.", f"{body}layers.")
    layers = stems[0] if f"{stems[0]}0.norm1.weight" in t else stems[1]
    norms = (f"{body}emb_ln", f"{body}embeddings.LayerNorm")
    first = norms[0] if f"{norms[0]}.weight" in t else norms[1]
    head, stem = "cls.predictions.", "cls.predictions.transform."
    return encoder(
        c,
        t,
        body,
        unembed=f"{head}decoder.weight",
        biases=(f"{head}bias", f"{head}decoder.bias"),
        blocks=tuple(block(c, t, f"{layers}{n}.") for n in range(c["num_hidden_layers"])),
        head=lm_head(c, t, f"{stem}dense", f"{stem}layer_norm", c["hidden_act"]),
        embed_norm=t.norm("layer", first, c["layer_norm_eps"]),
        positions=None,
        settings=(("pad_token_id", c.get("pad_token_id") or 0),),  # its class needs a number
    )


def block(c: Config, t: Names, stem: str) -> Block:
    s, stored = sizes(c), f"{stem}attn.Wqkv.weight" in t
    if stored:
        heads = fused(t, f"{stem}attn.Wqkv", f"{stem}attn.out_proj", s)
        names, maps = ("norm1", "norm2"), ("fc11", "fc12", "fc2")
    else:
        heads = projections(t, f"{stem}self_attn.", s)
        names = ("post_attention_layernorm", "post_mlp_layernorm")
        maps = ("up_proj", "gate_proj", "down_proj")
    first, second = (t.norm("layer", stem + name, c["layer_norm_eps"]) for name in names)
    up, gate, down = (t.linear(f"{stem}mlp.{name}") for name in maps)
    return Block(
        attention(heads, s, rotary(c, s["d_head"]), sum_norm=first),
        FeedForward(up, down, c["hidden_act"], s["d_mlp"], w_gate=gate, sum_norm=second),
    )


NOMIC_GGUF: gguf.Names = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "encoder.layers.{n}.attn.Wqkv": "blk.{n}.attn_qkv",
    "encoder.layers.{n}.attn.out_proj": "blk.{n}.attn_output",
    "encoder.layers.{n}.norm1": "blk.{n}.attn_output_norm",
    "encoder.layers.{n}.mlp.fc11": "blk.{n}.ffn_up",
    "encoder.layers.{n}.mlp.fc12": "blk.{n}.ffn_gate",
    "encoder.layers.{n}.mlp.fc2": "blk.{n}.ffn_down",
    "encoder.layers.{n}.norm2": "blk.{n}.layer_output_norm",
}


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The body alone."""
    pad = m.file.metadata.get("tokenizer.ggml.padding_token_id")
    return {
        "pad_token_id": pad if isinstance(pad, int) and pad < c["vocab_size"] else None,
        "type_vocab_size": m.file.info("token_types.weight").shape[0],
        "architectures": ["NomicBertModel"],
    }


gguf.declare("nomic-bert", gguf.Naming("nomic_bert", NOMIC_GGUF, gguf_config))
