"""What heads really do in repeated random text: a trace's attention, and what they write there."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.find.prominence import Prominence, prominence
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.roles.patterns import MeanLooks, Repeated, looks
from lexray.space.space import space_of
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace, trace_prompt


@dataclass(frozen=True)
class Did:
    """One head in repeated text."""

    looks: MeanLooks
    copies: float
    """The score of the token it looks at most, in what it writes: standard deviations of all
    tokens' scores, over the second half of the texts."""


def all_did(model: Anatomy, text: Repeated) -> list[Did]:
    """Every head, measured."""
    traces = [_trace(model, ids) for ids in text.ids]
    measure = prominence(space_of(model).with_view(standardised=True), "O")
    measured = []
    for layer in range(model.n_layers):
        if model.architecture.blocks[layer].attention.absent:
            continue
        parts = [trace[layer] for trace in traces]
        patterns = torch.stack([part.pattern.double().cpu() for part in parts])
        copies = torch.stack(
            [_copies(part, ids, text, measure) for part, ids in zip(parts, text.ids, strict=True)]
        ).mean(0)
        measured += [
            Did(looks(patterns[:, h], text), float(copies[h])) for h in range(patterns.shape[1])
        ]
    return measured


def _trace(model: Anatomy, ids: Int[Tensor, "n"]) -> Trace:
    trace = trace_prompt(model, ids.tolist(), what=["attention", "heads"], special=False)
    assert isinstance(trace, Trace)
    return trace


def _copies(
    layer: LayerTrace, ids: Int[Tensor, "n"], text: Repeated, measure: Prominence
) -> Float[Tensor, "heads"]:
    """Each head's mean score of the token it looks at most."""
    late = slice(text.length, text.n)
    looked = ids[layer.pattern[:, late].argmax(-1).cpu()]
    written = at_least_float32(layer.head_out[late]).transpose(0, 1)
    side = measure.space.whole("O")
    heads = []
    for tokens, X in zip(looked, written, strict=True):
        columns = torch.cat(list(side.only(tokens).columns())) - measure.centre.to(X)
        spread = measure.chart.sizes(X)[:, 0] / sqrt(measure.n_tokens)
        heads.append(((X * columns.to(X)).sum(1) / spread.clamp(min=1e-30)).mean())
    return torch.stack(heads).double().cpu()
