"""ALBERT: all layers (of a group) share one layer's weights, and the embedding is narrower.

Every layer has its address, and its own place in a trace; searches list shared parameters once, by
the first layer that has them.
"""

from __future__ import annotations

from lexray.families.bert import DEFAULTS, encoder, lm_head
from lexray.families.electra import project
from lexray.families.parts import attention, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

ALBERT = DEFAULTS | {
    "embedding_size": 128,
    "hidden_act": "gelu_new",
    "num_hidden_groups": 1,
    "inner_group_num": 1,
}


@family("albert", title="ALBERT", defaults=ALBERT)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.word_embeddings.weight", "albert.", "")
    head = lm_head(c, t, "predictions.dense", "predictions.LayerNorm", c["hidden_act"])
    layers, groups, inner = (
        c[key] for key in ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
    )
    stems = [
        f"{body}encoder.albert_layer_groups.{n * groups // layers}.albert_layers.{i}."
        for n in range(layers)
        for i in range(inner)
    ]
    n = len(stems)
    own = {"num_hidden_layers": n, "num_hidden_groups": n, "inner_group_num": 1}
    return encoder(
        c,
        t,
        body,
        unembed="predictions.decoder.weight",
        biases=("predictions.bias", "predictions.decoder.bias"),
        head=head,
        blocks=tuple(block(c, t, stem) for stem in stems),
        unrolled=tuple(own.items()) if len(set(stems)) < n else (),
        **project(t, f"{body}encoder.embedding_hidden_mapping_in", head),
    )


def block(c: Config, t: Names, stem: str) -> Block:
    s, eps = sizes(c), c["layer_norm_eps"]
    names = ("query", "key", "value", "dense")
    return Block(
        attention(
            projections(t, f"{stem}attention.", s, names),
            s,
            sum_norm=t.norm("layer", f"{stem}attention.LayerNorm", eps),
        ),
        FeedForward(
            w_in=t.linear(f"{stem}ffn"),
            w_out=t.linear(f"{stem}ffn_output"),
            activation=c["hidden_act"],
            d_mlp=s["d_mlp"],
            sum_norm=t.norm("layer", f"{stem}full_layer_layer_norm", eps),
        ),
    )
