"""EuroBERT: Llama that sees both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families import llama
from lexray.families.gguf import names as gguf
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture


@family("eurobert", title="EuroBERT", defaults=llama.DEFAULTS | {"rms_norm_eps": 1e-5})
def describe(c: Config, t: Names) -> Architecture:
    return replace(llama.describe(c, t), causal=False)


def gguf_config(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {"architectures": ["EuroBertModel"]}


gguf.declare("eurobert", gguf.Naming("eurobert", gguf.name_body(gguf.LLAMA), gguf_config))
