"""What the studies of a prompt's last position share: its vectors, their top tokens, curves.

All of them read the pass that plots the answer, through the model's own last step (final norm,
unembedding), which is VISIT's logit lens; by the standard view scores are standardised by place,
see `lexray.studies.shared.lists`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.charts.pen import Colour
from lexray.result.charts.series import Curve
from lexray.result.table import Table
from lexray.studies.shared import figures
from lexray.studies.shared.lists import PassVectors
from lexray.studies.shared.measures import overlap, require_more_tokens
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.study import PromptOptions, option
from lexray.trace.read.vectors import Selection
from lexray.trace.trace import Trace

OUTPUTS = {"attention": "attention output", "block": "block output", "final": "final output"}
COLOURS = dict(zip(OUTPUTS, (figures.OURS, figures.CONTROL, figures.THIRD), strict=True))
Curves = dict[str, list[float]]
"""A number for each layer, under a name; NaN where nothing was measured."""


@dataclass(frozen=True)
class Overlaps(PromptOptions):
    k: int = option(50, "Compare so many top tokens.", min=1)


def require_next_token(model: Model) -> None:
    """Encoders predict nothing at the end of a prompt."""
    if not model.architecture.causal:
        raise LexrayError(
            f"{model.name} is an encoder: it predicts no next token, whose making this study "
            "follows at the last position"
        )


def require_lists(model: Model, k: int) -> None:
    """A next token, and more tokens than a list holds."""
    require_next_token(model)
    require_more_tokens(model, k)


def at_last(model: Model, prompt: Prompt, *what: str) -> Trace:
    """The prompt's trace, of which these groups are kept at the last position."""
    return model.trace(prompt.text, what=what, positions=-1)


def stack(trace: Trace, name: str) -> Float[Tensor, "layers d_model"]:
    """One vector of each layer at the last position: `attn_out`, `resid_post`, …"""
    return torch.cat([getattr(trace[layer], name)[-1:] for layer in trace.layers])


def outputs(trace: Trace) -> dict[str, PassVectors]:
    """What heads and values are compared with: of each layer, or (final) of all together."""
    return {
        "attention": PassVectors.by_layer(stack(trace, "attn_out")),
        "block": PassVectors.by_layer(stack(trace, "resid_post")),
        "final": PassVectors.whole(trace.final[-1:]),
    }


def heads_at_last(trace: Trace) -> list[Float[Tensor, "heads d_model"]]:
    """What each layer's heads add to the residual stream: their outputs through W_O."""
    return [
        torch.cat([line.vectors for line in Selection(trace, (layer,), (-1,)).lines(["heads"])])
        for layer in trace.layers
    ]


def with_outputs(
    ids: Int[Tensor, "n k"], tops: Mapping[str, Int[Tensor, "_ k"]], layers: Int[Tensor, "n"]
) -> dict[str, Float[Tensor, "n"]]:
    """I_k of vectors of these layers with the three outputs."""
    at = layers.to(ids.device)
    return {
        name: overlap(ids, tops[name][at if len(tops[name]) > 1 else torch.zeros_like(at)])
        for name in OUTPUTS
    }


def owners(parts: Sequence[Tensor]) -> Int[Tensor, "n"]:
    """To which part each row of all parts together belongs."""
    sizes = torch.tensor([len(part) for part in parts])
    return torch.arange(len(parts)).repeat_interleave(sizes)


def average(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """The mean of each column over the rows that have it."""
    numbers = [[nan if x is None else x for x in row] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64).nanmean(0).tolist()


def mean(curve: Sequence[float]) -> float:
    """The mean of what was measured."""
    return float(torch.tensor(curve, dtype=torch.float64).nanmean())


def halves(curve: Sequence[float]) -> tuple[float, float]:
    """The means over the first half of the layers and over the second; the middle one is out."""
    n = len(curve) // 2
    return (mean(curve[:n]), mean(curve[len(curve) - n :])) if n else (nan, nan)


def start_and_rest(curve: Sequence[float]) -> tuple[float, float]:
    """The means over the first quarter of the layers and over the others."""
    n = max(1, len(curve) // 4)
    return mean(curve[:n]), mean(curve[n:])


def rises(curves: Sequence[Sequence[float]]) -> bool | None:
    """Whether all are higher in the second half of the layers; None for a single layer."""
    both = [halves(curve) for curve in curves]
    return None if any(isnan(x) for pair in both for x in pair) else all(a < b for a, b in both)


def plain(values: Tensor) -> Any:
    """Nested lists for JSON, in which None stands for NaN."""

    def of(x: Any) -> Any:
        return [of(y) for y in x] if isinstance(x, list) else None if isnan(x) else x

    return of(values.tolist())


def curves_table(curves: Mapping[str, Sequence[float]], title: str) -> Table:
    """A row for each layer."""
    rows = tuple((i, *row) for i, row in enumerate(zip(*curves.values(), strict=True)))
    return Table(("layer", *curves), rows, title)


def curve(y: Sequence[float], name: str, colour: Colour, *, dash: str = "solid") -> Curve:
    """A number by layer."""
    return Curve(range(len(y)), y, name, colour, dash)
