"""ELECTRA: BERT with an embedding that may be narrower than the model.

The generator is a masked language model. The discriminator tells replaced tokens from others and
has no output embedding: its parameters are read through the input embedding, on the way by which
tokens come in.
"""

from __future__ import annotations

from typing import Any

from lexray.families.bert import DEFAULTS, encoder, lm_head
from lexray.families.linear import Linear
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, HeadTransform


@family("electra", title="ELECTRA", defaults=DEFAULTS | {"embedding_size": 128})
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.word_embeddings.weight", "electra.", "")
    stem = "generator_predictions."
    head = lm_head(c, t, f"{stem}dense", f"{stem}LayerNorm", "gelu")
    narrow = c["embedding_size"] != c["hidden_size"]
    return encoder(
        c,
        t,
        body,
        unembed="generator_lm_head.weight",
        biases=("generator_lm_head.bias", "generator_lm_head.bias"),
        head=head,
        **(project(t, f"{body}embeddings_project", head) if narrow else {}),
    )


def project(t: Names, stem: str, head: HeadTransform | None) -> dict[str, Any]:
    """Between the embedding's width and the model's: in behind the embedding's norm, and out by the
    LM head's dense map; without a head, back by the way in."""
    there = t.linear(stem)
    back = Linear(there.weight, in_first=True) if head is None else head.dense
    return {"project_in": there, "project_out": back, "projects_last": True}
