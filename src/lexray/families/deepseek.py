"""DeepSeek V2, V3 and V3.2, and those built alike: latent attention (Kimi K2, GLM-4.7-Flash,
GLM-5, Mistral 4, whose queries grow with their position, and Youtu-LLM and MiniCPM 3, which have
no experts).

Keys and values come out of one narrow latent, which is normed; beside it stands a part of the keys
that all heads share, and that alone is rotary. Queries may come out of a latent of their own. V3.2
attends to those positions only that an indexer chooses; which, shows in a trace. In GLM-5 a layer
may go by the choice of an earlier one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from lexray.families.experts import DEEPSEEK, deepseek_feed_forward
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.gguf.config import common_config, head_length
from lexray.families.gguf.config import rope_parameters as gguf_rope
from lexray.families.linear import Heads, Latent, Linear, Norm, in_order
from lexray.families.llama import temperature
from lexray.families.parts import Projections, Sizes, attention, decoder
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import Rotary, rope_parameters, rotary
from lexray.families.spec import Architecture, Attention, Block

DEFAULTS = DEEPSEEK | {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
V2 = DEFAULTS | {"norm_topk_prob": False, "n_shared_experts": 2, "topk_method": "greedy"}
V3 = DEFAULTS | {
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "rope_interleave": True,
}
GLM = DEFAULTS | {"rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8, "first_k_dense_replace": 1}
MISTRAL4 = DEFAULTS | {
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "num_experts_per_tok": 4,
    "rope_interleave": True,
}
GLM5 = V3 | {
    "rms_norm_eps": 1e-5,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
}
YOUTU = DEFAULTS | {"tie_word_embeddings": True, "first_k_dense_replace": 1 << 20}
MINICPM = YOUTU | {
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "rope_interleave": False,
    "v_head_dim": None,
    "scale_emb": 12.0,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}
INDEXER = tuple(
    f"indexer.{name}"
    for name in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
)
LATENT_EPS = 1e-6
"""The norms of latents do not follow the config."""


@family("deepseek_v2", title="DeepSeek V2", defaults=V2)
@family("deepseek_v3", "kimi_k2", title="DeepSeek V3", defaults=V3)
@family("deepseek_v32", title="DeepSeek V3.2", defaults=V3)
@family("glm_moe_dsa", title="GLM-5", defaults=GLM5)
@family("mistral4", title="Mistral 4", defaults=MISTRAL4)
@family("youtu", title="Youtu-LLM", defaults=YOUTU)
@family("glm4_moe_lite", title="GLM-4.7-Flash", defaults=GLM | {"rope_interleave": True})
def describe(c: Config, t: Names) -> Architecture:
    width = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    whole = decoder(c, t, block, partial(t.norm, "rms", eps=c["rms_norm_eps"]))
    return replace(whole, d_head=width, n_kv_heads=whole.n_heads)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    norm = t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"])
    return Block(attend(c, t, stem, n), deepseek_feed_forward(c, t, stem, n, norm, **routing(c)))


def attend(c: Config, t: Names, stem: str, n: int) -> Attention:
    width = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    s: Sizes = {"d_head": width}  # type: ignore[typeddict-item]  # all that is asked for
    return attention(
        heads(c, t, f"{stem}self_attn."),
        s,
        turns(c),
        scale=width**-0.5 * stretch(c),
        pre_norm=t.norm("rms", f"{stem}input_layernorm", c["rms_norm_eps"]),
        temperature=temperature(c),
        others=indexer(t, stem),
        chosen_by=chooser(c, t, stem, n),
    )


@family("minicpm3", title="MiniCPM 3", defaults=MINICPM)
def describe_minicpm(c: Config, t: Names) -> Architecture:
    """Factors on embeddings, on what sub-blocks write, and on logits."""
    values = c.get("v_head_dim") or c["hidden_size"] // c["num_attention_heads"]
    c = c.with_entries(v_head_dim=values)
    whole, depth = describe(c, t), c.get("scale_depth") or c["num_hidden_layers"] ** 0.5
    times = Norm("fixed", None, factor=depth / c["num_hidden_layers"] ** 0.5)
    blocks = (
        replace(
            b, attention=replace(b.attention, post_norm=times), ff=replace(b.ff, post_norm=times)
        )
        for b in whole.blocks
    )
    scale = (c.get("dim_model_base") or c["hidden_size"]) / c["hidden_size"]
    return replace(
        whole, blocks=tuple(blocks), embed_scale=float(c["scale_emb"]), logit_scale=scale
    )


def indexer(t: Names, stem: str) -> tuple[str, ...]:
    """The tensors that choose the positions, where a layer has them."""
    return tuple(name for x in INDEXER if (name := f"{stem}self_attn.{x}") in t)


def chooser(c: Config, t: Names, stem: str, n: int) -> int | None:
    """The earlier layer by whose choice a layer goes that makes none, in a model that chooses."""
    layers = stem.removesuffix(f"{n}.")
    if c.get("model_type") != "glm_moe_dsa" or indexer(t, stem):
        return None
    return next((m for m in range(n - 1, -1, -1) if indexer(t, f"{layers}{m}.")), None)


def heads(c: Config, t: Names, stem: str) -> Projections:
    n, own, turned = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
    rank, values = c["kv_lora_rank"], c["v_head_dim"]
    down = partial(t.linear, f"{stem}kv_a_proj_with_mqa")
    up: dict[str, Any] = {
        "weight": f"{stem}kv_b_proj.weight",
        "down": down(start=0, size=rank),
        "norm": t.norm("rms", f"{stem}kv_a_layernorm", LATENT_EPS),
    }
    shared = {"tail": down(start=rank, size=turned), "content": own, "spacing": own + values}
    starts = tuple(h * (own + values) + own for h in range(n))
    return {
        "q": in_order(queries(c, t, stem), n, own + turned),
        "k": in_order(Latent(**up, **shared), n, own + turned),
        "v": Heads(Latent(**up), starts, values),
        "o": t.linear(f"{stem}o_proj"),
    }


def queries(c: Config, t: Names, stem: str) -> Linear:
    rank = c.get("q_lora_rank")
    if rank is None:
        return t.linear(f"{stem}q_proj")
    return Latent(
        f"{stem}q_b_proj.weight",
        down=t.linear(f"{stem}q_a_proj", size=rank),
        norm=t.norm("rms", f"{stem}q_a_layernorm", LATENT_EPS),
    )


def turns(c: Config) -> Rotary:
    """The last dimensions of each head, as adjacent pairs unless the config says otherwise."""
    kind: Literal["pair", "half"] = "pair" if c.get("rope_interleave", True) else "half"
    dims = c["qk_rope_head_dim"]
    return replace(rotary(c, dims, kind=kind, dims=dims), start=c["qk_nope_head_dim"])


def stretch(c: Config) -> float:
    """What YaRN multiplies all scores by, turned dimensions or not."""
    p = rope_parameters(c, None, 10_000.0, 1.0)
    if p["rope_type"] == "default" or not p.get("mscale_all_dim") or p["factor"] <= 1:
        return 1.0
    return float(0.1 * p["mscale_all_dim"] * math.log(p["factor"]) + 1) ** 2


def routing(c: Config) -> dict[str, Any]:
    """Mistral 4 takes softmaxes; V2 too, and a group for as good as its best expert."""
    if c.get("model_type") == "mistral4":
        return {"score": "softmax"}
    if c.get("model_type") != "deepseek_v2":
        return {}
    limited = c["topk_method"] == "group_limited_greedy"
    groups = {} if limited else {"groups": 1, "kept": 1}
    return {"score": "softmax", "best": 1, **groups}


ATTENTION = f"{gguf.LAYER}self_attn."
LATENT_GGUF: gguf.Names = {
    **gguf.LLAMA,
    f"{ATTENTION}q_a_proj": "blk.{n}.attn_q_a",
    f"{ATTENTION}q_a_layernorm": "blk.{n}.attn_q_a_norm",
    f"{ATTENTION}q_b_proj": "blk.{n}.attn_q_b",
    f"{ATTENTION}kv_a_proj_with_mqa": "blk.{n}.attn_kv_a_mqa",
    f"{ATTENTION}kv_a_layernorm": "blk.{n}.attn_kv_a_norm",
}
HALVES = gguf.GGUFJoined(
    (
        gguf.GGUFSource("blk.{n}.attn_k_b", stacked=True, transposed=True),
        gguf.GGUFSource("blk.{n}.attn_v_b", stacked=True),
    )
)
"""Each head's keys and values, which the converter takes apart; the first files had them whole."""


