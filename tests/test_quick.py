"""What `--quick` leaves of the suite."""

from __future__ import annotations

from tests.families.zoo import VARIANTS
from tests.quick import KINDS, spread


def test_the_kinds_are_of_the_zoo() -> None:
    assert set(KINDS) <= {variant.name for variant in VARIANTS}


def test_a_few_cases_are_spread() -> None:
    assert spread("abcdefg", 3) == ["a", "d", "g"]
    assert spread("abcdefg", 2) == ["a", "g"]
    assert spread("ab", 3) == ["a", "b"]
