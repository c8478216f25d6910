"""Names and shares as people read them."""

from __future__ import annotations

import pytest

from lexray.result.format import show_model, show_percent
from lexray.result.theme import standing


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("gpt2", "gpt2"),
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("/data/models/gpt2-medium", "gpt2-medium"),
        ("/data/models/gpt2-medium/", "gpt2-medium"),
        ("../gpt2", "gpt2"),
        ("~/x/model.gguf", "model.gguf"),
        ("/c/models--org--a-name/snapshots/607a30d7", "org/a-name"),
    ],
)
def test_models_are_named_without_paths(name: str, shown: str) -> None:
    assert show_model(name) == shown


def test_shares() -> None:
    assert show_percent(-0.5, sign=True) == "-50 %"
    assert show_percent(0.5, sign=True) == "+50 %"
    assert show_percent(-1e-9) == ">−0.01 %"


def test_ranks_are_coloured_on_a_log_scale() -> None:
    assert [standing(rank, 101) for rank in (1, 51, 101)] == pytest.approx([1, 0, -1], abs=1e-2)
    assert standing(2, 50257) - standing(11, 50257) > 0.1
