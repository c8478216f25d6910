"""Pieces that many families share, in the names that most configs use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from lexray.families.linear import Heads, Linear, Norm, in_order
from lexray.families.registry import Config, Names
from lexray.families.rotary import Rotary
from lexray.families.spec import Architecture, Attention, Block, FeedForward, QKNorm


class Sizes(TypedDict):
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int | None


def sizes(c: Config) -> Sizes:
    """The sizes, from the keys of Llama's config, which most newer families use too."""
    d_model, n_heads = c["hidden_size"], c["num_attention_heads"]
    return {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": c.get("num_key_value_heads") or n_heads,
        "d_head": c.get("head_dim") or d_model // n_heads,
        "d_mlp": c.first("intermediate_size", "moe_intermediate_size"),
        "d_vocab": c["vocab_size"],
        "n_ctx": c.get("max_position_embeddings"),
    }


def gpt_sizes(c: Config) -> Sizes:
    """The sizes, from the keys of GPT-2's config."""
    return {
        "d_model": c["n_embd"],
        "n_heads": c["n_head"],
        "n_kv_heads": c["n_head"],
        "d_head": c["n_embd"] // c["n_head"],
        "d_mlp": c.get("n_inner") or 4 * c["n_embd"],
        "d_vocab": c["vocab_size"],
        "n_ctx": c["n_positions"],
    }


class Projections(TypedDict):
    q: Heads
    k: Heads
    v: Heads
    o: Linear


def projections(
    t: Names,
    stem: str,
    s: Sizes,
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
) -> Projections:
    """Four separate linear maps, heads in order."""
    q, k, v, o = (t.linear(stem + name) for name in names)
    return {
        "q": in_order(q, s["n_heads"], s["d_head"]),
        "k": in_order(k, s["n_kv_heads"], s["d_head"]),
        "v": in_order(v, s["n_kv_heads"], s["d_head"]),
        "o": o,
    }


def fused(t: Names, qkv: str, o: str, s: Sizes, **layout: Any) -> Projections:
    """One linear map for all queries, then all keys, then all values."""
    n_q, n_kv = s["n_heads"] * s["d_head"], s["n_kv_heads"] * s["d_head"]
    starts = {"q": (0, n_q), "k": (n_q, n_kv), "v": (n_q + n_kv, n_kv)}
    q, k, v = (
        in_order(t.linear(qkv, start=start, size=size, **layout), size // s["d_head"], s["d_head"])
        for start, size in starts.values()
    )
    return {"q": q, "k": k, "v": v, "o": t.linear(o, **layout)}


def plain(
    t: Names,
    stem: str,
    d_mlp: int,
    activation: str,
    names: tuple[str, str] = ("up_proj", "down_proj"),
    **norms: Any,
) -> FeedForward:
    """A feed-forward without gates."""
    w_in, w_out = (t.linear(stem + name) for name in names)
    return FeedForward(w_in, w_out, activation, d_mlp, **norms)


def gated_at_once(t: Names, stem: str, d_mlp: int, activation: str, **norms: Any) -> FeedForward:
    """Phi-3's gate_up_proj, gate | up, and down_proj."""
    return FeedForward(
        w_in=t.linear(f"{stem}gate_up_proj", start=d_mlp, size=d_mlp),
        w_gate=t.linear(f"{stem}gate_up_proj", start=0, size=d_mlp),
        w_out=t.linear(f"{stem}down_proj"),
        activation=activation,
        d_mlp=d_mlp,
        **norms,
    )


def gated(t: Names, stem: str, d_mlp: int, activation: str, **norms: Any) -> FeedForward:
    """Llama's gate_proj, up_proj and down_proj."""
    return FeedForward(
        w_in=t.linear(f"{stem}up_proj"),
        w_gate=t.linear(f"{stem}gate_proj"),
        w_out=t.linear(f"{stem}down_proj"),
        activation=activation,
        d_mlp=d_mlp,
        **norms,
    )


def same_for_all(norm: Norm, n_heads: int, *, turned: bool = False) -> QKNorm:
    """One norm of width d_head that every head uses."""
    return QKNorm(heads=(norm,) * n_heads, turned=turned)


def qk_norms(
    t: Names, s: Sizes, stem: str, eps: float, names: str = "{}_norm", **options: Any
) -> dict[str, Any]:
    """RMSNorms of each head's queries and keys, if the checkpoint has them."""
    stems = [stem + names.format(x) for x in ("q", "k")]
    if f"{stems[0]}.weight" not in t:
        return {"q_norm": None, "k_norm": None}
    turned = options.pop("turned", False)
    q, k = (t.norm("rms", name, eps, **options) for name in stems)
    return {
        "q_norm": same_for_all(q, s["n_heads"], turned=turned),
        "k_norm": same_for_all(k, s["n_kv_heads"], turned=turned),
    }


def decoder(
    c: Config,
    t: Names,
    block: Callable[[Config, Names, str, int], Block],
    norm: Callable[[str], Norm],
    last: str = "norm",
    **rest: Any,
) -> Architecture:
    """Llama's skeleton: embed_tokens, layers, norm (or what `last` calls it), lm_head. `block` and
    `norm` are told names."""
    body = t.prefix("embed_tokens.weight", "model.", "")
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.", n) for n in range(c["num_hidden_layers"])),
        final_norm=norm(f"{body}{last}"),
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
        **rest,
    )


def attention(
    p: Projections, s: Sizes, rotary: Rotary | None = None, scale: float | None = None, **rest: Any
) -> Attention:
    """Scaled dot-product attention; the scale is d_head^-½ unless given."""
    return Attention(**p, rotary=rotary, scale=scale or s["d_head"] ** -0.5, **rest)


def unembedding(c: Config, t: Names, embed: str, *names: str) -> dict[str, Any]:
    """The output embedding: the input's when tied, else the first of `names` that exists."""
    if c["tie_word_embeddings"]:
        bias = t.pick(*(name.replace(".weight", ".bias") for name in names))
        return {"embed": embed, "unembed": embed, "unembed_bias": bias, "tied": True}
    weight = t.pick(*names) or t.prefix(names[0], "") + names[0]
    bias = t.pick(weight.replace(".weight", ".bias"))
    return {"embed": embed, "unembed": weight, "unembed_bias": bias, "tied": False}
