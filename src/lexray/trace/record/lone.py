"""What the first block makes of every token alone: transformers' own block, run on lone tokens.

A token alone attends to itself, so neither rotation nor mask matters; where positions are learned,
it stands at the mean position: at none in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.model.weights import Weights
from lexray.progress import track
from lexray.trace.record.hooks import RECORDING, evaluating
from lexray.trace.record.module import MODULE, block_modules, build_first_block, module_names

TOKENS_AT_ONCE = 2048
WHAT = "every token alone in the first block: made once, then kept"
Finish = Callable[[Tensor], Tensor]


class _EnoughError(Exception):
    """The first block is done; what follows is not wanted."""


def lone_states(
    weights: Weights, *, entering: bool, finish: Finish | None = None
) -> Float[Tensor, "e d_model"]:
    """Each token's residual stream as it enters the first block, or as it leaves it; `finish` is
    what is kept of so many of them, so that never all lie there in full precision."""
    first = _first_block_alone(weights)
    module = _ready(weights, first) or build_first_block(first)
    block = block_modules(first, module)[0]
    device = next(module.parameters()).device
    n = module.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    starts = range(0, n, TOKENS_AT_ONCE)
    found: Tensor | None = None
    with _watch(first, module, block, entering) as seen:
        for start in track(starts, len(starts), WHAT):
            ids = torch.arange(start, min(n, start + TOKENS_AT_ONCE), device=device)[:, None]
            options = {"use_cache": False} if weights.architecture.causal else {}
            with suppress(_EnoughError):
                module(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
            part = seen.pop().float().cpu()
            part = part if finish is None else finish(part)
            found = part.new_empty(n, part.shape[1]) if found is None else found
            found[start : start + len(part)] = part
    assert found is not None  # a vocabulary has tokens
    return found


def _ready(weights: Weights, first: Weights) -> nn.Module | None:
    """The whole module, if it has been made already and would compute the same."""
    module = MODULE.peek(weights.cache, None)
    same = module is not None and {p.dtype for p in module.parameters()} == {first.dtype}
    return module if same else None


def _first_block_alone(weights: Weights) -> Weights:
    """The same weights, described as a model of one block."""
    other = weights.with_view(weights.options)
    other.architecture = replace(weights.architecture, blocks=weights.architecture.blocks[:1])
    other.dtype = weights.dtype or torch.float32  # half precision is slow on CPUs
    return other


@contextmanager
def _watch(
    first: Weights, module: nn.Module, block: nn.Module, entering: bool
) -> Iterator[list[Tensor]]:
    """Inside, a forward pass ends at the block and leaves what it saw in the list."""
    seen: list[Tensor] = []

    def see_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args[0] if args else kwargs["hidden_states"])[:, -1])
        raise _EnoughError

    def see_output(_: nn.Module, __: Any, out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out)[:, -1])
        raise _EnoughError

    with RECORDING, ExitStack() as undo:
        undo.enter_context(evaluating(module))
        if entering:
            handle = block.register_forward_pre_hook(see_input, with_kwargs=True)
        else:
            handle = block.register_forward_hook(see_output)
        undo.callback(handle.remove)
        if (places := _places(first, module)) is not None:
            mean = places.weight[first.architecture.position_offset :].mean(0)  # type: ignore[index]
            nowhere = places.register_forward_hook(lambda _, __, out: mean.expand_as(out))
            undo.callback(nowhere.remove)
        yield seen


def _places(first: Weights, module: nn.Module) -> nn.Module | None:
    """The module of learned positions, if there is one."""
    positions = first.architecture.positions
    name = None if positions is None else module_names(first, module).get(positions)
    return None if name is None else module.get_submodule(name.rpartition(".")[0])
