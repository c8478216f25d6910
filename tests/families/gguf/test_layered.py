"""GGUF files of models whose layers differ in sizes: what is refused of Gemma 4.

That Gemma 3n and 4 read as they should is shown with all others (test_names).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lexray.errors import LexrayError
from tests.families.gguf.variants import converted, opened


@pytest.mark.parametrize(
    "factors",
    [[1.0] * 4, [1.0, 1e30, 1.0, 1e30, 1e30], [1.0, 2.0, 1e30, 1e30, 1e30]],
    ids=["too few", "gaps", "unlike"],
)
def test_other_factors_of_gemma4_are_refused(factors: list[float], tmp_path: Path) -> None:
    whole = converted("gemma4")
    whole.tensors["rope_freqs.weight"] = torch.tensor(factors)
    with pytest.raises(LexrayError, match=r"rope_freqs\.weight should have 5 factors"):
        opened(whole.save(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("attention.key_length_swa", 7, "should have the shape"),
        ("attention.sliding_window_pattern", None, "lacks the metadata"),
        ("attention.sliding_window_pattern", [True], "speaks of 1 layers"),
        ("block_count", 4000, "do not fit together"),
        ("attention.key_length", 2**31, "do not fit together"),
    ],
)
def test_sizes_of_gemma4_that_do_not_fit_are_refused(
    key: str, value: Any, says: str, tmp_path: Path
) -> None:
    whole = converted("gemma4")
    del whole.metadata[whole.key(key)]
    if value is not None:
        whole.metadata[whole.key(key)] = value
    with pytest.raises(LexrayError, match=says):
        opened(whole.save(tmp_path / "model.gguf"))
