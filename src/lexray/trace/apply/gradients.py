"""How an answer would move with every vector of a run: one backward pass, recorded.

The module's parameters get no gradients, live or not: only the run's own vectors are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.checkpoint.module import modules_by_name
from lexray.errors import LexrayError
from lexray.families import Block, Experts, FeedForward
from lexray.trace.apply.actions import Action
from lexray.trace.apply.choose import make_editor
from lexray.trace.record.attention import watch_attention
from lexray.trace.record.beside import as_rows
from lexray.trace.record.experts import Inside, Look, watch_experts
from lexray.trace.record.module import module_of
from lexray.trace.record.running import RECORDING, evaluating
from lexray.trace.record.spread import entry_device
from lexray.trace.recording import Recording, no_head

Caught = (
    Literal["resid_pre", "resid_post", "z", "attn_write", "mixer_write", "mlp_write", "mlp_in"]
    | Literal["laurel_write"]
    | Literal["coefficients", "pre", "shared_weight", "cross_z", "cross_write"]
)
_Caught = dict[tuple[int, Caught], Tensor]
Metric = Callable[[Float[Tensor, "n d_vocab"]], Float[Tensor, ""]]
"""Of the logits at all positions."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """What each caught vector was, and in which direction the metric grows."""

    value: float
    states: dict[tuple[int, Caught], Float[Tensor, "n width"]]
    slopes: dict[tuple[int, Caught], Float[Tensor, "n width"]]
    source: Gradients | None = None
    """Of an encoder–decoder: the same in the encoder."""


def gradients(
    recording: Recording,
    metric: Metric,
    wanted: Sequence[Caught],
    actions: Sequence[Action] = (),
) -> Gradients:
    """Runs the recorded sequence (with its edits) once more, forwards and backwards."""
    module = module_of(recording.model)
    modules = modules_by_name(module)
    stacks = [recording] if recording.source is None else [recording, recording.source]
    caught: list[_Caught] = [{} for _ in stacks]
    with RECORDING, ExitStack() as undo:
        undo.enter_context(evaluating(module))
        undo.enter_context(torch.enable_grad())
        experts = _Experts(recording, modules)
        undo.enter_context(_start(module))
        for stack, own in zip(stacks, caught, strict=True):
            for n, block in enumerate(stack.weights.architecture.blocks):
                for name in wanted:
                    _catch(undo, modules, n, block, name, own)
        given = _encode(recording, module, modules, actions)
        later = [action for action in actions if not action.encoder]
        undo.enter_context(_change(recording, module, modules, later, experts.see))
        logits = _forward(recording, module, given)
    value = metric(logits)
    asked = [x for own in caught for x in own.values()]
    inside = experts.tensors if "pre" in wanted else []
    grads = torch.autograd.grad(value, [*asked, *inside], allow_unused=True)
    slopes = iter(grads)
    found = [
        _gather(float(value.detach()), stack, own, slopes)
        for stack, own in zip(stacks, caught, strict=True)
    ]
    if inside:
        experts.put(found[0].states, found[0].slopes, grads[len(asked) :])
    return replace(found[0], source=found[1]) if found[1:] else found[0]


def _gather(
    value: float, recording: Recording, caught: _Caught, slopes: Iterator[Tensor | None]
) -> Gradients:
    """What was caught in one stack, with the next slopes."""
    ups = {key: _or_none(next(slopes), x) for key, x in caught.items()}
    states, by_part = (
        {key: _shape(recording, key, x) for key, x in part.items()} for part in (caught, ups)
    )
    states |= {key: part for key in states if (part := _own_part(recording, key)) is not None}
    return Gradients(value, states, by_part)


def _own_part(recording: Recording, key: tuple[int, Caught]) -> Float[Tensor, "n width"] | None:
    """Of merged attention (T5Gemma 2): what heads took of one of the two, and wrote of it, which no
    module gives by itself; their slopes are those of the sum."""
    n, name = key
    if not recording.weights.architecture.blocks[n].merged:
        return None
    if name not in ("z", "cross_z", "attn_write", "cross_write"):
        return None
    if len(recording.positions) < len(recording):
        raise LexrayError(
            f"gradients at L{n}.{name} of {recording.model.name}, whose attention to itself and to "
            "its source is one, need all positions; trace it without positions="
        )
    layer = recording[n]
    x = {
        "z": lambda: layer.z,
        "cross_z": lambda: layer.cross.z,
        "attn_write": lambda: layer.attn_write,
        "cross_write": lambda: layer.cross.write,
    }[name]()
    return x.reshape(len(recording), -1)


def _or_none(slope: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if slope is None else slope


def _shape(recording: Recording, key: tuple[int, Caught], x: Tensor) -> Float[Tensor, "n width"]:
    """One line for each position; several streams lie in a row."""
    streams = recording.weights.architecture.streams
    if streams is not None and key[1] in ("resid_pre", "resid_post"):
        x = as_rows(x)
    x = x.detach().reshape(len(recording), -1)
    ff = dense_part(recording.weights.architecture.blocks[key[0]].ff)
    if key[1] != "pre" or ff is None:
        return x
    return x[:, ff.w_in.start : ff.w_in.start + ff.d_mlp]  # of keys and gates in one matrix


def _encode(
    recording: Recording,
    module: Any,
    modules: dict[str, nn.Module],
    actions: Sequence[Action],
) -> dict[str, Any]:
    """Of an encoder–decoder: what the decoder is given of the source, with its graph."""
    source = recording.source
    if source is None:
        return {}
    own = [action for action in actions if action.encoder]
    ids = source.ids[None].to(next(module.parameters()).device)
    mask = torch.ones_like(ids)
    with _change(source, module, modules, own, lambda *_: None):
        given = module.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    return {"encoder_outputs": given, "attention_mask": mask}


class _Experts:
    """What experts computed inside, each at the tokens that reached it."""

    def __init__(self, recording: Recording, modules: dict[str, nn.Module]) -> None:
        self.recording = recording
        self.blocks = recording.weights.architecture.blocks
        self.layer_of = {
            id(part): n
            for n, block in enumerate(self.blocks)
            if isinstance(block.ff, Experts)
            for part in modules[block.ff.module].modules()
        }
        self.seen: list[tuple[int, int, Inside]] = []

    def see(self, module: nn.Module, expert: int, inside: Inside) -> None:
        layer = self.layer_of.get(id(module))
        if layer is not None:
            self.seen.append((layer, expert, inside))

    @property
    def tensors(self) -> list[Tensor]:
        return [inside.pre for _, _, inside in self.seen]

    def put(self, states: _Caught, slopes: _Caught, grads: Sequence[Tensor | None]) -> None:
        """Coefficients, as loud as the router made them, and slopes of what keys gave: the chosen
        experts' neurons side by side, and behind them the shared expert's."""
        routed: _Caught = {}
        for (layer, expert, x), grad in zip(self.seen, grads, strict=True):
            ff = self.blocks[layer].ff
            assert isinstance(ff, Experts)
            w_in, size = ff.experts[expert].w_in, ff.experts[expert].d_mlp
            weight, scaled = x.weight[:, None], ff.routing.on_input
            slope = torch.zeros_like(x.pre) if grad is None else grad
            sides: tuple[tuple[Caught, Tensor], ...] = (
                ("coefficients", x.active * ff.share * (1 if scaled else weight)),
                ("pre", slope * weight if scaled else slope),
            )
            for name, rows in sides:
                keys = w_in.start if x.start is None else x.start
                start, step = (keys, w_in.step) if name == "pre" else (0, 1)
                shape = (len(self.recording), ff.top_k, size)
                room = routed.setdefault((layer, name), rows.new_zeros(shape))
                room[x.token, x.choice] = rows[:, start::step][:, :size].detach()
        for (layer, name), room in routed.items():
            own = states if name == "coefficients" else slopes
            shared = own.get((layer, name))
            if shared is not None and (layer, "shared_weight") in states and name != "pre":
                shared = shared * states[layer, "shared_weight"].sigmoid()
            mixture = self.blocks[layer].ff
            if shared is not None and name != "pre" and isinstance(mixture, Experts):
                shared = shared * mixture.share
            parts = [room.flatten(1)] if shared is None else [room.flatten(1), shared]
            own[layer, name] = torch.cat(parts, 1)


def dense_part(ff: FeedForward | Experts) -> FeedForward | None:
    """The feed-forward, or the shared expert of a mixture."""
    return ff.shared if isinstance(ff, Experts) else ff


def _forward(
    recording: Recording, module: nn.Module, given: dict[str, Any]
) -> Float[Tensor, "n d_vocab"]:
    """`given` is what an encoder gave, if there is one."""
    ids = recording.ids[None].to(entry_device(recording.model, module))
    options: dict[str, Any] = {"return_dict": True}
    if recording.model.architecture.causal:
        options["use_cache"] = False
    if given:
        out = module(decoder_input_ids=ids, **given, **options)
    else:
        out = module(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    logits = out.get("logits", out.get("prediction_logits"))
    if logits is None:
        raise no_head(recording.model)
    first: Tensor = logits[0].float()
    return first


@contextmanager
def _start(module: Any) -> Iterator[None]:
    """Inside, the graph begins at the token embedding; nothing before it can be asked."""
    stacks = [module]
    if getattr(module.config, "is_encoder_decoder", False):
        stacks = [module.get_encoder(), module.get_decoder()]
    embeddings = {id(own): own for own in (stack.get_input_embeddings() for stack in stacks)}
    handles = [
        own.register_forward_hook(lambda _, __, out: out.detach().clone().requires_grad_())
        for own in embeddings.values()
    ]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, wanted in flags:
            parameter.requires_grad_(wanted)


@contextmanager
def _change(
    recording: Recording,
    module: nn.Module,
    modules: dict[str, nn.Module],
    actions: Sequence[Action],
    look: Look,
) -> Iterator[None]:
    """Inside, the run's own edits apply, and experts are computed one by one."""
    architecture = recording.weights.architecture
    editor = make_editor(recording, modules, [list(actions)])
    with ExitStack() as undo:
        if editor.attends:
            undo.enter_context(watch_attention(module, None, editor))
        if any(isinstance(block.ff, Experts) for block in architecture.blocks):
            undo.enter_context(watch_experts(module, None, editor, look))
        if actions:
            undo.enter_context(editor.editing())
        yield