def names_gguf(m: gguf.Keys) -> gguf.Names:
    split = layouts.width(m, "attn_k_b") is not None
    return {
        **LATENT_GGUF,
        f"{ATTENTION}kv_b_proj": HALVES if split else "blk.{n}.attn_kv_b",
        **layouts.name_experts(m),
        **layouts.DEEPSEEK,
    }


def direct(m: gguf.Keys) -> tuple[str, ...]:
    """That queries have no latent is said by null."""
    return () if m.length("attention.q_lora_rank") else ("q_lora_rank",)


def deepseek_gguf(m: gguf.Keys) -> gguf.Naming:
    """V2 takes softmaxes. Kimi K2 and GLM-4.7-Flash are built as V3 is, Youtu is so without
    experts; Mistral Large 3, whose queries grow with their position, as Mistral 4 is."""
    names, without = names_gguf(m), direct(m)
    if layouts.width(m, "ffn_gate_inp") is None:
        return gguf.Naming("youtu", names, latent_config, without)
    if m.get("attention.temperature_scale"):
        return mistral4_gguf(m)
    corrected = any(name.endswith(".exp_probs_b.bias") for name in m.file.names())
    sigmoid = m.get("expert_gating_func") == layouts.SIGMOID or corrected
    kind = "deepseek_v3" if sigmoid else "deepseek_v2"
    return gguf.Naming(kind, names, deepseek_config, without)


GROUPS = {256: (8, 4), 160: (8, 3)}
"""Of V3 and V2 by their number of experts: early files do not say it."""


