"""Gemma 1, 2 and 3 (text): norms with 1 + w, embeddings scaled by √d on the way in, GeGLU.

Gemma 2 norms what each sub-block writes as well and caps scores and logits (VaultGemma only caps);
Gemma 3 norms queries
and keys, and has a rotary embedding of its own for the layers with a window.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, decoder, gated, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import Rotary, rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
GEMMA2 = DEFAULTS | {
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3 = DEFAULTS | {
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "max_position_embeddings": 131_072,
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


@family("gemma", title="Gemma", defaults=DEFAULTS)
@family("gemma2", title="Gemma 2", defaults=GEMMA2)
@family("vaultgemma", title="VaultGemma", defaults=GEMMA2)
@family("gemma3_text", "gemma3", name="gemma3", title="Gemma 3", defaults=GEMMA3)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(
        c,
        t,
        block,
        lambda stem: t.norm("rms", stem, c["rms_norm_eps"], plus_one=True),
        embed_scale=c["hidden_size"] ** 0.5,
        causal=not c.get("use_bidirectional_attention"),
        logit_cap=c.get("final_logit_softcapping"),
    )


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s = sizes(c)
    norm = partial(t.norm, "rms", eps=c["rms_norm_eps"], plus_one=True)
    posts, pres = (f"{stem}{x}_feedforward_layernorm.weight" in t for x in ("post", "pre"))
    normed = qk_norms(t, s, f"{stem}self_attn.", c["rms_norm_eps"], plus_one=True)
    slides = is_sliding(c, n)
    scale = c.get("query_pre_attn_scalar")
    before_mlp = "pre_feedforward_layernorm" if pres else "post_attention_layernorm"
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            layer_rotary(c, s["d_head"], slides),
            scale=None if scale is None else scale**-0.5,
            pre_norm=norm(f"{stem}input_layernorm"),
            post_norm=norm(f"{stem}post_attention_layernorm") if posts else None,
            **normed,
            cap=None if normed["q_norm"] else c.get("attn_logit_softcapping"),
            window=window(c) if slides else None,
        ),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            activation(c),
            pre_norm=norm(stem + before_mlp),
            post_norm=norm(f"{stem}post_feedforward_layernorm") if posts else None,
        ),
    )


def activation(c: Config) -> str:
    """The first Gemma configs say "gelu" and mean the approximation."""
    if given := c.get("hidden_activation"):
        return str(given)
    return "gelu_pytorch_tanh" if c["hidden_act"] == "gelu" else str(c["hidden_act"])


def window(c: Config) -> int | None:
    """EmbeddingGemma looks both ways, half of its window to each side."""
    width: int | None = c.get("sliding_window")
    if width is None or not c.get("use_bidirectional_attention"):
        return width
    return width // 2 + 1


def is_sliding(c: Config, n: int) -> bool:
    """Every second (Gemma 2) or all but every sixth layer (Gemma 3) looks through a window."""
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    pattern = c.get("_sliding_window_pattern") or c.get("sliding_window_pattern")
    return bool(pattern) and (n + 1) % pattern != 0


def layer_rotary(c: Config, d_head: int, slides: bool) -> Rotary:
    local = c.get("rope_local_base_freq")
    kind = "sliding_attention" if slides else "full_attention"
    nested = isinstance((c.get("rope_parameters") or {}).get(kind), dict)
    if local and slides and not nested:
        return rotary({"rope_theta": local}, d_head)
    return rotary(c, d_head, layer_type=kind)


def gemma2_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """The scale of the queries is not stored: the 27-billion models alone use d_model / n_heads."""
    large = c["num_hidden_layers"] in (46, 62)
    width = c["hidden_size"] // c["num_attention_heads"]
    return {
        "query_pre_attn_scalar": width if large else c["head_dim"],
        "sliding_window": m.length("attention.sliding_window"),
        "attn_logit_softcapping": m.get("attn_logit_softcapping"),
        "final_logit_softcapping": m.get("final_logit_softcapping"),
    }


def gemma3_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Only models without windows lack their size."""
    common = gemma2_gguf(m, c)
    return {
        **common,
        "rope_local_base_freq": m.get("rope.freq_base_swa"),
        "sliding_window_pattern": None if common["sliding_window"] else 1,
    }


def embedding_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """EmbeddingGemma: Gemma 3 that sees both ways, without a head."""
    own = {"use_bidirectional_attention": True, "architectures": ["Gemma3TextModel"]}
    return gemma3_gguf(m, c) | own


def plus_one(names: gguf.Names) -> gguf.Names:
    return {ours: gguf.GGUFSource(str(theirs), added=1.0) for ours, theirs in names.items()}


GEMMA_GGUF: gguf.Names = {
    **gguf.LLAMA,
    **plus_one({"model.norm": "output_norm", **gguf.NORMS}),
}
GEMMA2_GGUF: gguf.Names = {
    **GEMMA_GGUF,
    **plus_one(
        {
            f"{gguf.LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
            f"{gguf.LAYER}pre_feedforward_layernorm": "blk.{n}.ffn_norm",
            f"{gguf.LAYER}post_feedforward_layernorm": "blk.{n}.post_ffw_norm",
        }
    ),
}
GEMMA3_GGUF: gguf.Names = {**GEMMA2_GGUF, **plus_one(gguf.QK_NORMS)}
gguf.declare("gemma", gguf.Naming("gemma", GEMMA_GGUF))
gguf.declare("gemma2", gguf.Naming("gemma2", GEMMA2_GGUF, gemma2_gguf))
gguf.declare("gemma3", gguf.Naming("gemma3_text", GEMMA3_GGUF, gemma3_gguf))
gguf.declare(
    "gemma-embedding", gguf.Naming("gemma3_text", gguf.name_body(GEMMA3_GGUF), embedding_gguf)
)
