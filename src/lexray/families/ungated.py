"""Llama with a feed-forward without gates: Arcee (squared ReLU), Nemotron (LayerNorms with 1 + w,
half of each head rotary), Jais 2 (LayerNorms), Apertus (xIELU, normed queries and keys), and
nanochat (norms without parameters, also of the embedding; a rotary embedding that turns back)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lexray.families import llama
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import rope_parameters
from lexray.families.linear import Norm
from lexray.families.parts import decoder, plain, qk_norms, same_for_all, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "relu2"}
NEMOTRON = DEFAULTS | {"norm_eps": 1e-5, "partial_rotary_factor": 0.5}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
APERTUS = DEFAULTS | {"hidden_act": "xielu", "rope_parameters": LLAMA3}
NANOCHAT = DEFAULTS | {"rms_norm_eps": 1e-6, "final_logit_softcapping": 15.0}


@family("arcee", title="Arcee", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"])
    return decoder(c, t, partial(block, norm=norm), norm)


@family("nemotron", title="Nemotron", defaults=NEMOTRON)
def describe_nemotron(c: Config, t: Names) -> Architecture:
    norm = partial(t.norm, "layer", eps=c["norm_eps"], plus_one=True)
    return decoder(c, t, partial(block, norm=norm), norm)


@family("jais2", title="Jais 2", defaults=DEFAULTS | {"layer_norm_eps": 1e-5})
def describe_jais(c: Config, t: Names) -> Architecture:
    norm = partial(t.norm, "layer", eps=c["layer_norm_eps"])
    return decoder(c, t, partial(block, norm=norm), norm)


def block(c: Config, t: Names, stem: str, n: int, norm: partial[Norm]) -> Block:
    before, after = (norm(f"{stem}{name}_layernorm") for name in ("input", "post_attention"))
    ff = plain(t, f"{stem}mlp.", c["intermediate_size"], c["hidden_act"], pre_norm=after)
    return replace(llama.block(c, t, stem, n, pre_norm=before), ff=ff)


@family("apertus", title="Apertus", defaults=APERTUS)
def describe_apertus(c: Config, t: Names) -> Architecture:
    return decoder(c, t, apertus_block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))


def apertus_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    before, after = (
        t.norm("rms", f"{stem}{name}_layernorm", eps) for name in ("attention", "feedforward")
    )
    normed = qk_norms(t, s, f"{stem}self_attn.", eps)
    names = (f"{stem}mlp.act_fn.{x}" for x in ("alpha_p", "alpha_n", "beta", "eps"))
    curve = tuple(name for name in names if name in t)
    ff = plain(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], pre_norm=after, curve=curve)
    return replace(llama.block(c, t, stem, n, pre_norm=before, **normed), ff=ff)


@family("nanochat", title="nanochat", defaults=NANOCHAT)
def describe_nanochat(c: Config, t: Names) -> Architecture:
    bare = Norm("rms", None, eps=c["rms_norm_eps"])
    return decoder(
        c,
        t,
        nanochat_block,
        lambda stem: bare,
        embed_norm=bare,
        logit_cap=c.get("final_logit_softcapping"),
    )


def nanochat_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, bare = sizes(c), Norm("rms", None, eps=c["rms_norm_eps"])
    forth = rotary(c, s["d_head"])
    back = replace(forth, frequencies=tuple(-f for f in forth.frequencies))
    attention = llama.block(
        c,
        t,
        stem,
        n,
        rotary=back,
        pre_norm=bare,
        q_norm=same_for_all(bare, s["n_heads"]),
        k_norm=same_for_all(bare, s["n_kv_heads"]),
    )
    names = ("fc1", "fc2")
    ff = plain(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], names, pre_norm=bare)
    return replace(attention, ff=ff)


UNGATED: gguf.Names = {**gguf.EMBEDDINGS, **gguf.ATTENTION, **gguf.MLP, **gguf.NORMS}


def plus_one(stem: str) -> gguf.GGUFSource:
    return gguf.GGUFSource(f"{stem}.weight", added=1.0, exact=True)


gguf.declare("arcee", gguf.Naming("arcee", {**UNGATED, **gguf.TURNED}))
gguf.declare("jais2", gguf.Naming("jais2", UNGATED))
gguf.declare(
    "nemotron",
    gguf.Naming(
        "nemotron",
        {
            **UNGATED,
            "model.norm.weight": plus_one("output_norm"),
            f"{gguf.LAYER}input_layernorm.weight": plus_one("blk.{n}.attn_norm"),
            f"{gguf.LAYER}post_attention_layernorm.weight": plus_one("blk.{n}.ffn_norm"),
        },
        lambda m, c: {"norm_eps": c["layer_norm_eps"]},
    ),
)
gguf.declare(
    "apertus",
    gguf.Naming(
        "apertus",
        {
            **gguf.EMBEDDINGS,
            **gguf.ATTENTION,
            **gguf.MLP,
            **gguf.QK_NORMS,
            f"{gguf.LAYER}attention_layernorm": "blk.{n}.attn_norm",
            f"{gguf.LAYER}feedforward_layernorm": "blk.{n}.ffn_norm",
            **{
                f"{gguf.LAYER}mlp.act_fn.{name}": gguf.GGUFValue(f"xielu.{name}", shape)
                for name, shape in {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}.items()
            },
        },
        lambda m, c: rope_parameters(c),
    ),
)
