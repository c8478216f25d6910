"""BERT, RoBERTa (with XLM-RoBERTa and CamemBERT) and DistilBERT: post-norm encoders.

Norms follow each sum, so there is nothing to fold into readers; the LM head is non-linear.
"""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
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


def bert_layer(layer: str, names: dict[str, str]) -> gguf.Names:
    """What llama.cpp calls the parts of a layer, by what a family does."""
    theirs = {
        **{x: f"attn_{x}" for x in "qkv"},
        "o": "attn_output",
        "o_norm": "attn_output_norm",
        "up": "ffn_up",
        "down": "ffn_down",
        "norm": "layer_output_norm",
    }
    return {layer + ours: f"blk.{{n}}.{theirs[part]}" for part, ours in names.items()}


EMBEDDED: gguf.Names = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYERED = bert_layer(
    "encoder.layer.{n}.",
    {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "o": "attention.output.dense",
        "o_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm": "output.LayerNorm",
    },
)
DISTILLED = bert_layer(
    "transformer.layer.{n}.",
    {
        **{x: f"attention.{x}_lin" for x in "qkv"},
        "o": "attention.out_lin",
        "o_norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "norm": "output_layer_norm",
    },
)


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    """llama.cpp keeps the encoder alone, and calls BERT what is BERT, RoBERTa or DistilBERT: the
    last has no types of tokens, and of a RoBERTa's positions the first ones, which no token has,
    are left out, so that it is read as BERT."""
    types = {"embeddings.token_type_embeddings": "token_types"}
    if "token_types.weight" in m.file.names():
        return gguf.Naming("bert", {**EMBEDDED, **types, **LAYERED}, gguf_config)
    return gguf.Naming("distilbert", {**EMBEDDED, **DISTILLED}, distil_config)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    types, positions = (
        m.file.info(f"{name}.weight").shape for name in ("token_types", "position_embd")
    )
    return {
        "max_position_embeddings": positions[0],
        "type_vocab_size": types[0],
        "architectures": ["BertModel"],
    }


def distil_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "dim": c["hidden_size"],
        "n_heads": c["num_attention_heads"],
        "n_layers": c["num_hidden_layers"],
        "hidden_dim": c["intermediate_size"],
        "max_position_embeddings": m.file.info("position_embd.weight").shape[0],
        "architectures": ["DistilBertModel"],
    }


gguf.declare("bert", gguf_names)
