"""Attention to chosen positions alone (DeepSeek V3.2): a trace leaves out what the indexer does."""

from __future__ import annotations

from dataclasses import replace

from lexray.model.model import Model
from tests.families.oracles import IDS, close, run
from tests.families.zoo import VARIANTS, make


def test_positions_that_were_not_chosen_are_not_attended_to() -> None:
    whole = next(v for v in VARIANTS if v.name == "deepseek-v32")
    module = make(replace(whole, options=whole.options | {"index_topk": 3}))
    trace = Model.from_module(module).trace(IDS[0].tolist())
    close(trace.logits, run(module, IDS).logits[0])
    for layer in trace.layers:
        seen = (trace[layer].pattern > 0).sum(-1)
        assert seen.max() == 3
        assert (seen[:, 3:] == 3).all()
