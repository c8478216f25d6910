"""DeBERTa v2 and v3: BERT with disentangled attention.

Scores have three parts: of content and content, which is a head's QK matrix; of content and
distance; of distance and content. Distances have vectors of their own, which all layers share.
"""

from __future__ import annotations

from functools import partial

from lexray.errors import LexrayError
from lexray.families.bert import DEFAULTS, block, encoder, lm_head
from lexray.families.linear import Heads, in_order
from lexray.families.parts import sizes
from lexray.families.registry import Config, Names, family
from lexray.families.relative import DistanceVectors
from lexray.families.spec import Architecture, Block

DEBERTA = DEFAULTS | {
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "position_buckets": -1,
    "max_relative_positions": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "legacy": True,
}
NAMES = ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")
NEW = "lm_predictions.lm_head."
"""Where v3 has its prediction head; its config need not say so."""


@family("deberta-v2", title="DeBERTa v2, v3", defaults=DEBERTA)
def describe(c: Config, t: Names) -> Architecture:
    refuse_others(c)
    body = t.prefix("embeddings.word_embeddings.weight", "deberta.", "")
    new = f"{NEW}dense.weight" in t
    stem = NEW if new else "cls.predictions.transform."
    bias = f"{NEW}bias" if new else "cls.predictions.bias"
    positions = f"{body}embeddings.position_embeddings.weight"
    return encoder(
        c,
        t,
        body,
        unembed="cls.predictions.decoder.weight",
        biases=(bias, bias if new else "cls.predictions.decoder.bias"),
        head=lm_head(c, t, f"{stem}dense", f"{stem}LayerNorm", c["hidden_act"]),
        block=partial(disentangled, body),
        positions=positions if c.get("position_biased_input", True) else None,
        settings=(("legacy", False),) if new else (),
    )


def refuse_others(c: Config) -> None:
    if c.get("conv_kernel_size"):
        raise LexrayError(
            "this DeBERTa has a convolution beside its first layer (v2-xlarge and v2-xxlarge), "
            "which lexray does not read; v3 models and v2 ones without it open"
        )
    if c.get("embedding_size") not in (None, c["hidden_size"]):
        raise LexrayError(
            "this DeBERTa has an embedding of another width than the model "
            f"({c['embedding_size']}, not {c['hidden_size']}), which lexray does not read"
        )


def disentangled(body: str, c: Config, t: Names, stem: str) -> Block:
    """A layer of BERT with what distances add."""
    asked = c.get("pos_att_type") or []
    kinds = asked.lower().split("|") if isinstance(asked, str) else asked
    kinds = [kind.strip() for kind in kinds]
    parts = 1 + sum(kind in kinds for kind in ("c2p", "p2c"))
    scale = (sizes(c)["d_head"] * parts) ** -0.5
    relative = distances(c, t, body, f"{stem}attention.self.", kinds, scale)
    return block(c, t, stem, names=NAMES, relative=relative, scale=scale)


def distances(
    c: Config, t: Names, body: str, stem: str, kinds: list[str], scale: float
) -> DistanceVectors | None:
    if not c["relative_attention"] or not {"c2p", "p2c"} & {*kinds}:
        return None
    s, shares = sizes(c), c["share_att_key"]
    furthest = c["max_relative_positions"]
    furthest = furthest if furthest > 0 else c["max_position_embeddings"]
    buckets = max(c["position_buckets"], 0)

    def heads(kind: str, shared: str, own: str) -> Heads | None:
        name = shared if shares else own
        return in_order(t.linear(stem + name), s["n_heads"], s["d_head"]) if kind in kinds else None

    normed = "layer_norm" in c["norm_rel_ebd"].lower()
    return DistanceVectors(
        table=f"{body}encoder.rel_embeddings.weight",
        norm=t.norm("layer", f"{body}encoder.LayerNorm", c["layer_norm_eps"]) if normed else None,
        as_key=heads("c2p", "key_proj", "pos_key_proj"),
        as_query=heads("p2c", "query_proj", "pos_query_proj"),
        span=buckets or furthest,
        buckets=buckets,
        furthest=furthest,
        scale=scale,
    )
