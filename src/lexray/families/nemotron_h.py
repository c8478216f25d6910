"""Nemotron-H and Nemotron 3: every layer is one sub-block behind a norm: a state space, attention
without positions, a feed-forward (squared ReLU), or experts."""

from __future__ import annotations

from typing import Any

from lexray.errors import LexrayError
from lexray.families.experts import each_expert
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Linear, Norm
from lexray.families.mixers import MAMBA2, mixer, no_attention, no_feed_forward
from lexray.families.parts import attention, plain, projections, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block, Experts, FeedForward, Routing

DEFAULTS = {
    "tie_word_embeddings": False,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_experts_per_tok": 2,
}


@family("nemotron_h", title="Nemotron-H", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embeddings.weight", "backbone.", "model.")
    if f"{body}embeddings.weight" not in t:
        body = t.prefix("embed_tokens.weight", "model.")
    embed = t.pick(f"{body}embeddings.weight") or f"{body}embed_tokens.weight"
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.") for n in range(count(c))),
        final_norm=t.norm("rms", f"{body}norm_f", c["layer_norm_epsilon"]),
        **unembedding(c, t, embed, "lm_head.weight"),
    )


def count(c: Config) -> int:
    """The number of layers, which newer configs give as the list of their kinds."""
    kinds = c.get("layers_block_type") or c.get("hybrid_override_pattern")
    return len(kinds) if kinds else int(c["num_hidden_layers"])


def block(c: Config, t: Names, stem: str) -> Block:
    s, own = sizes(c), f"{stem}mixer."
    norm = t.norm("rms", f"{stem}norm", c["layer_norm_epsilon"])
    heads, ff = no_attention(s), no_feed_forward(s, c["mlp_hidden_act"])
    if f"{own}q_proj.weight" in t:
        return Block(attention(projections(t, own, s), s, pre_norm=norm), ff)
    if f"{own}in_proj.weight" in t:
        return Block(heads, ff, mixer=state_space(c, t, own, norm))
    if f"{own}gate.weight" in t:
        return Block(heads, experts(c, t, own, norm))
    return Block(heads, plain(t, own, s["d_mlp"], c["mlp_hidden_act"], pre_norm=norm))


def state_space(c: Config, t: Names, stem: str, norm: Norm) -> Any:
    n = c["mamba_num_heads"]
    d_inner = n * c["mamba_head_dim"]
    width = {"in_proj": 2 * d_inner + 2 * c["n_groups"] * c["ssm_state_size"] + n}
    return mixer(t, stem, width, d_inner, "state space", MAMBA2, pre_norm=norm)


def experts(c: Config, t: Names, stem: str, norm: Norm) -> Experts:
    """Without gates; the shared one is wider."""
    if c.get("moe_latent_size") is not None:
        raise LexrayError(
            "this Nemotron's experts work in a latent of "
            f"{c['moe_latent_size']} dimensions, which lexray does not read"
        )
    act, width = c["mlp_hidden_act"], c["moe_intermediate_size"]
    stacked = f"{stem}experts.up_proj" in t

    def expert(e: int) -> FeedForward:
        if not stacked:
            return plain(t, f"{stem}experts.{e}.", width, act)
        w_in, w_out = (Linear(f"{stem}experts.{name}_proj", expert=e) for name in ("up", "down"))
        return FeedForward(w_in, w_out, act, width)

    return Experts(
        router=t.linear(f"{stem}gate"),
        experts=tuple(map(expert, each_expert(c.first("n_routed_experts", "num_local_experts")))),
        top_k=c["num_experts_per_tok"],
        normalise=c["norm_topk_prob"],
        module=stem.removesuffix("."),
        routing=Routing(
            score="sigmoid",
            correction=t.pick(f"{stem}gate.e_score_correction_bias"),
            groups=c["n_group"],
            kept=c["topk_group"],
            scale=c["routed_scaling_factor"],
        ),
        shared=plain(t, f"{stem}shared_experts.", c["moe_shared_expert_intermediate_size"], act),
        pre_norm=norm,
    )


OWN = "backbone.layers.{n}.mixer."


def gguf_names(m: gguf.Keys) -> gguf.Naming:
    turned = {f"{OWN}{name.rpartition('.')[2]}": source for name, source in gguf.TURNED.items()}
    names: gguf.Names = {
        "backbone.embeddings": "token_embd",
        "backbone.norm_f": "output_norm",
        "lm_head": "output",
        "backbone.layers.{n}.norm": "blk.{n}.attn_norm",
        **turned,
        f"{OWN}v_proj": "blk.{n}.attn_v",
        f"{OWN}o_proj": "blk.{n}.attn_output",
        **layouts.name_mamba2(OWN),
        f"{OWN}up_proj": "blk.{n}.ffn_up",
        f"{OWN}down_proj": "blk.{n}.ffn_down",
        f"{OWN}gate": "blk.{n}.ffn_gate_inp",
        f"{OWN}experts.{{i}}.up_proj": gguf.GGUFSource("blk.{n}.ffn_up_exps", stacked=True),
        f"{OWN}experts.{{i}}.down_proj": gguf.GGUFSource("blk.{n}.ffn_down_exps", stacked=True),
        f"{OWN}shared_experts.up_proj": "blk.{n}.ffn_up_shexp",
        f"{OWN}shared_experts.down_proj": "blk.{n}.ffn_down_shexp",
        **layouts.name_correction(f"{OWN}gate.e_score_correction_bias"),
    }
    return gguf.Naming("nemotron_h", names, gguf_config)


KINDS = {"attn_output": "attention", "ssm_in": "mamba", "ffn_gate_inp": "moe", "ffn_up": "mlp"}
"""What a layer is, by a tensor that it has."""


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    by_layer = {n: kind for x, kind in KINDS.items() for n in layouts.layers_with(m, c, x)}
    if sorted(by_layer) != [*range(c["num_hidden_layers"])]:
        raise LexrayError(f"{m.file.name} has layers that are neither attention nor anything known")
    state = layouts.mamba2_config(m, c)
    return layouts.deepseek_experts(m, c) | {
        "layers_block_type": [by_layer[n] for n in range(c["num_hidden_layers"])],
        "layer_norm_epsilon": c["rms_norm_eps"],
        "mamba_num_heads": state["mamba_n_heads"],
        "mamba_head_dim": state["mamba_d_head"],
        "n_groups": state["mamba_n_groups"],
        "ssm_state_size": state["mamba_d_state"],
        "conv_kernel": state["mamba_d_conv"],
        "expand": state["mamba_expand"],
        "moe_latent_size": m.length("moe_latent_size"),
        "moe_shared_expert_intermediate_size": layouts.width(m, "ffn_up_shexp"),
        "n_shared_experts": m.get("expert_shared_count"),
    }


gguf.declare("nemotron_h", gguf_names)
gguf.declare("nemotron_h_moe", gguf_names)
