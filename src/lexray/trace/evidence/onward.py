"""A text run for one layer after the other: each time from where the last one had come to.

What enters a layer is the same whoever asks, so that a whole model's evidence costs little more
than one pass over the text, not one for every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexray.checkpoint.module import ModuleCheckpoint, modules_by_name
from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.trace.record.pair import record_text
from lexray.trace.record.run import Runner, runner_of
from lexray.trace.record.running import RECORDING, evaluating
from lexray.trace.record.skip import begin_at, count_outputs, lowest_needed
from lexray.trace.recording import Recording

MOST_BYTES = 1 << 30
"""Of states that are held; with more, every layer's passes begin at the first."""


@dataclass(frozen=True, eq=False)
class Reached:
    """How far a text's passes have come."""

    pieces: Sequence[Sequence[int]]
    layer: int
    states: Sequence[Tensor]
    """What enters the layer, piece by piece."""
    extra: int | None
    """How many things a block returns (`count_outputs`)."""


REACHED: Drawer[None, Reached] = Drawer(most=1)


def run_onward(
    model: Anatomy, pieces: Sequence[Sequence[int]], layer: int, what: Sequence[str]
) -> Iterator[Recording]:
    """Each piece's pass, of which one layer is kept."""
    options: dict[str, Any] = {"layers": [layer], "what": what, "stops": True}
    if not _can_hold(model, pieces):
        yield from (record_text(model, ids, **options) for ids in pieces)
        return
    runner = runner_of(model)
    modules = modules_by_name(runner.module)
    blocks = [modules[block.module] for block in runner.weights.architecture.blocks]
    start = _find_start(model, pieces, layer)
    states: list[Tensor] = []
    for number, ids in enumerate(pieces):
        with RECORDING, ExitStack() as undo:
            if start is not None:
                give = start.states[number].clone
                undo.enter_context(begin_at(blocks, start.layer, start.extra, give))
            handle = blocks[layer].register_forward_pre_hook(_catch(states), with_kwargs=True)
            undo.callback(handle.remove)
            recording = record_text(model, ids, **options)
        yield recording
    extra = _count(runner, blocks[0], pieces[0]) if start is None else start.extra
    REACHED.put(model.cache, None, Reached(pieces, layer, states, extra))


def _can_hold(model: Anatomy, pieces: Sequence[Sequence[int]]) -> bool:
    """Not of two stacks, nor of a module that may be trained between two questions."""
    pair = model.architecture.encoder is not None or model.decoder is not None
    streams = model.architecture.streams
    size = sum(map(len, pieces)) * model.d_model * 4 * (1 if streams is None else streams.count)
    live = isinstance(model.checkpoint, ModuleCheckpoint)
    return not pair and not live and size <= MOST_BYTES


def _find_start(model: Anatomy, pieces: Sequence[Sequence[int]], layer: int) -> Reached | None:
    """Where the last passes had come to, if it was the same text, and all is there from then on."""
    start, blocks = REACHED.peek(model.cache, None), model.architecture.blocks
    if start is None or start.layer > layer or start.pieces != pieces:
        return None
    return start if lowest_needed(blocks[: layer + 1], start.layer) == start.layer else None


def _catch(states: list[Tensor]) -> Any:
    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering: Tensor = args[0] if args else kwargs["hidden_states"]
        states.append(entering.detach().clone())

    return catch


def _count(runner: Runner, block: nn.Module, ids: Sequence[int]) -> int | None:
    with RECORDING, evaluating(runner.module):
        first = torch.tensor([ids[:1]], device=runner.device)
        return count_outputs(runner.module, block, {"input_ids": first})
