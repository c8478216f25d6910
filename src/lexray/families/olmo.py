"""OLMo 1 and 2, both with Llama's names.

OLMo 1 has LayerNorms without parameters and may clip queries, keys and values; OLMo 2 norms only
what the sub-blocks write, and queries and keys over all heads jointly.
"""

from __future__ import annotations

from typing import Any

from lexray.errors import LexrayError
from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, gated, projections, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Norm, QKNorm

DEFAULTS = {"tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 2048}
BARE = Norm("layer", None, None, 1e-5)


@family("olmo", title="OLMo", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return assemble(c, t, [olmo1_block(c, t, stem) for stem in stems(c, t)], BARE)


@family("olmo2", title="OLMo 2", defaults=DEFAULTS | {"rms_norm_eps": 1e-5})
def describe2(c: Config, t: Names) -> Architecture:
    norm = t.norm("rms", f"{prefix(t)}norm", c["rms_norm_eps"])
    return assemble(c, t, [olmo2_block(c, t, stem) for stem in stems(c, t)], norm)


def prefix(t: Names) -> str:
    return t.prefix("embed_tokens.weight", "model.", "")


def stems(c: Config, t: Names) -> list[str]:
    return [f"{prefix(t)}layers.{n}." for n in range(c["num_hidden_layers"])]


def assemble(c: Config, t: Names, blocks: list[Block], final_norm: Norm) -> Architecture:
    embed = f"{prefix(t)}embed_tokens.weight"
    return Architecture(
        **sizes(c),
        blocks=tuple(blocks),
        final_norm=final_norm,
        **unembedding(c, t, embed, "lm_head.weight"),
    )


def olmo1_block(c: Config, t: Names, stem: str) -> Block:
    s = sizes(c)
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"]),
            pre_norm=BARE,
            clip=c.get("clip_qkv"),
        ),
        gated(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], pre_norm=BARE),
    )


def olmo2_block(c: Config, t: Names, stem: str) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"]),
            post_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
            q_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.q_norm", eps)),
            k_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.k_norm", eps)),
        ),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            post_norm=t.norm("rms", f"{stem}post_feedforward_layernorm", eps),
        ),
    )


gguf.declare(
    "olmo",
    gguf.Naming(
        "olmo",
        {**gguf.LLAMA, **gguf.TURNED},
        lambda m, c: {"clip_qkv": m.get("attention.clamp_kqv") or None},
    ),
)


def olmo2_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    if m.get("attention.sliding_window"):
        raise LexrayError(
            f"{m.file.name} is an OLMo 3 model (its layers look through windows), "
            "which lexray does not read; OLMo 1 and 2 it reads"
        )
    return {}


gguf.declare(
    "olmo2",
    gguf.Naming(
        "olmo2",
        {
            **gguf.EMBEDDINGS,
            **gguf.ATTENTION,
            **gguf.MLP,
            **gguf.QK_NORMS,
            f"{gguf.LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
            f"{gguf.LAYER}post_feedforward_layernorm": "blk.{n}.post_ffw_norm",
        },
        olmo2_gguf,
    ),
)
