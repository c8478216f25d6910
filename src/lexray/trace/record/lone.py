"""What the first block makes of every token alone: transformers' own block, run on lone tokens.

A token alone attends to itself, so neither rotation nor mask matters; where positions are learned,
it stands at the mean position: at none in particular. The tokens of a text stand each at its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lexray.model.need import STATES
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.scratch import give_back, join_rows
from lexray.trace.record.module import (
    MODULE,
    block_modules,
    build_first_block,
    module_names,
    module_of,
)
from lexray.trace.record.running import RECORDING, EnoughError, evaluating
from lexray.trace.record.spread import entry_device

TOKENS_AT_ONCE = 2048
NUMBERS_AT_ONCE = STATES
"""Of the widest thing that the block makes of its tokens, of which several exist at a time."""
WHAT = "every token alone in the first block: made once, then kept"
Finish = Callable[[Tensor], Tensor]


def lone_states(
    weights: Weights, *, entering: bool, finish: Finish | None = None
) -> Float[Tensor, "e d_model"]:
    """Each token's residual stream as it enters the first block, or as it leaves it (of several
    streams the one that blocks work on); `finish` is what is kept of so many of them, so that never
    all lie there in full precision."""
    first, module = _one_block(weights)
    n = module.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    give_back()  # what reading the block left behind
    step = _tokens_at_once(first, module)
    starts = range(0, n, step)

    def each_part() -> Iterator[Tensor]:
        for start in track(starts, len(starts), WHAT):
            _run(module, torch.arange(start, min(n, start + step))[:, None], first)
            part = seen.pop()[:, -1].float().cpu()
            yield part if finish is None else finish(part)

    with _watch(first, module, entering) as seen, _everywhere(first, module):
        joined = join_rows(n, each_part())
    del module, seen
    give_back()
    return joined


def placed_states(
    weights: Weights, ids: Int[Tensor, "n"], *, entering: bool
) -> Float[Tensor, "n d_model"]:
    """The same for the tokens of a text: each alone, and at its place in the text."""
    first, module = _one_block(weights)
    places, at = _places(first, module), []
    if places is not None:
        with _watch(first, module, True), _after(places, lambda out: at.append(out)):
            _run(module, ids[None], first)
    with _watch(first, module, entering) as seen, ExitStack() as undo:
        if places is not None:
            undo.enter_context(_after(places, lambda out: at[0].reshape(len(ids), 1, -1)))
        _run(module, ids[:, None], first)
    return seen.pop()[:, -1].float().cpu()


def _one_block(weights: Weights) -> tuple[Weights, nn.Module]:
    """A model of the first block alone, and the module that runs it."""
    first = _first_block_alone(weights)
    if _is_of_pair(weights):
        return first, _stack_of(weights)
    return first, _ready(weights, first) or build_first_block(first)


def _tokens_at_once(first: Weights, module: nn.Module) -> int:
    weights = _first_of(first, module).parameters()
    widest = max((max(w.shape[-2:]) for w in weights if w.ndim > 1), default=1)
    return max(1, min(TOKENS_AT_ONCE, NUMBERS_AT_ONCE // widest))


def _run(module: nn.Module, ids: Int[Tensor, "texts n"], first: Weights) -> None:
    ids = ids.to(entry_device(first, module))
    options: dict[str, Any] = {"use_cache": False} if first.architecture.causal else {}
    with suppress(EnoughError), ExitStack() as undo:
        if first.architecture.sourced:
            options |= undo.enter_context(_no_source(first, module, len(ids)))
        module(input_ids=ids, attention_mask=torch.ones_like(ids), **options)


@contextmanager
def _no_source(first: Weights, module: nn.Module, n: int) -> Iterator[dict[str, Tensor]]:
    """For a decoder that runs beside a source only: one token that is hidden from it, and of which
    nothing is written."""
    a, block = first.architecture, first.architecture.blocks[0]
    assert a.encoder is not None
    assert block.cross is not None
    like = next(module.parameters())
    given = {
        "encoder_hidden_states": like.new_zeros(n, 1, a.encoder.d_model),
        "encoder_attention_mask": torch.zeros(n, 1, dtype=torch.long, device=like.device),
    }
    if block.merged:
        yield given
        return
    inner = block.cross.o.module.removeprefix(f"{block.module}.")
    with _after(_first_of(first, module).get_submodule(inner), torch.zeros_like):
        yield given


def _is_of_pair(weights: Weights) -> bool:
    """Whether these are one of the two stacks of an encoder–decoder."""
    return weights.decoder is not None or weights.architecture.encoder is not None


def _stack_of(weights: Weights) -> nn.Module:
    """One stack of an encoder–decoder. A decoder's is run without a source, as transformers does
    where there is none: cross-attention is left out. T5Gemma's is given one that is hidden."""
    module: Any = module_of(weights.decoder or weights)
    stack: nn.Module = module.get_decoder() if weights.decoder is None else module.get_encoder()
    return stack


