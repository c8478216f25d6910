"""Hooks that change a run: on the modules that a family names, and in attention and experts.

Hooks lie on a module that every thread shares; they act only in the context (thread, task) that
put them there, and are gone when it leaves, however it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lexray.checkpoint import Checkpoint
from lexray.families import Architecture, Experts, FeedForward, Heads, Latent, Mixer
from lexray.trace.apply.actions import ATTENTION, EXPERTS, STREAM, Action, Point
from lexray.trace.record.attention import only_first, weights_of
from lexray.trace.record.beside import as_passed, as_rows

EDITING: ContextVar[Editor | None] = ContextVar("lexray_editing", default=None)
"""Whose edits apply here."""

Row = int
Change = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Editor:
    """Changes what passes through a module: for each sequence of a batch its own actions."""

    architecture: Architecture
    """Described in the module's own names."""
    modules: Mapping[str, nn.Module]
    checkpoint: Checkpoint
    rows: Sequence[Sequence[Action]]
    lengths: Sequence[int]
    interface: bool
    """Whether attention goes through transformers' interface; else it is changed from outside."""
    width: int | None = None
    """The padded length; by default the longest sequence's."""
    added: dict[tuple[Row, int, Point], Tensor] = field(default_factory=dict)
    """What edits added to the stream, or to what sub-blocks write: (position, d_model)."""
    patterns: dict[tuple[Row, int, int], Tensor] = field(default_factory=dict)
    """Attention weights that were changed from outside, by sequence, layer and head."""

    def __post_init__(self) -> None:
        self.shape = len(self.rows), self.width or max(self.lengths)
        self._found: dict[tuple[int, Point], list[tuple[Row, Action]]] = {}
        for row, actions in enumerate(self.rows):
            for action in actions:
                self._found.setdefault((action.layer, action.point), []).append((row, action))
        self.layer_of = {
            id(part): n
            for n, block in enumerate(self.architecture.blocks)
            for part in self.modules[block.module].modules()
        }
        self._seen: dict[tuple[int, str], Tensor] = {}

    def at(self, layer: int, *points: Point) -> list[tuple[Row, Action]]:
        """The actions at a layer's points, in order."""
        return [action for point in points for action in self._found.get((layer, point), ())]

    def asks(self, *points: Point) -> bool:
        return any(point in points for _, point in self._found)

    @property
    def attends(self) -> bool:
        """Whether attention itself is changed, through transformers' interface."""
        return self.interface and self.asks(*ATTENTION)

    @property
    def mixes(self) -> bool:
        return self.asks(*EXPERTS)

    @property
    def active(self) -> bool:
        return EDITING.get() is self

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Inside, and in this context alone, passes are changed."""
        with ExitStack() as undo:
            token = EDITING.set(self)
            undo.callback(EDITING.reset, token)
            for n, block in enumerate(self.architecture.blocks):
                self._hook_stream(undo, n, block.module)
                self._hook_attention(undo, n)
                if block.mixer is not None and self.at(n, "mixer"):
                    self._hook_mixer(undo, n, "mixer", block.mixer)
                if block.laurel is not None and self.at(n, "laurel"):
                    self._hook_mixer(undo, n, "laurel", block.laurel)
                self._hook_ff(undo, n, block.ff)
            yield

    # ------------------------------------------------------------------ hooks

    def _before(self, undo: ExitStack, name: str, change: Change) -> None:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self.active:
                return None
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

        handle = self.modules[name].register_forward_pre_hook(hook, with_kwargs=True)
        undo.callback(handle.remove)

    def _after(self, undo: ExitStack, name: str, change: Change) -> None:
        def hook(_: nn.Module, __: Any, out: Any) -> Any:
            if not self.active:
                return None
            return (change(out[0]), *out[1:]) if isinstance(out, tuple | list) else change(out)

        undo.callback(self.modules[name].register_forward_hook(hook).remove)

    def _hook_stream(self, undo: ExitStack, n: int, name: str) -> None:
        if self.at(n, "pre"):
            self._before(undo, name, lambda x: self._stream(x, n, "pre"))
        if self.at(n, "post"):
            self._after(undo, name, lambda x: self._stream(x, n, "post"))

    def _hook_ff(self, undo: ExitStack, n: int, ff: FeedForward | Experts) -> None:
        dense = ff.shared if isinstance(ff, Experts) else ff
        point: Point = "shared_coefficients" if isinstance(ff, Experts) else "coefficients"
        if dense is not None and self.at(n, point):
            self._before(undo, dense.w_out.module, lambda x: self._columns(x, n, point, 1))
        if self.at(n, "mlp"):
            writer = ff.module if isinstance(ff, Experts) else ff.w_out.module
            if isinstance(ff, Experts) and ff.sum_reader is not None:
                self._before(undo, ff.sum_reader, lambda x: self._whole(x, n, "mlp"))
            elif isinstance(ff, Experts) and ff.shared is not None and ff.shared_beside:
                self._hook_sum(undo, n, writer, ff.shared.w_out.module)
            else:
                self._after(undo, writer, lambda x: self._whole(x, n, "mlp"))

    def _hook_sum(self, undo: ExitStack, n: int, first: str, last: str) -> None:
        """Where two modules write together, the change of their sum falls to the last one."""
        seen: list[Tensor] = []

        def remember(x: Tensor) -> Tensor:
            seen[:] = [x]
            return x

        self._after(undo, first, remember)
        self._after(
            undo, last, lambda x: self._whole(x + seen[0].view_as(x), n, "mlp") - seen[0].view_as(x)
        )

    def _hook_mixer(self, undo: ExitStack, n: int, point: Point, spec: Mixer) -> None:
        self._after(undo, spec.w_out.module, lambda x: self._whole(x, n, point))

    def _hook_attention(self, undo: ExitStack, n: int) -> None:
        spec = self.architecture.blocks[n].attention
        if self._outside(n) and self.at(n, *ATTENTION):
            self._hook_projections(undo, n)
            if self.at(n, "pattern") and not self.interface:
                self._before(undo, spec.o.module, lambda x: self._attend(x, n))
        if self.at(n, "z"):
            self._before(undo, spec.o.module, lambda x: self._columns(x, n, "z", spec.v.d_head))
        if self.at(n, "attn"):
            self._after(undo, spec.o.module, lambda x: self._whole(x, n, "attn"))

    # ------------------------------------------------------------------ changes

    def _batch(self, x: Tensor) -> Tensor:
        """A copy of x as (sequence, position, …), also where a module flattened these."""
        return x.reshape(*self.shape, -1).clone()

    def _stream(self, x: Tensor, n: int, point: Point) -> Tensor:
        """The residual stream; of several all, position by position."""
        if self.architecture.streams is None:
            return self._whole(x, n, point)
        return as_passed(self._whole(as_rows(x), n, point)).contiguous()

    def _whole(self, x: Tensor, n: int, point: Point) -> Tensor:
        """Whole vectors, and what was added to them."""
        batch = self._batch(x)
        for row, action in self.at(n, point):
            length = self.lengths[row]
            before = batch[row, :length].clone()
            batch[row, :length] = action(before)
            if point in STREAM:
                more = batch[row, :length] - before
                key = (row, n, point)
                self.added[key] = self.added[key] + more if key in self.added else more
        return batch.view(x.shape)

    def _columns(self, x: Tensor, n: int, point: Point, width: int) -> Tensor:
        """Some columns: a head's, a neuron's; or all, where no index is given."""
        batch = self._batch(x)
        for row, action in self.at(n, point):
            i = action.index
            columns = slice(None) if i is None else slice(i * width, (i + 1) * width)
            part = batch[row, : self.lengths[row], columns]
            batch[row, : self.lengths[row], columns] = action(
                part[:, 0] if part.shape[1] == 1 else part
            ).view_as(part)
        return batch.view(x.shape)

    # ------------------------------------------------------------------ attention by the interface

    def before_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (sequence, head, position, width) as they are changed."""
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, "q", "k", "v"):
            return q, k, v
        if self._outside(layer):
            return q, k, v
        changed: dict[Point, Tensor] = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        for point, x in changed.items():
            for row, action in self.at(layer, point):
                length = self.lengths[row]
                x[row, action.index, :length] = action(x[row, action.index, :length])
        return changed["q"], changed["k"], changed["v"]

    def after_attention(
        self, module: nn.Module, v: Tensor, out: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output (sequence, position, head, width) and the weights as they are changed."""
        return self._reweigh(module, "pattern", self.lengths, v, out, weights)

    def _reweigh(
        self,
        module: nn.Module,
        point: Point,
        seen: Sequence[int],
        v: Tensor,
        out: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Weights on the first `seen` positions of each sequence, and what heads take by them."""
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, point):
            return out, weights
        out, weights = out.clone(), weights.clone()
        shared = weights.shape[1] // v.shape[1]
        for row, action in self.at(layer, point):
            assert action.index is not None
            head, n, m = action.index, self.lengths[row], seen[row]
            changed = action(weights[row, head, :n, :m])
            weights[row, head, :n, :m] = changed
            out[row, :n, head] = changed @ v[row, head // shared, :m]
        return out, weights

    # ------------------------------------------------------------------ attention from outside

    def _outside(self, n: int) -> bool:
        """Whether queries, keys and values are changed as they leave their linear maps: where an
        architecture has its own attention code, or where nothing turns, clips or norms them
        behind (OPT scales its queries there), and nothing is put beside them (latent keys)."""
        spec = self.architecture.blocks[n].attention
        plain = (spec.rotary, spec.q_norm, spec.k_norm, spec.v_norm, spec.clip) == (None,) * 5
        return (plain and not isinstance(spec.k.linear, Latent)) or not self.interface

    def _hook_projections(self, undo: ExitStack, n: int) -> None:
        spec = self.architecture.blocks[n].attention
        projections: dict[Point, Heads] = {"q": spec.q, "k": spec.k, "v": spec.v}
        for point, heads in projections.items():
            change = self._projection(n, point, heads)
            once = only_first(change) if spec.called_again else change
            self._after(undo, heads.linear.module, once)

    def _projection(self, n: int, point: Point, heads: Heads) -> Change:
        def change(x: Tensor) -> Tensor:
            batch = self._batch(x)
            for row, action in self.at(n, point):
                assert action.index is not None
                columns = columns_of(heads, action.index)
                length = self.lengths[row]
                part = batch[row, :length, columns]
                unturned = getattr(action.operation, "unturned", None)
                part[action.at(x.device)] = (
                    action(part)[action.at(x.device)] if unturned is None else unturned.to(part)
                )
                batch[row, :length, columns] = part
            every = [batch[..., columns_of(heads, h)] for h in range(len(heads.starts))]
            self._seen[n, point] = torch.stack(every, 2)
            return batch.view(x.shape)

        return change

    def _attend(self, x: Tensor, n: int) -> Tensor:
        """Heads' sums of values, where their weights were changed."""
        spec = self.architecture.blocks[n].attention
        batch = self._batch(x)
        for row, action in self.at(n, "pattern"):
            assert action.index is not None
            head, length = action.index, self.lengths[row]
            q, k, v = (self._seen[n, name][row, :length] for name in "qkv")
            key = (row, n, head)
            if key not in self.patterns:
                at = torch.arange(length, device=x.device)
                if spec.rotary is not None:
                    q, k = spec.rotary.turn(q, at), spec.rotary.turn(k, at)
                whole = weights_of(spec, q, k, at, self.architecture.causal, self.checkpoint)
                self.patterns[key] = whole[head]
            self.patterns[key] = action(self.patterns[key])
            shared, width = len(spec.q.starts) // v.shape[1], v.shape[2]
            z = self.patterns[key].to(v) @ v[:, head // shared]
            batch[row, :length, head * width : (head + 1) * width] = z
        return batch.view(x.shape)

    # ------------------------------------------------------------------ experts

    def expert_weights(self, module: nn.Module, chosen: Tensor, weights: Tensor) -> Tensor:
        """Routing weights (token, choice) as they are changed."""
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, "expert"):
            return weights
        changed = weights.reshape(*self.shape, -1).clone()
        which = chosen.reshape(*self.shape, -1)
        for row, action in self.at(layer, "expert"):
            assert action.index is not None
            n = self.lengths[row]
            here = changed[row, :n]
            changed[row, :n] = torch.where(which[row, :n].eq(action.index), action(here), here)
        return changed.view_as(weights)

    def expert_coefficients(
        self, module: nn.Module, expert: int, tokens: Tensor, active: Tensor
    ) -> Tensor:
        """An expert's coefficients (token, neuron) at these tokens of the flattened batch."""
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, "expert_coefficients"):
            return active
        changed = active.clone()
        place, position = tokens // self.shape[1], tokens % self.shape[1]
        for row, action in self.at(layer, "expert_coefficients"):
            if action.index != expert:
                continue
            mine = ((place == row) & (position < self.lengths[row])).nonzero()[:, 0]
            neurons = slice(None) if action.inner is None else action.inner
            changed[mine, neurons] = action.some(changed[mine, neurons], position[mine])
        return changed


def columns_of(heads: Heads, head: int) -> slice:
    start = heads.starts[head] + heads.linear.start
    return slice(start, start + heads.d_head)
