"""Hidden states of a model at our own prompts, for static studies that need some."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.studies.shared.prompts import own_prompts
from lexray.trace.record.prompt import longest

TOKENS = 256


def hidden_states(model: Model, text: str | None = None) -> Float[Tensor, "n d_model"]:
    """The residual stream after every block, at every position of a short text.

    The first position, where many models keep one huge vector, counts like the others.
    """
    passage = text or " ".join(f"{p.text} {p.answer}." for p in own_prompts() if p.answer)
    ids = model.vocabulary.encode(passage, special=True)[: min(TOKENS, longest(model) or TOKENS)]
    trace = model.trace(ids, what="residual")
    return at_least_float32(torch.cat([trace[layer].resid_post for layer in trace.layers]))