def _catch(
    undo: ExitStack,
    modules: dict[str, nn.Module],
    n: int,
    block: Block,
    name: Caught,
    caught: dict[tuple[int, Caught], Tensor],
) -> None:
    """Keeps what a hook sees, with its graph."""
    ff = block.ff
    if not _has(block, name):
        return
    if name == "mlp_write" and isinstance(ff, Experts) and ff.shared and ff.shared_beside:
        pair = modules[ff.module], modules[ff.shared.w_out.module]
        _catch_sum(undo, *pair, lambda x: caught.__setitem__((n, name), x))
        return
    dense = dense_part(ff)
    before: dict[Caught, str] = {
        "resid_pre": block.module,
        "z": block.attention.o.module,
        "mlp_in": ff.module if isinstance(ff, Experts) else ff.w_in.module,
    }
    after: dict[Caught, str] = {
        "resid_post": block.module,
        "attn_write": block.attention.o.module,
    }
    if isinstance(ff, Experts) and ff.sum_reader is not None:
        before["mlp_write"] = ff.sum_reader
    else:
        after["mlp_write"] = ff.module if isinstance(ff, Experts) else ff.w_out.module
    if block.mixer is not None:
        after["mixer_write"] = block.mixer.w_out.module
    if block.laurel is not None:
        after["laurel_write"] = block.laurel.w_out.module
    if block.cross is not None:
        before["cross_z"] = after["cross_write"] = block.cross.o.module
    if dense is not None:
        before["coefficients"] = dense.w_out.module
        after["pre"] = dense.w_in.module
    if isinstance(ff, Experts) and ff.shared_gate is not None:
        after["shared_weight"] = ff.shared_gate.module
    if name not in (*before, *after):
        return
    if name in before:

        def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught[n, name] = args[0] if args else kwargs["hidden_states"]

        handle = modules[before[name]].register_forward_pre_hook(see, with_kwargs=True)
    else:

        def look(_: nn.Module, __: Any, out: Any) -> Any:
            x: Tensor = out[0] if isinstance(out, tuple | list) else out
            caught[n, name] = x  # and on goes a copy: some blocks add to it in place
            return (x.clone(), *out[1:]) if isinstance(out, tuple | list) else x.clone()

        handle = modules[after[name]].register_forward_hook(look)
    undo.callback(handle.remove)


def _has(block: Block, name: Caught) -> bool:
    """Whether a layer has what is asked for: in hybrids some have no heads, or no neurons."""
    if name in ("z", "attn_write"):
        return not block.attention.absent
    if name in ("mixer_write", "laurel_write"):
        return (block.mixer if name == "mixer_write" else block.laurel) is not None
    if name in ("cross_z", "cross_write"):
        return block.cross is not None
    return name in ("resid_pre", "resid_post") or not block.ff.absent


def _catch_sum(
    undo: ExitStack, first: nn.Module, last: nn.Module, keep: Callable[[Tensor], None]
) -> None:
    """The same of what two modules write together: the last one is made to give their sum less
    what the first gave, so that all that follows goes through the sum."""
    seen: list[Tensor] = []

    def add(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        total = out + seen[0].view_as(out)
        keep(total)
        return total - seen[0].view_as(out)

    hooks = [
        first.register_forward_hook(lambda _, __, out: seen.__setitem__(slice(None), [out])),
        last.register_forward_hook(add),
    ]
    for hook in hooks:
        undo.callback(hook.remove)
