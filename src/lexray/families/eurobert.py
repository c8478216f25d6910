"""EuroBERT: Llama that sees both ways."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import llama
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture


@family("eurobert", title="EuroBERT", defaults=llama.DEFAULTS | {"rms_norm_eps": 1e-5})
def describe(c: Config, t: Names) -> Architecture:
    return replace(llama.describe(c, t), causal=False)
