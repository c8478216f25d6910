"""Models whose layers share weights (ALBERT), run with a module for each layer."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from transformers import PreTrainedModel

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families.walk import tensors, walk
from lexray.model.weights import Weights
from lexray.trace.record.quiet import quiet


def unroll(model: Weights, module: nn.Module) -> nn.Module:
    """A module whose layers share weights (ALBERT), as one with a module for each layer, of the
    same parameters: so that what happens in a layer can be seen and changed there alone."""
    entries = dict(model.architecture.unrolled)
    if not entries or not isinstance(module, PreTrainedModel):
        return module
    config = deepcopy(module.config)
    config.update(entries)
    with torch.device("meta"), quiet():
        twin: nn.Module = type(module)(config)
    names = ModuleCheckpoint(module, values=False).names()
    rolled = model.family.architecture(model.config, names)
    apart = model.family.architecture(model.config | entries, twin.state_dict().keys())
    pairs = zip(walk(apart), walk(rolled), strict=True)
    source = {
        new: old
        for (_, there), (_, here) in pairs
        for new, old in zip(tensors(there), tensors(here), strict=True)
        if new is not None and old is not None
    }
    for name, _ in [*twin.named_parameters(remove_duplicate=False), *twin.named_buffers()]:
        owner, _, last = name.rpartition(".")
        shared = module.get_parameter_or_buffer(source.get(name, name))
        place = twin.get_submodule(owner)
        (place._parameters if last in place._parameters else place._buffers)[last] = shared
    twin.train(module.training)
    return twin