def deepseek_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    own = latent_config(m, c) | layouts.deepseek_experts(m, c)
    if m.get("expert_group_count") is None:
        own["n_group"], own["topk_group"] = GROUPS.get(c["num_experts"], (1, 1))
    limited = own["n_group"] > 1
    return own | {"topk_method": "group_limited_greedy" if limited else "greedy"}


def latent_config(m: gguf.Keys, c: dict[str, Any], per_log: float = 0.1) -> dict[str, Any]:
    """The converter writes one head of keys and values, as wide as the latent and the shared part.

    Of YaRN it keeps `per_log` times a factor that both mscales are.
    """
    turned, rope = m.size("rope.dimension_count"), c["rope_scaling"]
    even = (m.get("rope.scaling.yarn_log_multiplier") or 0) / per_log
    if rope is not None and even:
        rope = rope | {"mscale": even, "mscale_all_dim": even}
    return {
        "q_lora_rank": m.length("attention.q_lora_rank"),
        "kv_lora_rank": m.size("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": c["head_dim"] - turned,
        "v_head_dim": head_length(m, "value", c["head_dim"]),
        "num_key_value_heads": c["num_attention_heads"],
        "head_dim": turned,
        "partial_rotary_factor": None,
        "rope_scaling": rope,
    }


INDEXER_GGUF: gguf.Names = {
    f"{ATTENTION}indexer.{ours}": f"blk.{{n}}.indexer.{theirs}"
    for ours, theirs in (
        ("wq_b", "attn_q_b"),
        ("wk", "attn_k"),
        ("k_norm", "k_norm"),
        ("weights_proj", "proj"),
    )
}


def glm5_gguf(m: gguf.Keys) -> gguf.Naming:
    return gguf.Naming("glm_moe_dsa", {**names_gguf(m), **INDEXER_GGUF}, glm5_config, direct(m))


def glm5_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    choose = set(layouts.layers_with(m, c, "indexer.attn_q_b"))
    kinds = ["full" if n in choose else "shared" for n in range(c["num_hidden_layers"])]
    return {
        **latent_config(m, c),
        **layouts.deepseek_experts(m, c),
        "index_n_heads": m.size("attention.indexer.head_count"),
        "index_head_dim": m.size("attention.indexer.key_length"),
        "index_topk": m.size("attention.indexer.top_k"),
        "indexer_types": kinds,
    }


def mistral4_gguf(m: gguf.Keys) -> gguf.Naming:
    """Experts as stacks, with gates and keys in one."""
    stacks = [gguf.GGUFSource(f"blk.{{n}}.ffn_{x}_exps.weight", exact=True) for x in ("gate", "up")]
    both: gguf.Stored = gguf.GGUFJoined(tuple(stacks), axis=1)
    if layouts.width(m, "ffn_gate_up_exps") is not None:
        both = gguf.GGUFSource("blk.{n}.ffn_gate_up_exps.weight", exact=True)
    down = gguf.GGUFSource("blk.{n}.ffn_down_exps.weight", exact=True)
    names = {ours: x for ours, x in names_gguf(m).items() if ".experts." not in ours}
    names |= {f"{layouts.MLP}experts.gate_up_proj": both, f"{layouts.MLP}experts.down_proj": down}
    return gguf.Naming("mistral4", names, mistral4_config, direct(m))


def mistral4_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp keeps how queries grow of files in Mistral's own format only."""
    own = latent_config(m, c) | layouts.deepseek_experts(m, c)
    share = gguf.share(own["qk_rope_head_dim"], c["head_dim"])
    beta = m.get("attention.temperature_scale") or 0.0
    rope = gguf_rope(c | own, partial_rotary_factor=share, llama_4_scaling_beta=beta)
    length = m.length("attention.temperature_length") or c["max_position_embeddings"]
    rope["rope_parameters"].setdefault("original_max_position_embeddings", length)
    return own | rope | {"head_dim": c["head_dim"], "norm_topk_prob": True}


def minicpm_gguf(m: gguf.Keys) -> gguf.Naming:
    """Its factors, which llama.cpp knows without being told, are those of the family."""
    names = {**LATENT_GGUF, f"{ATTENTION}kv_b_proj": "blk.{n}.attn_kv_b"}
    return gguf.Naming("minicpm3", names, minicpm_config, direct(m), common=minicpm_common)


def minicpm_common(m: gguf.Keys, kind: str) -> dict[str, Any]:
    return common_config(m, kind, d_value=minicpm_values(m))


def minicpm_values(m: gguf.Keys) -> int:
    """How wide values are where the file does not say it."""
    wide = m.size("embedding_length") // m.even("attention.head_count")
    return head_length(m, "value", max(wide, 1))


def minicpm_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return latent_config(m, c) | {"v_head_dim": minicpm_values(m)}


gguf.declare("deepseek2", deepseek_gguf)
gguf.declare("glm-dsa", glm5_gguf)
gguf.declare("mistral4", mistral4_gguf)
gguf.declare("minicpm3", minicpm_gguf)
