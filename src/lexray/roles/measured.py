"""What heads really do in repeated random text: a trace's attention, and what they write there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.find.prominence import Prominence, prominence
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.roles.patterns import MeanLooks, Repeated, first_look, looks
from lexray.space.space import space_of
from lexray.trace.prompt import trace_prompt
from lexray.trace.trace import Trace


@dataclass(frozen=True)
class Did:
    """One head in repeated text."""

    looks: MeanLooks
    copies: float
    """The score of the token it looks at most, in what it writes: standard deviations of all
    tokens' scores, over the second half of the texts."""


def all_did(model: Anatomy, text: Repeated) -> list[Did]:
    """Every head, measured; an encoder–decoder's with the text as source and as target."""
    traces = [_trace(model, ids) for ids in text.ids]
    measured = []
    for stack in model.stacks:
        measure = prominence(space_of(stack).with_view(standardised=True), "O")
        runs = traces if stack is model else [trace.encoder for trace in traces]
        for layer, block in enumerate(stack.architecture.blocks):
            if not block.attention.absent:
                measured += _measure([_own(run, layer, text) for run in runs], text, measure)
            if block.cross is not None:
                measured += _measure([_cross(run, layer, text) for run in runs], text, measure)
    return measured


def _trace(model: Anatomy, ids: Int[Tensor, "n"]) -> Trace:
    target = None if model.architecture.encoder is None else ids.tolist()
    what = ["attention", "heads"]
    trace = trace_prompt(model, ids.tolist(), what=what, special=False, target=target)
    assert isinstance(trace, Trace)
    return trace


@dataclass(frozen=True, eq=False)
class _Looked:
    """The heads of one attention in one text: rows are the text's tokens."""

    pattern: Float[Tensor, "heads n keys"]
    keys: Int[Tensor, "keys"]
    """The tokens that can be looked at; a decoder's begin with one that is not of the text."""
    written: Float[Tensor, "n heads d_model"]


def _own(run: Trace, layer: int, text: Repeated) -> _Looked:
    begun, part = len(run) - text.n, run[layer]
    return _Looked(part.pattern[:, begun:].cpu(), run.ids, part.head_out[begun:])


def _cross(run: Trace, layer: int, text: Repeated) -> _Looked:
    begun, part = len(run) - text.n, run[layer].cross
    return _Looked(part.pattern[:, begun:].cpu(), run.encoder.ids, part.head_out[begun:])


def _measure(looked: Sequence[_Looked], text: Repeated, measure: Prominence) -> list[Did]:
    """All heads of one attention, over all texts."""
    patterns = torch.stack([each.pattern.double() for each in looked])
    begun = patterns.shape[3] - text.n
    copies = torch.stack([_copies(each, text, measure) for each in looked]).mean(0)
    did = []
    for h in range(patterns.shape[1]):
        own = looks(patterns[:, h, :, begun:], text)
        if begun:  # the first that can be looked at is what decoding begins with
            own = replace(own, first=first_look(patterns[:, h], text))
        did.append(Did(own, float(copies[h])))
    return did


def _copies(looked: _Looked, text: Repeated, measure: Prominence) -> Float[Tensor, "heads"]:
    """Each head's mean score of the token it looks at most."""
    late = slice(text.length, text.n)
    tokens_looked_at = looked.keys[looked.pattern[:, late].argmax(-1)]
    written = at_least_float32(looked.written[late]).transpose(0, 1)
    side = measure.space.whole("O")
    heads = []
    for tokens, X in zip(tokens_looked_at, written, strict=True):
        columns = torch.cat(list(side.only(tokens).columns())) - measure.centre.to(X)
        spread = measure.chart.sizes(X)[:, 0] / sqrt(measure.n_tokens)
        heads.append(((X * columns.to(X)).sum(1) / spread.clamp(min=1e-30)).mean())
    return torch.stack(heads).double().cpu()
