"""StableLM: Llama's names with LayerNorm, a quarter of each head rotary, optionally parallel."""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, QKNorm

DEFAULTS = {"tie_word_embeddings": False, "layer_norm_eps": 1e-5, "hidden_act": "silu"}


@family("stablelm", title="StableLM", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("layer", stem, c["layer_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["layer_norm_eps"]
    parallel = bool(c.get("use_parallel_residual"))
    before_mlp = "input_layernorm" if parallel else "post_attention_layernorm"
    qk = c.get("qk_layernorm")
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"], partial=c.get("rope_pct", 0.25)),
            pre_norm=t.norm("layer", f"{stem}input_layernorm", eps),
            q_norm=per_head(t, f"{stem}self_attn.q_layernorm", s["n_heads"], eps) if qk else None,
            k_norm=per_head(t, f"{stem}self_attn.k_layernorm", s["n_kv_heads"], eps)
            if qk
            else None,
        ),
        gated(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            pre_norm=t.norm("layer", stem + before_mlp, eps),
        ),
        parallel=parallel,
    )


def per_head(t: Names, stem: str, n: int, eps: float) -> QKNorm:
    """Each head has a norm of its own."""
    return QKNorm(heads=tuple(t.norm("layer", f"{stem}.norms.{h}", eps) for h in range(n)))


def stablelm_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """Files without a norm before the feed-forward are parallel, whatever their metadata says."""
    m.need("rope.dimension_count")
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in m.file.names(),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in m.file.names(),
    }


STABLELM_GGUF: gguf.Names = {
    **gguf.LLAMA,
    **{
        f"{gguf.LAYER}self_attn.{x}_layernorm.norms.{{i}}": gguf.GGUFSource(
            f"blk.{{n}}.attn_{x}_norm", stacked=True
        )
        for x in "qk"
    },
}
gguf.declare("stablelm", gguf.Naming("stablelm", STABLELM_GGUF, stablelm_gguf))
