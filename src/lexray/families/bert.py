"""BERT, RoBERTa (with XLM-RoBERTa and CamemBERT) and DistilBERT: post-norm encoders.

Norms follow each sum, so there is nothing to fold into readers; the LM head is non-linear.
"""

from __future__ import annotations

from typing import Any

from lexray.families.parts import Sizes, attention, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward, HeadTransform

DEFAULTS = {
    "tie_word_embeddings": True,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
}


@family("ernie", title="ERNIE", defaults=DEFAULTS)
@family("bert", title="BERT", defaults=DEFAULTS)
def describe_bert(c: Config, t: Names) -> Architecture:
    if c.get("use_task_id"):
        raise ValueError("use_task_id: embeddings of tasks stand beside those of tokens")
    head = "cls.predictions."
    return encoder(
        c,
        t,
        t.prefix("embeddings.word_embeddings.weight", "bert.", "ernie.", ""),
        unembed=f"{head}decoder.weight",
        biases=(f"{head}bias", f"{head}decoder.bias"),
        head=lm_head(c, t, f"{head}transform.dense", f"{head}transform.LayerNorm", c["hidden_act"]),
    )


@family(
    "roberta",
    "xlm-roberta",
    "camembert",
    "data2vec-text",
    title="RoBERTa",
    defaults=DEFAULTS | {"pad_token_id": 1},
)
def describe_roberta(c: Config, t: Names) -> Architecture:
    return encoder(
        c,
        t,
        t.prefix("embeddings.word_embeddings.weight", "roberta.", "data2vec_text.", ""),
        unembed="lm_head.decoder.weight",
        biases=("lm_head.bias", "lm_head.decoder.bias"),
        head=lm_head(c, t, "lm_head.dense", "lm_head.layer_norm", "gelu"),
        position_offset=c["pad_token_id"] + 1,
    )


def lm_head(c: Config, t: Names, dense: str, norm: str, act: str) -> HeadTransform | None:
    if f"{dense}.weight" not in t:
        return None
    return HeadTransform(t.linear(dense), act, t.norm("layer", norm, c["layer_norm_eps"]))


def encoder(
    c: Config, t: Names, body: str, *, unembed: str, biases: tuple[str, str], **rest: Any
) -> Architecture:
    """`biases` are the LM head's own and its decoder's, which are one unless it is untied; `rest`
    is what a relative has otherwise."""
    tied, embed = c["tie_word_embeddings"], f"{body}embeddings.word_embeddings.weight"
    if "blocks" not in rest:
        stems = (f"{body}encoder.layer.{n}." for n in range(c["num_hidden_layers"]))
        layer = rest.pop("block", block)
        rest["blocks"] = tuple(layer(c, t, stem) for stem in stems)
    usual: dict[str, Any] = {
        "positions": f"{body}embeddings.position_embeddings.weight",
        "token_types": t.pick(f"{body}embeddings.token_type_embeddings.weight"),
        "embed_norm": t.norm("layer", f"{body}embeddings.LayerNorm", c["layer_norm_eps"]),
        "causal": bool(c.get("is_decoder")),
    }
    return Architecture(
        **sizes(c),
        embed=embed,
        unembed=embed if tied else unembed,
        unembed_bias=t.pick(*(biases if tied else reversed(biases))),
        tied=tied,
        **usual | rest,
    )


def block(
    c: Config,
    t: Names,
    stem: str,
    *,
    names: tuple[str, str, str, str] = ("self.query", "self.key", "self.value", "output.dense"),
    norm: str = "output.LayerNorm",
    **changed: Any,
) -> Block:
    """`changed`: what a relative has otherwise in its attention."""
    s, eps = sizes(c), c["layer_norm_eps"]
    return Block(
        attention(
            projections(t, f"{stem}attention.", s, names),
            s,
            **{"sum_norm": t.norm("layer", f"{stem}attention.{norm}", eps)} | changed,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}intermediate.dense"),
            w_out=t.linear(f"{stem}output.dense"),
            activation=c["hidden_act"],
            d_mlp=s["d_mlp"],
            sum_norm=t.norm("layer", f"{stem}output.LayerNorm", eps),
        ),
    )


DISTIL = {
    "tie_word_embeddings": True,
    "activation": "gelu",
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}


@family("distilbert", title="DistilBERT", defaults=DISTIL)
def describe_distilbert(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.word_embeddings.weight", "distilbert.", "")
    s: Sizes = {
        "d_model": c["dim"],
        "n_heads": c["n_heads"],
        "n_kv_heads": c["n_heads"],
        "d_head": c["dim"] // c["n_heads"],
        "d_mlp": c["hidden_dim"],
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    embed = f"{body}embeddings.word_embeddings.weight"
    stems = [f"{body}transformer.layer.{n}." for n in range(c["n_layers"])]
    return Architecture(
        **s,
        blocks=tuple(distil_block(c, t, s, stem) for stem in stems),
        embed=embed,
        unembed=embed if c["tie_word_embeddings"] else "vocab_projector.weight",
        unembed_bias=t.pick("vocab_projector.bias"),
        tied=c["tie_word_embeddings"],
        positions=f"{body}embeddings.position_embeddings.weight",
        embed_norm=t.norm("layer", f"{body}embeddings.LayerNorm", c["layer_norm_eps"]),
        head=lm_head(c, t, "vocab_transform", "vocab_layer_norm", c["activation"]),
        causal=False,
    )


def distil_block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    eps = c["layer_norm_eps"]
    return Block(
        attention(
            projections(t, f"{stem}attention.", s, ("q_lin", "k_lin", "v_lin", "out_lin")),
            s,
            sum_norm=t.norm("layer", f"{stem}sa_layer_norm", eps),
        ),
        FeedForward(
            w_in=t.linear(f"{stem}ffn.lin1"),
            w_out=t.linear(f"{stem}ffn.lin2"),
            activation=c["activation"],
            d_mlp=s["d_mlp"],
            sum_norm=t.norm("layer", f"{stem}output_layer_norm", eps),
        ),
    )
