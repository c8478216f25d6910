"""Configs that speak of experts without end: each would be described, for hours and gigabytes."""

from __future__ import annotations

import pytest

from lexray.errors import LexrayError
from lexray.families import find_family
from lexray.families.experts import MOST, each_expert
from tests.families import zoo

KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MIXTURES = [
    pytest.param(variant.name, key, id=variant.name)
    for variant in zoo.VARIANTS
    for key in KEYS
    if isinstance(variant.options.get(key), int)
]


@pytest.mark.parametrize(("name", "key"), MIXTURES)
def test_experts_without_end(name: str, key: str) -> None:
    model = zoo.build(name)
    config = model.config.to_dict()
    assert find_family(config).architecture(config, model.state_dict().keys()).blocks
    with pytest.raises(LexrayError, match="2147483648 experts"):
        find_family(config).architecture(config | {key: 2**31}, model.state_dict().keys())


def test_as_many_as_models_have() -> None:
    assert [*each_expert(3)] == [0, 1, 2]
    assert len(each_expert(MOST)) == MOST
    for n in (0, -1, MOST + 1):
        with pytest.raises(ValueError, match=f"{n} experts"):
            each_expert(n)
