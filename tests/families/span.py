"""Which models of the zoo stand for all: of every trait that a structure can have, one model.

The oracles, the recording of a pass and its proof run on every variant: they show what its tensors
mean and where its modules are. What is derived from that (graphs, effects, studies …) sees only
the `Architecture` and the recording, so it can go wrong for a structure, but not for a family's
names. A trait is a field of that description and what is in it ("blocks.attention.sum_norm: Norm"),
or how parts stand to each other ("heads share keys: some"). A variant is in the span if it has a
trait that no variant before it has: a family with something new is taken by itself, also where the
description grows a new field for it, and one that is built like others is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

import pytest
from torch import nn

from lexray.families.spec import Architecture, Block
from lexray.model.model import Model
from lexray.trace.record.attention import eager_attention
from tests.families.zoo import VARIANTS, build
from tests.quick import KINDS, is_quick

LAYOUT = {"eps", "plus_one", "in_first", "start", "size", "expert", "starts"}
"""Fields that only say how a tensor is read: `Linear`, `Heads` and `Norm` settle them."""
NORMS = ("pre_norm", "post_norm", "sum_norm")


def span(zoo: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """The names with a trait that none before them has."""
    seen: set[str] = set()
    chosen = []
    for name, having in zoo.items():
        if not having <= seen:
            chosen.append(name)
            seen |= having
    return tuple(chosen)


@cache
def traits(name: str) -> frozenset[str]:
    """What the structure of the variant of this name has."""
    return structure(architecture(name), build(name))


@cache
def architecture(name: str) -> Architecture:
    """The description of the variant of this name."""
    return Model.from_module(build(name)).architecture


def structure(a: Architecture, module: nn.Module) -> frozenset[str]:
    """What there is in a description, and who runs the attention of the model that it describes."""
    found = [*_walk(a, ""), *_proportions(a)]
    for block in a.blocks:
        if block.attention.absent:
            continue
        attention = module.get_submodule(block.attention.module)
        own = eager_attention(attention) is None
        found.append(("attention is run by", type(attention).__name__ if own else "the interface"))
    return frozenset(f"{path}: {kind}" for path, kind in found)


def _walk(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every field below a described part."""
    for field in fields(node):
        if field.name in LAYOUT:
            continue
        value, here = getattr(node, field.name), f"{path}{field.name}"
        for part in value if isinstance(value, tuple) else (value,):
            if (kind := _kind(part, field.default)) is not None:
                yield here, kind
            if is_dataclass(part):
                yield from _walk(part, f"{here}.")


def _kind(value: Any, default: Any) -> str | None:
    """What a field has, not how large: a number is as usual or not, a tensor is there or not."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return None if default is MISSING else "as usual" if value == default else "not as usual"
    if isinstance(value, str):
        return "a tensor" if "." in value else value
    return type(value).__name__


def _proportions(a: Architecture) -> Iterator[tuple[str, str]]:
    """What no field says, and what arithmetic depends on: sizes and places that stand together."""
    yield "heads share keys", _share(a.n_kv_heads, a.n_heads)
    yield "heads fill the width", str(a.n_heads * a.d_head == a.d_model)
    yield "blocks of several kinds", str(len({frozenset(_walk(b, "")) for b in a.blocks}) > 1)
    for block in a.blocks:
        yield "norms", _norms(block)
        if (rotary := block.attention.rotary) is not None:
            yield "turned", _share(2 * len(rotary.frequencies), block.attention.q.d_head)


def _norms(block: Block) -> str:
    """Where a block has norms: the ways that the residual stream can take."""
    attention, ff = ([n for n in NORMS if getattr(x, n)] for x in (block.attention, block.ff))
    return f"{attention} {ff} {'beside each other' if block.parallel else 'in turn'}"


def _share(part: int, whole: int) -> str:
    return "all" if part == whole else "one" if part == 1 else "some"


STAND_INS = KINDS if is_quick() else span({v.name: traits(v.name) for v in VARIANTS})
"""The names of variants that have between them every trait of the zoo."""
ALONE = frozenset({"nemotron-h"})
"""Layers of one sub-block each: tests that name parts of the first or the last layer leave them to
`tests/families/test_hybrids.py`."""
WHOLE = tuple(name for name in STAND_INS if name not in ALONE)
spanning = pytest.mark.parametrize("name", WHOLE)
every_variant = pytest.mark.parametrize("name", [v.name for v in VARIANTS if v.name not in ALONE])
