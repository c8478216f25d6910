"""The table of families in docs/opens.md, made of the registry, the zoo and the GGUF files written.

`python -m tests.families.table` prints it.
"""

from __future__ import annotations

from functools import cache

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from lexray.families import Architecture, Experts, Family, Latent, families
from lexray.families.relative import DistanceBias, DistanceVectors
from tests.families.gguf.writer import ARCHITECTURES
from tests.families.pairs import PAIRS
from tests.families.zoo import VARIANTS, Variant, class_of

BEGIN, END = "<!-- families: made by tests/families/table.py -->\n", "<!-- end of families -->\n"


@cache
def describe(variant: Variant | str) -> Architecture:
    """A variant's description, from its names alone: nothing is computed."""
    found = next(v for v in (*VARIANTS, *PAIRS) if v.name == str(variant))
    config = AutoConfig.for_model(found.model_type, **found.options)
    maker = AutoModelForSeq2SeqLM if found in PAIRS else class_of(found)
    with torch.device("meta"):
        module = maker(config) if found.unlisted else maker.from_config(config)
    family = next(f for f in families().values() if found.model_type in f.model_types)
    return family.architecture(config.to_dict(), list(module.state_dict()))


def traits(a: Architecture) -> list[str]:
    """What is out of the ordinary in a model."""
    heads, ffs = [b.attention for b in a.blocks if not b.attention.absent], [b.ff for b in a.blocks]
    mixers = dict.fromkeys(b.mixer.kind for b in a.blocks if b.mixer is not None)
    posts = (x.post_norm is not None and x.post_norm.kind != "fixed" for x in (*heads, *ffs))
    known = {
        "encoder and decoder": a.encoder is not None,
        "one attention to itself and to the source": any(b.merged for b in a.blocks),
        "sees both ways": not a.causal,
        "parallel blocks": any(b.parallel for b in a.blocks),
        "norms behind sub-blocks": any(posts),
        "factors": any(x.post_norm is not None and x.post_norm.kind == "fixed" for x in heads),
        "normed queries and keys": any(x.q_norm is not None for x in heads),
        "normed values": any(x.v_norm is not None for x in heads),
        "keys and values of earlier layers": any(x.shares is not None for x in heads),
        "latent attention": any(isinstance(x.v.linear, Latent) for x in heads),
        "sinks": any(x.sinks is not None for x in heads),
        "ALiBi": any(x.alibi for x in heads),
        "biases by distance": any(isinstance(x.relative, DistanceBias) for x in heads),
        "disentangled attention": any(isinstance(x.relative, DistanceVectors) for x in heads),
        "shared layers": bool(a.unrolled),
        "windows": any(x.window is not None for x in heads),
        "layers without positions": len({x.rotary is None for x in heads}) == 2,
        "experts": any(isinstance(ff, Experts) for ff in ffs),
        "shared expert": any(isinstance(ff, Experts) and ff.shared is not None for ff in ffs),
        "capped logits": a.logit_cap is not None,
        "several streams": a.streams is not None,
    }
    known["gated heads"] = any(x.gate is not None for x in heads)
    return [*(f"{kind} mixers" for kind in mixers), *(name for name in known if known[name])]


def row(family: Family) -> str:
    built = {*family.model_types, family.runs_as}
    variants = [v for v in (*VARIANTS, *PAIRS) if v.model_type in built]
    found = dict.fromkeys(t for v in variants for t in traits(describe(v.name)))
    types = ", ".join(f"`{kind}`" for kind in family.model_types)
    gguf = "✓" if set(family.model_types) & ARCHITECTURES.keys() else ""
    return f"| {family.title} | {types} | {', '.join(found)} | {gguf} |"


def table() -> str:
    rows = sorted((row(family) for family in families().values()), key=str.casefold)
    return "\n".join(["| family | `model_type` | | from GGUF |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(table(), end="")
