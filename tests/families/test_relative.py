"""Distances are looked up where transformers looks them up, however far they are."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from lexray.families.relative import DistanceBias, DistanceVectors

OFFSETS = torch.arange(-400, 401)


@pytest.mark.parametrize("buckets", [6, 32])
@pytest.mark.parametrize("furthest", [11, 128])
@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_of_t5(buckets: int, furthest: int, both_ways: bool) -> None:
    theirs = T5Attention._relative_position_bucket(OFFSETS, both_ways, buckets, furthest)
    assert torch.equal(DistanceBias("", buckets, furthest, both_ways).bucket(OFFSETS), theirs)


def test_buckets_of_mpnet() -> None:
    theirs = MPNetEncoder.relative_position_bucket(OFFSETS)
    assert torch.equal(DistanceBias("", 32, 128, both_ways=True).bucket(OFFSETS), theirs)


@pytest.mark.parametrize(("buckets", "furthest"), [(4, 32), (256, 512), (6, 40), (0, 512)])
def test_rows_of_deberta(buckets: int, furthest: int) -> None:
    span = buckets or furthest
    ours = DistanceVectors("", None, None, None, span, buckets, furthest, 1.0)
    x = torch.zeros(300, 1)
    theirs = build_relative_position(x, x, bucket_size=buckets or -1, max_position=furthest)
    at = torch.arange(300)
    rows = (theirs[0] + span).clamp(0, 2 * span - 1)
    assert torch.equal(ours.place(at[:, None] - at), rows)
