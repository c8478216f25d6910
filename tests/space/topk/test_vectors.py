"""`top_vectors` equals a dense float64 reference, index by index, ties included."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.errors import LexrayError
from lexray.space import TopVectors, top_vectors
from lexray.space.topk import vectors


def reference(X: Tensor, E: Tensor, k: int, cols: Tensor | None = None) -> list[list[list[float]]]:
    """Both ends by a stable NumPy sort of the float64 product."""
    scores = (X.double() @ E.double()).numpy()
    ids = np.arange(E.shape[1]) if cols is None else np.unique(cols.numpy())
    scores = scores[:, ids]
    top = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    bottom = np.argsort(scores, axis=1, kind="stable")[:, :k]
    return [
        np.take_along_axis(scores, top, 1).tolist(),
        ids[top].tolist(),
        np.take_along_axis(scores, bottom, 1).tolist(),
        ids[bottom].tolist(),
    ]


def as_lists(found: TopVectors) -> list[list[list[float]]]:
    return [part.tolist() for part in found]


def integers(rows: int, cols: int, largest: int, seed: int) -> Tensor:
    """Small integers: products are exact in any order of summation, and ties abound."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, (rows, cols), generator=generator).float()


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 700),
    st.integers(1, 12) | st.integers(1, 800),
    st.sampled_from([0, 1, 3, 1000]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_equals_the_dense_reference(
    n: int, d: int, e: int, k: int, largest: int, filtered: bool, seed: int
) -> None:
    X, E = integers(n, d, largest, seed), integers(d, e, largest, seed + 1)
    cols = torch.randint(0, e, (e,), generator=torch.Generator().manual_seed(seed))
    chosen = cols if filtered else None
    assert as_lists(top_vectors(X, E, k, cols=chosen)) == reference(X, E, k, chosen)


@pytest.mark.parametrize("k", [1, 5, 100, 3000])
def test_equals_the_reference_at_size(k: int) -> None:
    X, E = integers(40, 8, 9, 1), integers(8, 20011, 9, 2)
    assert as_lists(top_vectors(X, E, k)) == reference(X, E, k)


@pytest.mark.parametrize("most", [1, 50_000])
def test_ties_are_settled_some_rows_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_TIED_AT_ONCE", most)
    X, E = integers(40, 8, 2, 1), integers(8, 5011, 2, 2)
    assert as_lists(top_vectors(X, E, 7)) == reference(X, E, 7)


def test_columns_are_converted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_BLOCK_NUMBERS", 100)
    X, E = integers(40, 8, 9, 1), integers(8, 311, 9, 2).bfloat16()
    assert as_lists(top_vectors(X, E, 7)) == reference(X, E.float(), 7)


def test_values_without_ties_agree_with_float64() -> None:
    generator = torch.Generator().manual_seed(3)
    X, E = torch.randn(50, 64, generator=generator), torch.randn(64, 9001, generator=generator)
    found = top_vectors(X, E, 20)
    scores = X.double() @ E.double()
    torch.testing.assert_close(
        found.top_values.double(), scores.topk(20).values, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(
        found.bottom_values.double(), scores.gather(1, found.bottom_ids), rtol=1e-5, atol=1e-5
    )
    assert found.top_values.dtype == torch.float32


def test_duplicated_columns_are_listed_in_order() -> None:
    X, E = integers(3, 4, 5, 4), integers(4, 5000, 5, 5)
    E[:, 1000:4000] = E[:, :1] * 100
    assert as_lists(top_vectors(X, E, 50)) == reference(X, E, 50)


def test_chunks_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, E = integers(30, 5, 3, 6), integers(5, 1500, 3, 7)
    whole = as_lists(top_vectors(X, E, 9))
    monkeypatch.setattr(vectors, "_SCORES_AT_ONCE", 4000)
    monkeypatch.setattr(vectors, "_BLOCK_COLUMNS", 100)
    assert as_lists(top_vectors(X, [E[:, :700], E[:, 700:].half()], 9)) == whole
    chunks = list(vectors._chunks(X, vectors.Columns.of(E, None), 9))
    assert len(chunks) > 10
    assert as_lists(TopVectors(*map(torch.cat, zip(*chunks, strict=True)))) == whole


@pytest.mark.parametrize("k", [1, 9, 2000])
def test_what_is_left_out_is_as_if_it_were_not_there(k: int) -> None:
    X, E = integers(30, 5, 3, 6), integers(5, 1500, 3, 7)
    left_out = torch.tensor([0, 3, 77, 78, 1499])
    rest = torch.tensor([i for i in range(1500) if i not in left_out.tolist()])
    found = top_vectors(X, [E[:, :700], E[:, 700:].half()], k, left_out=left_out)
    assert as_lists(found) == reference(X, E, k, rest)


def test_a_filter_across_blocks() -> None:
    X, E = integers(4, 5, 9, 8), integers(5, 400, 9, 9)
    cols = torch.tensor([399, 3, 250, 100, 99, 3])
    found = top_vectors(X, [E[:, :100], E[:, 100:]], 4, cols=cols)
    assert as_lists(found) == reference(X, E, 4, cols)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    X, E = integers(6, 5, 9, 10).to(dtype), integers(5, 900, 9, 11).to(dtype)
    found = top_vectors(X, E, 7)
    assert as_lists(found) == reference(X, E, 7)
    assert found.top_values.dtype == (dtype if dtype == torch.float64 else torch.float32)


def test_no_vectors_and_no_columns() -> None:
    found = top_vectors(torch.empty(0, 3), torch.ones(3, 10), 4)
    assert [tuple(part.shape) for part in found] == [(0, 4)] * 4
    nothing = torch.tensor([], dtype=torch.int64)
    assert top_vectors(torch.ones(2, 3), torch.ones(3, 10), 4, cols=nothing).top_ids.shape == (2, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_factors_are_named_and_counted(bad: float) -> None:
    X, E = torch.ones(2, 3), torch.ones(3, 5)
    spoilt = torch.ones(3, 5)
    spoilt[1, 1] = bad
    counts = "1 NaN and 0 infinite" if math.isnan(bad) else "0 NaN and 1 infinite"
    with pytest.raises(LexrayError, match=f"embedding E has {counts}"):
        top_vectors(X, spoilt, 1)
    with pytest.raises(LexrayError, match=f"vectors X has {counts}"):
        top_vectors(spoilt.T.contiguous(), E, 1)


def test_mistakes_are_explained() -> None:
    X, E = torch.ones(2, 3), torch.ones(3, 5)
    with pytest.raises(LexrayError, match="at least 1"):
        top_vectors(X, E, 0)
    with pytest.raises(LexrayError, match=r"\(2, 3\).*\(4, 5\)"):
        next(vectors._chunks(X, vectors.Columns.of(torch.ones(4, 5), None), 1))
    with pytest.raises(LexrayError, match="from 2 to 5 do not fit E"):
        top_vectors(X, E, 1, cols=torch.tensor([2, 5]))
    with pytest.raises(LexrayError, match="overflows"):
        top_vectors(X * 1e30, E * 1e30, 1)
