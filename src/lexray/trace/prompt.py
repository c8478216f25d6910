"""Prompts, run and recorded: one, or a batch of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lexray.choice import Some
from lexray.edits.values import Edits
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.trace.record.prompt import read_prompts
from lexray.trace.trace import Trace


def trace_prompt(
    model: Anatomy,
    prompt: Any,
    *,
    new_tokens: int = 0,
    layers: Some = None,
    positions: Some = None,
    what: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
    special: bool = True,
    edits: Edits | None = None,
    target: Any = None,
) -> Trace | list[Trace]:
    """Runs a prompt, or a batch of them, and records it; see `lexray.model.model.Model.trace`."""
    from lexray.trace.record.pair import read_pairs, record_pairs  # imports transformers
    from lexray.trace.record.run import record

    options: dict[str, Any] = {
        "new_tokens": new_tokens,
        "layers": layers,
        "positions": positions,
        "what": what,
        "device": device,
        "edits": edits,
    }
    if model.architecture.encoder is not None:
        pairs = read_pairs(model, prompt, target, special=special)
        recordings, single = record_pairs(model, pairs, **options), pairs.single
    else:
        if target is not None:
            raise LexrayError(
                f"{model.name} is one stack of layers: a target beside the prompt is for "
                "encoder–decoders"
            )
        prompts = read_prompts(model, prompt, special=special)
        recordings, single = record(model, prompts.ids, **options), prompts.single
    traces = [Trace.of(recording) for recording in recordings]
    return traces[0] if single else traces
