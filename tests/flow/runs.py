"""Traces of the zoo's models, and what of them a graph shows."""

from __future__ import annotations

from functools import cache

from lexray.flow.build.build import draw_draft
from lexray.flow.build.draft import Draft
from lexray.flow.flow import Flow
from lexray.flow.options import BlockOptions
from lexray.trace.attribute.moment import Moment
from lexray.trace.trace import Trace
from tests.vocabulary.vocabularies import worded

KINDS = [
    *("gpt2", "gptj", "neox", "opt-350m", "bloom", "llama", "mixtral", "qwen2-moe", "qwen3"),
    *("gemma2", "falcon-new", "olmo2", "bert", "modernbert"),
]
"""One of each shape that blocks have."""
IDS = [5, 11, 3, 29, 36, 11, 20]
SOME = BlockOptions(heads=2, memories=2, neurons=(3, 2), static=True, k=4)
NOTHING = BlockOptions(heads=0, memories=0, neurons=(0, 0))
ALL = BlockOptions(
    heads=99, memories=99, neurons=(999, 999), merge_qk=True, merge_neurons=True, static=False, k=4
)


@cache
def traced(name: str) -> Trace:
    return worded(name).trace(IDS)


@cache
def drafted(name: str, options: BlockOptions, position: int = 6, target: int = 3) -> Draft:
    trace = traced(name)
    return draw_draft(Moment.of(trace, position), trace.layers, target, options)


@cache
def graphed(name: str, options: BlockOptions = SOME) -> Flow:
    return traced(name).flow(**vars(options))
