"""CodeGen: GPT-J with one fused matrix, cut in four for the four cores it was trained on, each of
which holds the queries, values and keys of a quarter of the heads."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import gptj
from lexray.families.linear import Heads
from lexray.families.parts import Projections, Sizes
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

CORES = 4


@family("codegen", title="CodeGen", defaults=gptj.DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return gptj.assemble(c, t, block)


def block(c: Config, t: Names, s: Sizes, stem: str) -> Block:
    plain = gptj.block(c, t, s, stem)
    return replace(plain, attention=replace(plain.attention, **heads(t, s, f"{stem}attn.")))


def heads(t: Names, s: Sizes, stem: str) -> Projections:
    qkv, width, each = t.linear(f"{stem}qkv_proj"), s["d_head"], s["n_heads"] // CORES
    starts = [
        tuple(((h // each * 3 + part) * each + h % each) * width for h in range(s["n_heads"]))
        for part in range(3)
    ]
    q, v, k = (Heads(qkv, start, width) for start in starts)
    return {"q": q, "k": k, "v": v, "o": t.linear(f"{stem}out_proj")}
