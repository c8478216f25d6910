"""OPT: learned positions with an offset of 2, ReLU; `final_layer_norm` is a layer's pre-MLP norm.

OPT-350m is post-norm, has no final norm, and projects between embedding and model width.
"""

from __future__ import annotations

from dataclasses import replace

from lexray.families.linear import Norm
from lexray.families.parts import Sizes, attention, projections, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": True,
    "activation_function": "relu",
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
}
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
EPS = 1e-5


BIOGPT = DEFAULTS | {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": True,
}


@family("biogpt", title="BioGPT", defaults=BIOGPT)
def describe_biogpt(c: Config, t: Names) -> Architecture:
    """OPT under other names, with scaled embeddings."""
    body = t.prefix("embed_tokens.weight", "biogpt.", "")
    c = c.with_entries(ffn_dim=c["intermediate_size"], activation_function=c.get("hidden_act"))
    names = t.pick("output_projection.weight") or "lm_head.weight"
    whole = describe_under(c, t, body, f"{body}layer_norm", names)
    return replace(whole, embed_scale=c["hidden_size"] ** 0.5 if c["scale_embedding"] else 1.0)


@family("opt", title="OPT", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.decoder.", "decoder.", "")
    return describe_under(c, t, body, f"{body}final_layer_norm", "lm_head.weight")


def describe_under(c: Config, t: Names, body: str, last: str, unembed: str) -> Architecture:
    """All of it under `body`, with the final norm and the output embedding by their names."""
    s: Sizes = {
        "d_model": c["hidden_size"],
        "n_heads": c["num_attention_heads"],
        "n_kv_heads": c["num_attention_heads"],
        "d_head": c["hidden_size"] // c["num_attention_heads"],
        "d_mlp": c["ffn_dim"],
        "d_vocab": c["vocab_size"],
        "n_ctx": c["max_position_embeddings"],
    }
    pre = c.get("do_layer_norm_before", True)
    final = pre and not c.get("_remove_final_layer_norm", False)
    projected = c.get("word_embed_proj_dim") not in (None, s["d_model"])
    return Architecture(
        **s,
        blocks=tuple(
            block(c, t, s, f"{body}layers.{n}.", pre) for n in range(c["num_hidden_layers"])
        ),
        final_norm=norm(c, t, last) if final else None,
        positions=f"{body}embed_positions.weight",
        position_offset=2,
        project_in=t.linear(f"{body}project_in") if projected else None,
        project_out=t.linear(f"{body}project_out") if projected else None,
        **unembedding(c, t, f"{body}embed_tokens.weight", unembed),
    )


def norm(c: Config, t: Names, stem: str) -> Norm:
    """OPT's norms can be without parameters (Galactica's cousins)."""
    if c.get("layer_norm_elementwise_affine", True):
        return t.norm("layer", stem, EPS)
    return Norm("layer", None, None, EPS)


def block(c: Config, t: Names, s: Sizes, stem: str, pre: bool) -> Block:
    mlp_norm = norm(c, t, f"{stem}final_layer_norm")
    attention_norm = norm(c, t, f"{stem}self_attn_layer_norm")
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s, NAMES),
            s,
            pre_norm=attention_norm if pre else None,
            sum_norm=None if pre else attention_norm,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}fc1"),
            w_out=t.linear(f"{stem}fc2"),
            activation=c["activation_function"],
            d_mlp=s["d_mlp"],
            pre_norm=mlp_norm if pre else None,
            sum_norm=None if pre else mlp_norm,
        ),
    )
