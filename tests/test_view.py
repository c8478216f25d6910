"""How a model is read: frozen options, checked, and said in words."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from lexray.errors import LexrayError
from lexray.view import RAW, STANDARD, View


def test_frozen_and_comparable() -> None:
    view: Any = View(folded=True)
    with pytest.raises(FrozenInstanceError):
        view.folded = False
    assert view == View(folded=True)
    assert len({View(), View(), View(offset=-1)}) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "raw"),
        ({"folded": True}, "folded"),
        ({"folded": True, "offset": -1}, "folded, offset -1"),
        ({"inverse": "pinv", "centred": True}, "raw, E′ = E⁺, centred"),
        (
            {"folded": True, "standardised": True, "trained": True},
            "standard, output embedding on the reading side",
        ),
        (
            {"standardised": True, "reading": "effective"},
            "raw, standardised, effective embedding on the reading side",
        ),
        (
            {"calibrated": True, "reading": "input"},
            "raw, calibrated, input embedding on the reading side",
        ),
    ],
)
def test_said_in_words(options: dict[str, Any], said: str) -> None:
    assert str(View(**options)) == said


def test_views_that_differ_are_said_differently() -> None:
    """What a result says about its view must tell it from others."""
    others: list[dict[str, Any]] = [
        {"folded": True},
        {"inverse": "pinv"},
        {"centred": True},
        {"calibrated": True},
        {"standardised": True},
        {"reading": "input"},
        {"trained": True},
        {"offset": 3},
        {"head": "jacobian"},
    ]
    assert {next(iter(other)) for other in others} == set(View.options()), "a new option?"
    assert len({str(View(**other)) for other in [{}, *others]}) == len(others) + 1


@pytest.mark.parametrize("name", ["inverse", "reading"])
def test_unknown_values_are_told_the_known_ones(name: str) -> None:
    known = "transpose, pinv" if name == "inverse" else "output, input, effective"
    view = View()
    object.__setattr__(view, name, "sideways")  # else the type checker of the tests speaks first
    with pytest.raises(LexrayError, match=f"no {name}='sideways'; try one of {known}"):
        view.__post_init__()


def test_options_are_the_fields() -> None:
    assert View.options() == [field.name for field in fields(View)]


def test_named_views() -> None:
    assert View.named("raw") == View() == RAW
    assert str(View.named("standard")) == "standard"
    assert str(replace(STANDARD, offset=-1, centred=True)) == "standard, centred, offset -1"
    with pytest.raises(LexrayError, match="no view 'plain'; there are standard, raw"):
        View.named("plain")


def test_papers_are_recreated_raw_unless_told_otherwise() -> None:
    assert STANDARD.papers == RAW
    assert replace(STANDARD, offset=-2).papers == View(offset=-2)
    assert STANDARD.expects.papers == STANDARD.expects
    assert View(folded=True).papers == View(folded=True)
