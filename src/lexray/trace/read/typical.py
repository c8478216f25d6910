"""What reaches an encoder's prediction head: states at masked tokens of a text."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.trace.read.usual import cut

MASKS = ("[MASK]", "<mask>")
EVERY = 7
"""One token in so many is masked, as in training."""


def typical_inputs(model: Anatomy) -> Float[Tensor, "n d_model"]:
    """The states of masked tokens in lexray's own text; of every so many-th token, in a model
    whose vocabulary has no mask."""
    from lexray.trace.record.run import record  # imports transformers

    mask, inputs = mask_of(model), []
    for ids in cut(model):
        at = list(range(1, len(ids), EVERY))
        masked = [mask if mask is not None and i in at else token for i, token in enumerate(ids)]
        (recording,) = record(model, [masked], what="residual", layers=-1)
        inputs.append(recording.normed[at].cpu())
    return torch.cat(inputs)


def mask_of(model: Anatomy) -> int | None:
    """The token that stands for one to be predicted."""
    for name in MASKS:
        try:
            return model.vocabulary.id(name)
        except LexrayError:
            continue
    return None
