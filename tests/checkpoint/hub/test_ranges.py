"""Spans of bytes, for all shapes: joined, subtracted, put together again."""

from __future__ import annotations

import tempfile
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.checkpoint.base import Box, runs
from lexray.checkpoint.hub import ranged, ranges
from lexray.checkpoint.hub.ranged import Span
from lexray.checkpoint.hub.ranges import RangeCache, coalesce, gather, subtract


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    box = []
    for size in shape:
        start = draw(st.integers(0, size))
        box.append((start, draw(st.integers(start, size))))
    return shape, tuple(box)


def covered(spans: list[Span]) -> set[int]:
    return {byte for start, stop in spans for byte in range(start, stop)}


sorted_spans = st.lists(st.integers(0, 300), max_size=40, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
held_spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 50)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=8,
).map(sorted)


@given(sorted_spans, st.integers(0, 50), st.integers(1, 8))
def test_coalesce(spans: list[Span], gap: int, limit: int) -> None:
    joined = coalesce(spans, gap, limit)
    assert len(joined) <= limit
    assert covered(spans) <= covered(joined)
    assert all(a[1] < b[0] for a, b in pairwise(joined)) or gap == 0
    for start, stop in joined:  # begins and ends with wanted bytes
        assert start in {s for s, _ in spans}
        assert stop in {s for _, s in spans}
    if len(joined) < limit:  # every gap that was read through is a small one
        extra = covered(joined) - covered(spans)
        gaps = [(a[1], b[0]) for a, b in pairwise(spans)]
        assert all(b - a < gap for a, b in gaps if a in extra)


@given(sorted_spans, held_spans)
def test_subtract(spans: list[Span], held: list[Span]) -> None:
    left = subtract(spans, held)
    assert covered(left) == covered(spans) - covered(held)
    assert left == sorted(left)
    assert all(start < stop for start, stop in left)


@given(boxes(), held_spans, st.integers(0, 20), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_gather(
    case: tuple[tuple[int, ...], Box], held: list[Span], gap: int, limit: int, itemsize: int
) -> None:
    """Held and fetched pieces put together are the slice that torch would take."""
    shape, box = case
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[itemsize]
    tensor = torch.randint(0, 255, shape, dtype=torch.int64).to(dtype)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    spans = [(at, at + length) for at, length in runs(shape, itemsize, box)]
    held = [span for span in held if span[1] <= len(raw)]
    fetched = coalesce(subtract(spans, held), gap, limit)
    data = gather(spans, [(a, raw[a:b]) for a, b in (*held, *fetched)])
    expected = tensor[tuple(slice(*part) for part in box)].contiguous()
    assert data.numpy().tobytes() == expected.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@given(st.tuples(*[st.integers(1, 6)] * 3), st.data())
@settings(max_examples=60)
def test_reading_in_any_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Through a cache on disk that fills up, with tiny gaps and chunks."""
    tensor = torch.randint(0, 9999, shape, dtype=torch.int16)
    raw = tensor.numpy().tobytes()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEXRAY_CACHE", folder)
        patch.setattr(ranges, "CHUNK", 10)
        cache = RangeCache("https://hub", "a/b", "c", "d")
        cache.keep(ranged.Identity(len(raw), "e"))
        for _ in range(3):
            box = tuple(
                tuple(sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2)))) for size in shape
            )
            spans = [(at, at + length) for at, length in runs(shape, 2, box)]
            pieces = cache.pieces(spans)
            missing = subtract(spans, [(a, a + len(piece)) for a, piece in pieces])
            for a, b in coalesce(missing, gap=4, limit=3):
                cache.write(a, bytearray(raw[a:b]))
                pieces.append((a, raw[a:b]))
            expected = tensor[tuple(slice(*part) for part in box)].contiguous()
            assert gather(spans, pieces).numpy().tobytes() == expected.numpy().tobytes()
