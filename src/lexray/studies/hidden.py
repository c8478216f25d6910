"""Hidden states of a model at our own prompts, for static studies that need some."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.fold import at_least_float32
from lexray.model import Model
from lexray.studies.prompts import own_prompts

TOKENS = 256


def hidden_states(model: Model, text: str | None = None) -> Float[Tensor, "n d_model"]:
    """The residual stream after every block but the last, at every position of a short text.

    transformers gives the last one only after the final norm. The first position, where many
    models keep one huge vector, counts like the others.
    """
    passage = text or " ".join(f"{p.text} {p.answer}." for p in own_prompts() if p.answer)
    ids = model.vocabulary.encode(passage, special=True)[: min(TOKENS, context(model))]
    if not ids:
        raise LexrayError(f"{model.name}'s tokenizer makes no tokens of our text")
    with torch.no_grad():
        found = model.module()(
            input_ids=torch.tensor([ids], device=model.device), output_hidden_states=True
        )
    states = found.hidden_states[1:-1] or found.hidden_states[:1]
    return at_least_float32(torch.cat([state[0] for state in states]))


def context(model: Model) -> int:
    """How many positions the model has: as many as are learned, or as its config says."""
    if (learned := model.W_pos) is not None:
        return len(learned)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length")
    known = [model.config[name] for name in names if isinstance(model.config.get(name), int)]
    return max(1, min(known, default=TOKENS))
