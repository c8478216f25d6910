"""The order of numbers by their bits is the order of the numbers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lexray.space.topk.arithmetic import largest_first

FEW = st.sampled_from([0.0, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, float("inf"), -float("inf")])
NUMBERS = st.lists(FEW | st.floats(width=32, allow_nan=False), max_size=50)


@given(NUMBERS, st.sampled_from([torch.float32, torch.float64]))
def test_as_a_sort_of_numbers(numbers: list[float], dtype: torch.dtype) -> None:
    values = torch.tensor(numbers, dtype=dtype) + 0.0  # of zeros one sign
    order = sorted(range(len(numbers)), key=lambda i: (-values[i].item(), i))
    assert largest_first(values).tolist() == order


def test_every_other_of_a_row() -> None:
    values = torch.arange(10.0)[::2]
    assert largest_first(values).tolist() == [4, 3, 2, 1, 0]
