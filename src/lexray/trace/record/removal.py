"""What a removal does: the log-probabilities of a position before and after something that was
written there is taken away, by transformers' own forward pass from there on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families import Experts
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.trace.record.config import running_entries
from lexray.trace.record.module import module_of
from lexray.trace.record.refuse import refuse_pair
from lexray.trace.record.running import RECORDING, evaluating
from lexray.trace.record.spread import entry_device

AT_ONCE = 24
Where = Literal["attention", "mlp"]


@dataclass(frozen=True, eq=False)
class Removal:
    """A vector that a sub-block wrote at the last of these tokens, and which is taken away."""

    ids: tuple[int, ...]
    layer: int
    where: Where
    vector: Float[Tensor, "d_model"]


def changes(
    model: Anatomy, removals: Sequence[Removal]
) -> Iterator[tuple[int, Float[Tensor, "d_vocab"], Float[Tensor, "d_vocab"]]]:
    """For each removal, as (its number, log-probabilities before, and after); shortest first."""
    order = sorted(range(len(removals)), key=lambda i: len(removals[i].ids))
    batches = [order[i : i + AT_ONCE] for i in range(0, len(order), AT_ONCE)]
    for batch in track(batches, len(batches), "removing parameters"):
        chosen = [removals[i] for i in batch]
        before, after = (_last(model, chosen, removing=removing) for removing in (False, True))
        yield from zip(batch, before, after, strict=True)


def _last(
    model: Anatomy, removals: Sequence[Removal], *, removing: bool
) -> Float[Tensor, "n d_vocab"]:
    """The log-probabilities after the last token of each."""
    refuse_pair(model)
    module = module_of(model)
    device = entry_device(model, module)
    longest = max(len(removal.ids) for removal in removals)
    ids = torch.zeros(len(removals), longest, dtype=torch.long)
    for row, removal in enumerate(removals):  # padded behind, which no causal model looks at
        ids[row, : len(removal.ids)] = torch.tensor(removal.ids)
    ends = torch.tensor([len(removal.ids) - 1 for removal in removals])
    with RECORDING, ExitStack() as undo:
        undo.enter_context(evaluating(module))
        if removing:
            for name, rows in _by_module(model, module, removals).items():
                part = module.get_submodule(name)
                handle = part.register_forward_hook(partial(_subtract, removals, rows, ends))
                undo.callback(handle.remove)
        out = module(input_ids=ids.to(device), use_cache=False, return_dict=True)
    logits = out.logits[torch.arange(len(removals)), ends.to(device)]
    log_probs: Tensor = logits.float().log_softmax(-1).cpu()
    return log_probs


def _by_module(
    model: Anatomy, module: nn.Module, removals: Sequence[Removal]
) -> dict[str, list[int]]:
    """Which rows change at the output of which module."""
    names = ModuleCheckpoint(module, values=False).names()
    described = model.family.architecture(running_entries(model), names)
    rows: dict[str, list[int]] = {}
    for row, removal in enumerate(removals):
        block = described.blocks[removal.layer]
        if removal.where == "attention":
            part = block.attention.o.module
        else:
            part = block.ff.module if isinstance(block.ff, Experts) else block.ff.w_out.module
        rows.setdefault(part, []).append(row)
    return rows


def _subtract(
    removals: Sequence[Removal], rows: Sequence[int], ends: Tensor, _: nn.Module, __: Any, out: Any
) -> Any:
    x: Tensor = (out[0] if isinstance(out, tuple | list) else out).clone()
    whole = x.view(len(removals), -1, x.shape[-1])
    for row in rows:
        whole[row, ends[row]] -= removals[row].vector.to(whole)
    return (x, *out[1:]) if isinstance(out, tuple | list) else x
