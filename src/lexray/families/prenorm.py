"""Encoders built like BERT that norm what sub-blocks read, not their sums: RoBERTa-PreLayerNorm,
XLM-RoBERTa-XL, Megatron-BERT."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lexray.families import bert
from lexray.families.bert import DEFAULTS, encoder, lm_head
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

PADDED = DEFAULTS | {"pad_token_id": 1}
EMBED = "embeddings.word_embeddings.weight"


def block(c: Config, t: Names, stem: str, first: str, second: str, **changed: Any) -> Block:
    """BERT's block with the norms called `first` and `second` before its sub-blocks."""
    plain = bert.block(c, t, stem, sum_norm=None, **changed)
    before, after = (t.norm("layer", stem + name, c["layer_norm_eps"]) for name in (first, second))
    ff = replace(plain.ff, sum_norm=None, pre_norm=after)
    return replace(plain, attention=replace(plain.attention, pre_norm=before), ff=ff)


def roberta_ends(c: Config, t: Names, body: str, last: str) -> dict[str, Any]:
    """RoBERTa's LM head, positions that begin behind the padding's, and a norm behind all."""
    return {
        "unembed": "lm_head.decoder.weight",
        "biases": ("lm_head.bias", "lm_head.decoder.bias"),
        "head": lm_head(c, t, "lm_head.dense", "lm_head.layer_norm", "gelu"),
        "position_offset": c["pad_token_id"] + 1,
        "final_norm": t.norm("layer", body + last, c["layer_norm_eps"]),
    }


@family("roberta-prelayernorm", title="RoBERTa-PreLayerNorm", defaults=PADDED)
def describe_roberta(c: Config, t: Names) -> Architecture:
    body = t.prefix(EMBED, "roberta_prelayernorm.", "")
    layer = partial(block, first="attention.LayerNorm", second="intermediate.LayerNorm")
    return encoder(c, t, body, block=layer, **roberta_ends(c, t, body, "LayerNorm"))


@family("xlm-roberta-xl", title="XLM-RoBERTa-XL", defaults=PADDED | {"layer_norm_eps": 1e-5})
def describe_xl(c: Config, t: Names) -> Architecture:
    body = t.prefix(EMBED, "roberta.", "")
    layer = partial(block, first="attention.self_attn_layer_norm", second="LayerNorm")
    ends = roberta_ends(c, t, body, "encoder.LayerNorm")
    return encoder(c, t, body, block=layer, embed_norm=None, **ends)


@family("megatron-bert", title="Megatron-BERT", defaults=DEFAULTS)
def describe_megatron(c: Config, t: Names) -> Architecture:
    body, head = t.prefix(EMBED, "bert.", ""), "cls.predictions."
    last, stem, act = f"{body}encoder.ln", f"{head}transform.", c["hidden_act"]
    return encoder(
        c,
        t,
        body,
        block=partial(block, first="attention.ln", second="ln"),
        unembed=f"{head}decoder.weight",
        biases=(f"{head}bias", f"{head}decoder.bias"),
        head=lm_head(c, t, f"{stem}dense", f"{stem}LayerNorm", act),
        embed_norm=None,
        final_norm=t.norm("layer", last, c["layer_norm_eps"]),
    )
