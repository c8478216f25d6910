"""MPNet: BERT whose layers share one bias of attention scores by distance."""

from __future__ import annotations

from functools import partial

from lexray.families.bert import DEFAULTS, block, encoder, lm_head
from lexray.families.registry import Config, Names, family
from lexray.families.relative import DistanceBias
from lexray.families.spec import Architecture

NAMES = ("attn.q", "attn.k", "attn.v", "attn.o")
BUCKETS, FURTHEST = 32, 128
"""Of distances; transformers does not ask the config."""


@family("mpnet", title="MPNet", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.word_embeddings.weight", "mpnet.", "")
    table = f"{body}encoder.relative_attention_bias.weight"
    layer = partial(
        block,
        names=NAMES,
        norm="LayerNorm",
        relative=DistanceBias(table, BUCKETS, FURTHEST, both_ways=True),
    )
    return encoder(
        c,
        t,
        body,
        unembed="lm_head.decoder.weight",
        biases=("lm_head.bias", "lm_head.decoder.bias"),
        head=lm_head(c, t, "lm_head.dense", "lm_head.layer_norm", "gelu"),
        block=layer,
        position_offset=2,  # the padding token is the second, whatever the config says
    )
