"""GPT-J: parallel block behind one LayerNorm, adjacent-pair rotary on the first `rotary_dim`."""

from __future__ import annotations

from collections.abc import Callable

from lexray.families.parts import Sizes, attention, gpt_sizes, projections, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "n_positions": 2048,
    "rotary_dim": 64,
}
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


@family("gptj", title="GPT-J", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return assemble(c, t, block)


def assemble(
    c: Config, t: Names, block: Callable[[Config, Names, Sizes, str], Block]
) -> Architecture:
    body = t.prefix("wte.weight", "transformer.", "")
    s = gpt_sizes(c)
    return Architecture(
        **s,
        blocks=tuple(block(c, t, s, f"{body}h.{n}.") for n in range(c["n_layer"])),
        final_norm=t.norm("layer", f"{body}ln_f", c["layer_norm_epsilon"]),
        **unembedding(c, t, f"{body}wte.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    norm = t.norm("layer", f"{stem}ln_1", c["layer_norm_epsilon"])
    return Block(
        attention(
            projections(t, f"{stem}attn.", s, NAMES),
            s,
            rotary({}, s["d_head"], kind="pair", dims=c["rotary_dim"]),
            pre_norm=norm,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.fc_in"),
            w_out=t.linear(f"{stem}mlp.fc_out"),
            activation=c["activation_function"],
            d_mlp=s["d_mlp"],
            pre_norm=norm,
        ),
        parallel=True,
    )
