"""How an answer would move with every vector of a run: one backward pass, recorded.

The module's parameters get no gradients, live or not: only the run's own vectors are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.checkpoint.module import modules_by_name
from lexray.families import Experts
from lexray.trace.apply.actions import Action
from lexray.trace.apply.editor import Editor
from lexray.trace.record.attention import eager_attention, watch_attention
from lexray.trace.record.experts import watch_experts
from lexray.trace.record.hooks import RECORDING, evaluating
from lexray.trace.record.module import module_of
from lexray.trace.recording import Recording, no_head

Caught = Literal["resid_pre", "z", "attn_write", "mlp_write", "mlp_in", "coefficients", "pre"]
Metric = Callable[[Float[Tensor, "n d_vocab"]], Float[Tensor, ""]]
"""Of the logits at all positions."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """What each caught vector was, and in which direction the metric grows."""

    value: float
    states: dict[tuple[int, Caught], Float[Tensor, "n width"]]
    slopes: dict[tuple[int, Caught], Float[Tensor, "n width"]]


def gradients(
    recording: Recording,
    metric: Metric,
    wanted: Sequence[Caught],
    actions: Sequence[Action] = (),
) -> Gradients:
    """Runs the recorded sequence (with its edits) once more, forwards and backwards."""
    module = module_of(recording.model)
    architecture, modules = recording.weights.architecture, modules_by_name(module)
    caught: dict[tuple[int, Caught], Tensor] = {}
    with RECORDING, ExitStack() as undo:
        undo.enter_context(evaluating(module))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(_change(recording, module, modules, actions))
        undo.enter_context(_start(module))
        for n, block in enumerate(architecture.blocks):
            for name in wanted:
                _catch(undo, modules, n, block, name, caught)
        logits = _forward(recording, module)
    value = metric(logits)
    keys = list(caught)
    slopes = torch.autograd.grad(value, [caught[key] for key in keys], allow_unused=True)

    def shape(key: tuple[int, Caught], x: Tensor) -> Tensor:
        x = x.detach().reshape(len(recording), -1)
        ff = architecture.blocks[key[0]].ff
        if key[1] != "pre" or isinstance(ff, Experts):
            return x
        return x[:, ff.w_in.start : ff.w_in.start + ff.d_mlp]  # of keys and gates in one matrix

    states = {key: shape(key, x) for key, x in caught.items()}
    given = zip(keys, slopes, strict=True)
    found = {k: shape(k, torch.zeros_like(caught[k]) if g is None else g) for k, g in given}
    return Gradients(float(value.detach()), states, found)


def _forward(recording: Recording, module: nn.Module) -> Float[Tensor, "n d_vocab"]:
    ids = recording.ids[None].to(next(module.parameters()).device)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "return_dict": True}
    if recording.model.architecture.causal:
        options["use_cache"] = False
    out = module(input_ids=ids, **options)
    logits = out.get("logits", out.get("prediction_logits"))
    if logits is None:
        raise no_head(recording.model)
    found: Tensor = logits[0].float()
    return found


@contextmanager
def _start(module: Any) -> Iterator[None]:
    """Inside, the graph begins at the token embedding; nothing before it can be asked."""
    embedding: nn.Module = module.get_input_embeddings()
    handle = embedding.register_forward_hook(
        lambda _, __, out: out.detach().clone().requires_grad_()
    )
    flags = [(p, p.requires_grad) for p in module.parameters()]
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        handle.remove()
        for parameter, wanted in flags:
            parameter.requires_grad_(wanted)


@contextmanager
def _change(
    recording: Recording,
    module: nn.Module,
    modules: dict[str, nn.Module],
    actions: Sequence[Action],
) -> Iterator[None]:
    """Inside, the run's own edits apply, and experts are computed one by one."""
    architecture = recording.weights.architecture
    attentions = (modules[block.attention.module] for block in architecture.blocks)
    interface = all(eager_attention(part) is not None for part in attentions)
    editor = Editor(architecture, modules, [list(actions)], [len(recording)], interface)
    with ExitStack() as undo:
        if editor.attends:
            undo.enter_context(watch_attention(module, None, editor))
        if any(isinstance(block.ff, Experts) for block in architecture.blocks):
            undo.enter_context(watch_experts(module, None, editor))
        if actions:
            undo.enter_context(editor.editing())
        yield


def _catch(
    undo: ExitStack,
    modules: dict[str, nn.Module],
    n: int,
    block: Any,
    name: Caught,
    caught: dict[tuple[int, Caught], Tensor],
) -> None:
    """Keeps what a hook sees, with its graph."""
    ff = block.ff
    mixture = isinstance(ff, Experts)
    if name in ("coefficients", "pre") and mixture:
        return
    before: dict[Caught, str] = {
        "resid_pre": block.module,
        "z": block.attention.o.module,
        "mlp_in": ff.module if mixture else ff.w_in.module,
    }
    after: dict[Caught, str] = {
        "attn_write": block.attention.o.module,
        "mlp_write": ff.module if mixture else ff.w_out.module,
    }
    if not mixture:
        before["coefficients"] = ff.w_out.module
        after["pre"] = ff.w_in.module
    if name in before:

        def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught[n, name] = args[0] if args else kwargs["hidden_states"]

        handle = modules[before[name]].register_forward_pre_hook(see, with_kwargs=True)
    else:

        def look(_: nn.Module, __: Any, out: Any) -> Any:
            x: Tensor = out[0] if isinstance(out, tuple) else out
            caught[n, name] = x  # and on goes a copy: some blocks add to it in place
            return (x.clone(), *out[1:]) if isinstance(out, tuple) else x.clone()

        handle = modules[after[name]].register_forward_hook(look)
    undo.callback(handle.remove)