def _first_of(first: Weights, module: nn.Module) -> nn.Module:
    """The module of the first block; a stack's own names are the ends of those of the whole."""
    if not _is_of_pair(first):
        return block_modules(first, module)[0]
    path = first.architecture.blocks[0].module
    ends = (name for name, _ in module.named_modules() if name and path.endswith(f".{name}"))
    return module.get_submodule(next(ends))


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
def _watch(first: Weights, module: nn.Module, entering: bool) -> Iterator[list[Tensor]]:
    """Inside, a forward pass ends at the block and leaves what it saw in the list."""
    seen: list[Tensor] = []
    block, streams = _first_of(first, module), first.architecture.streams

    def see_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])
        raise EnoughError

    def see_output(_: nn.Module, __: Any, out: Any) -> None:
        passed = out[0] if isinstance(out, tuple | list) else out
        seen.append(passed if streams is None else passed[streams.active])
        raise EnoughError

    with RECORDING, ExitStack() as undo:
        undo.enter_context(evaluating(module))
        if entering:
            reads = block if streams is None else _reader_of(first, block)
            handle = reads.register_forward_pre_hook(see_input, with_kwargs=True)
        else:
            handle = block.register_forward_hook(see_output)
        undo.callback(handle.remove)
        yield seen


def _reader_of(first: Weights, block: nn.Module) -> nn.Module:
    """The module that reads the one of several streams which the block works on: its first norm."""
    spec = first.architecture.blocks[0]
    assert spec.attention.pre_norm is not None
    assert spec.attention.pre_norm.module is not None
    return block.get_submodule(spec.attention.pre_norm.module.removeprefix(f"{spec.module}."))


@contextmanager
def _after(module: nn.Module, see: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Inside, what the module gives is seen, and replaced if `see` says by what."""
    handle = module.register_forward_hook(lambda _, __, out: see(out))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _everywhere(first: Weights, module: nn.Module) -> Iterator[None]:
    """Inside, learned positions are their mean."""
    places = _places(first, module)
    if places is None or first.architecture.positions is None:
        yield
        return
    mean = places.weight[first.architecture.position_offset :].mean(0)  # type: ignore[index]
    with _after(places, lambda out: mean.expand_as(out)):
        yield


def _places(first: Weights, module: nn.Module) -> nn.Module | None:
    """The module that adds positions, learned or calculated, if there is one."""
    a = first.architecture
    if a.sinusoids is not None:
        own = a.sinusoids.rpartition(".")[2]
        place: nn.Module
        place = next(m for name, m in module.named_modules() if name.rpartition(".")[2] == own)
        return place
    if a.positions is not None and _is_of_pair(first):
        return module.get_submodule(a.positions.split(".")[-2])
    name = None if a.positions is None else module_names(first, module).get(a.positions)
    return None if name is None else module.get_submodule(name.rpartition(".")[0])
