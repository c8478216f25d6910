"""The models that stand for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from lexray.families.spec import Architecture, Attention
from lexray.model.model import Model
from tests.families.span import span, structure, traits
from tests.families.zoo import VARIANTS, build

pytestmark = pytest.mark.slow  # all variants are built


@pytest.fixture(scope="module")
def zoo() -> dict[str, frozenset[str]]:
    return {variant.name: traits(variant.name) for variant in VARIANTS}


@pytest.fixture(scope="module")
def chosen(zoo: dict[str, frozenset[str]]) -> tuple[str, ...]:
    return span(zoo)


def test_every_trait_of_the_zoo_is_in_the_span(
    zoo: dict[str, frozenset[str]], chosen: tuple[str, ...]
) -> None:
    missing = frozenset().union(*zoo.values()) - frozenset().union(*(zoo[n] for n in chosen))
    assert not missing


def test_nobody_is_taken_for_nothing(
    zoo: dict[str, frozenset[str]], chosen: tuple[str, ...]
) -> None:
    for i, name in enumerate(chosen):
        assert zoo[name] - frozenset().union(*(zoo[n] for n in chosen[:i])), name
    assert len(chosen) < len(zoo) * 0.75


def test_what_makes_structures_differ_is_seen(
    zoo: dict[str, frozenset[str]], chosen: tuple[str, ...]
) -> None:
    """Each of these is told apart by some trait; look-alikes are not."""
    kinds = {
        "norms before": ("gpt2", "opt-350m"),
        "norms after": ("gemma2", "gemma"),
        "no norms before": ("olmo2", "llama"),
        "beside each other": ("gptj", "gpt2"),
        "shared keys": ("llama", "neox"),
        "one key for all": ("falcon-7b", "falcon-new"),
        "experts": ("mixtral", "llama"),
        "a shared expert": ("qwen2-moe", "mixtral"),
        "norms of queries": ("qwen3", "llama"),
        "a joint norm of queries": ("olmo2", "qwen3"),
        "pairs turned": ("gptj", "neox"),
        "part turned": ("neox", "llama"),
        "ALiBi": ("bloom", "gpt2"),
        "learned positions": ("gpt2", "llama"),
        "both ways": ("bert", "gpt2"),
        "untied": ("gpt2-untied-wide", "gpt2"),
        "biases": ("llama-biased-tied", "llama"),
        "caps": ("gemma2", "llama"),
        "clipped": ("olmo-clipped", "olmo"),
        "windows": ("mistral", "llama"),
        "an embedding of another width": ("opt-350m", "opt"),
        "attention of its own": ("bloom", "llama"),
    }
    for what, (name, other) in kinds.items():
        assert zoo[name] - zoo[other], what
    for name, alike in (("llama3-rope", "llama"), ("gpt2-inverse-layer", "gpt2")):
        assert zoo[name] == zoo[alike]
        assert name not in chosen


def test_a_new_structure_is_taken_by_itself() -> None:
    """Where a family brings a field that the description did not have, and where a number is."""

    @dataclass(frozen=True)
    class Anchored(Attention):
        anchors: str | None = None

    module = build("llama")
    a = Model.from_module(module).architecture
    first, *rest = a.blocks
    anchored = Anchored(**vars(first.attention), anchors="model.layers.0.self_attn.anchors")
    grown = replace(a, blocks=(replace(first, attention=anchored), *rest))
    scaled = replace(a, logit_scale=0.5, embed_scale=3.0)
    some = {"llama": structure(a, module), "again": structure(a, module)}
    some |= {"grown": structure(grown, module), "scaled": structure(scaled, module)}
    assert span(some) == ("llama", "grown", "scaled")
    assert any("anchors: a tensor" in trait for trait in some["grown"])


def test_sizes_are_no_structure() -> None:
    module = build("llama")
    a: Architecture = Model.from_module(module).architecture
    assert structure(replace(a, d_mlp=99, d_vocab=5000), module) == structure(a, module)
