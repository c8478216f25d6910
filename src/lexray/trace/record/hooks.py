"""One forward pass of transformers' own model, watched from hooks on the modules a family names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lexray.checkpoint import Checkpoint
from lexray.checkpoint.module import modules_by_name
from lexray.errors import LexrayError
from lexray.families import (
    Architecture,
    Attention,
    Block,
    Experts,
    FeedForward,
    Heads,
    Latent,
    Linear,
    Mixer,
    Norm,
    QKNorm,
)
from lexray.families.streams import AltUp, unite
from lexray.trace.record.attention import (
    only_first,
    uses_interface,
    watch_attention,
    weights_of,
)
from lexray.trace.record.beside import as_rows, read_predictions
from lexray.trace.record.experts import watch_experts
from lexray.trace.record.keeper import Keeper
from lexray.trace.record.running import RECORDING, EnoughError, evaluating

Once = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]


@dataclass
class Recorder(Keeper):
    """Hooks on the modules that a family names, and what they see."""

    module: nn.Module
    architecture: Architecture
    """Described in the module's own names."""
    checkpoint: Checkpoint
    handles: list[RemovableHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tails: dict[int, Tensor] = {}
        self.modules = modules_by_name(self.module)
        self.layer_of = {
            id(part): n
            for n, block in enumerate(self.architecture.blocks)
            for part in self.modules[block.module].modules()
        }

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, forward passes are recorded; afterwards the module is as it was."""
        with RECORDING, ExitStack() as undo:
            undo.callback(self._remove_hooks)
            undo.enter_context(evaluating(self.module))
            editor = self.editor
            watch = self._see_attention if self.watches else None
            if self.uses_interface and (watch or (editor is not None and editor.attends)):
                undo.enter_context(watch_attention(self.module, watch, editor))
            if self._has_experts():
                undo.enter_context(watch_experts(self.module, self._see_experts, editor))
            if editor is not None:  # before the hooks that look
                undo.enter_context(editor.editing())
            self._add_hooks()
            yield
        self.keep_edits()

    @property
    def watches(self) -> bool:
        """Whether attention itself is looked at."""
        return "attention" in self.plan.what

    @property
    def uses_interface(self) -> bool:
        """Whether all of its attention is looked up in transformers' interface."""
        return uses_interface(self.architecture, self.modules)

    def _has_experts(self) -> bool:
        return any(isinstance(block.ff, Experts) for block in self.architecture.blocks)

    # ------------------------------------------------------------------ what hooks see

    def _see_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, weights: Tensor
    ) -> None:
        layer = self.layer_of.get(id(module))
        if layer is None or layer not in self.plan.layers:
            return
        if self.architecture.blocks[layer].attention.turns:
            self.keep(layer, "q_rotated", q.transpose(1, 2))
            self.keep(layer, "k_rotated", k.transpose(1, 2), everywhere=True)
        self.keep_weights(layer, weights)

    def _see_experts(self, module: nn.Module, chosen: Tensor, weights: Tensor, c: Tensor) -> None:
        layer = self.layer_of.get(id(module))
        if layer in self.plan.layers and "mlp" in self.plan.what:
            self.keep(layer, "chosen", chosen)
            self.keep(layer, "weights", weights)
            self.keep(layer, "coefficients", c.reshape(*self.shape, *c.shape[1:]))

    # ------------------------------------------------------------------ hooks

    def before(self, name: str, see: Callable[[Tensor], None]) -> None:
        """Shows a module's first input to `see`."""
        hook = partial(_show_input, see)
        self.handles.append(self._find(name).register_forward_pre_hook(hook, with_kwargs=True))

    def after(self, name: str, see: Callable[[Any], None]) -> None:
        """Shows a module's output to `see`."""
        hook = self._find(name).register_forward_hook(lambda _, __, out: see(out))
        self.handles.append(hook)

    def _find(self, name: str) -> nn.Module:
        if name not in self.modules:
            raise LexrayError(
                f"{self.checkpoint.name} has no module {name!r}, which its family names"
            )
        return self.modules[name]

    def _remove_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    def _keeper(self, layer: int | None, name: str) -> Callable[[Any], None]:
        return lambda x: self.keep(layer, name, _first(x))

    def _add_hooks(self) -> None:
        self._hook_ends()
        blocks, kept = self.architecture.blocks, self.plan.layers
        for n, block in enumerate(blocks):
            if n == 0 or ("residual" in self.plan.what and {n, n - 1} & {*kept}):
                self.before(block.module, partial(self._keep_stream, n))
            if n in kept:
                if not block.attention.absent:
                    self._hook_attention(n, block.attention)
                if "residual" in self.plan.what:
                    self._hook_beside(n, block)
                if not block.ff.absent:
                    self._hook_ff(n, block.ff)
        self.after(blocks[-1].module, partial(self._keep_stream, len(blocks)))
        if self.plan.stops and kept:
            self.after(blocks[max(kept)].module, partial(self._stop, max(kept)))

    def _stop(self, n: int, out: Any) -> None:
        """After the last layer that is wanted; what it gives on tells whether all went well."""
        self._keep_stream(n + 1, out)
        raise EnoughError

    def _keep_stream(self, n: int, passed: Any) -> None:
        """What enters a block; of several streams each, and what they come to together."""
        x, streams = _first(passed), self.architecture.streams
        if streams is not None:
            rows = as_rows(x)
            self.keep(n, "streams", rows)
            x = unite(rows, [self._find(linear.module) for linear in streams.gather])
        self.keep(n, "resid_pre", x)

    def _hook_altup(self, n: int, spec: AltUp) -> None:
        """By which numbers a layer mixes the streams."""
        self.after(spec.predict.module, lambda x: self.keep(n, "predict", read_predictions(x)))
        self.after(spec.correct.module, lambda x: self.keep(n, "correct", x + 1))

    def _hook_ends(self) -> None:
        """The parts of the embedding (where there is more than the tokens'), and the final norm."""
        a = self.architecture
        if a.positions or a.token_types or a.embed_norm or a.sinusoids or a.streams:
            names = {"token": a.embed, "position": a.positions, "token_type": a.token_types}
            if a.project_in is not None and not a.projects_last:
                names["token"] = a.project_in.weight
            if a.embedder is not None:
                names["token"] = f"{a.embedder}.weight" if a.embedder else None
            for part, tensor in names.items():
                if tensor is not None:
                    owner = tensor.rpartition(".")[0]
                    self.after(owner, self._keeper(None, f"embed.{part}"))
            if a.sinusoids is not None:
                self.after(a.sinusoids, self._keeper(None, "embed.position"))
        if a.final_norm is not None and a.final_norm.module in self.modules:
            self.after(a.final_norm.module, self._keeper(None, "normed"))

    def _hook_attention(self, n: int, spec: Attention) -> None:
        what = self.plan.what
        once: Once = only_first if self._is_called_again(spec) else _as_it_is
        if "residual" in what:
            self.before(spec.q.linear.reader, once(self._keeper(n, "attn_in")))
            self.after(spec.o.module, self._keeper(n, "attn_write"))
            if spec.post_norm is not None and spec.post_norm.module is not None:
                self.after(spec.post_norm.module, self._keeper(n, "attn_out"))
        if "heads" in what:
            width = spec.v.d_head
            self.before(
                spec.o.module, lambda x: self._keep_z(n, split_heads(self.as_batch(x), width))
            )
        if "attention" in what:
            if spec.gate is not None:
                self.after(spec.gate.linear.module, partial(self._keep_gate, n, spec.gate))
            for name, heads, norm in (
                ("q", spec.q, spec.q_norm),
                ("k", spec.k, spec.k_norm),
                ("v", spec.v, spec.v_norm),
            ):
                see = partial(self._keep_projection, n, name, heads, norm, spec.clip)
                tail = heads.linear.tail if isinstance(heads.linear, Latent) else None
                if tail is not None:
                    self.after(tail.module, partial(self._see_tail, n, tail))
                self.after(heads.linear.module, once(see))
            self.after(spec.module, lambda out: self._fill_attention(n, spec, out))
            if not spec.o.module.startswith(f"{spec.module}."):  # edits act behind it
                self.after(spec.o.module, lambda _: self._fill_edited(n))

    def _is_called_again(self, spec: Attention) -> bool:
        """Whether other things go through the maps of queries and keys, after these."""
        return spec.called_again

    def _keep_z(self, n: int, z: Tensor) -> None:
        self.keep(n, "z", z)

    def _hook_beside(self, n: int, block: Block) -> None:
        """A mixer, LAuReL, and how several streams are mixed."""
        if block.mixer is not None:
            self.before(block.mixer.inputs[0].module, self._keeper(n, "mixer_in"))
            self._hook_mixer(n, "mixer", block.mixer)
        if block.laurel is not None:  # which reads what attention does
            self._hook_mixer(n, "laurel", block.laurel)
        if block.altup is not None:
            self._hook_altup(n, block.altup)

    def _hook_mixer(self, n: int, name: str, spec: Mixer) -> None:
        self.after(spec.w_out.module, self._keeper(n, f"{name}_write"))
        if spec.post_norm is not None and spec.post_norm.module is not None:
            self.after(spec.post_norm.module, self._keeper(n, f"{name}_out"))

    def _keep_gate(self, n: int, gate: Heads, out: Tensor) -> None:
        self.keep(n, "gate", _part(self.as_batch(out), gate, None).sigmoid())

    def _keep_projection(
        self, n: int, name: str, heads: Heads, norm: QKNorm | None, clip: float | None, out: Tensor
    ) -> None:
        tail = self.tails.get(n) if name == "k" else None
        x = _part(self.as_batch(out), heads, tail) * heads.linear.factor
        x = self._normalise(x, norm, clip)
        self.keep(n, name, x, everywhere=name != "q")

    def _see_tail(self, n: int, tail: Linear, out: Tensor) -> None:
        """The part of a layer's keys that all heads share, and that comes before the rest."""
        self.tails[n] = self.as_batch(out)[..., tail.start : tail.start + (tail.size or 0)]

    def _normalise(self, x: Tensor, norm: QKNorm | None, clip: float | None) -> Tensor:
        """A projection (batch, position, head, width), clipped and normalised as its queries and
        keys are, in float32 at least as transformers does it."""
        if clip is not None:
            x = x.clamp(-clip, clip)
        if norm is None:
            return x
        wide = x.float() if x.dtype.itemsize < 4 else x
        if norm.joint is not None:
            return norm.joint(wide.flatten(-2), self.checkpoint).view_as(x).to(x)
        heads = [replace(own, gain=None) if norm.turned else own for own in norm.heads]
        each = [own(wide[..., h, :], self.checkpoint) for h, own in enumerate(heads)]
        return torch.stack(each, dim=-2).to(x)

    def _fill_attention(self, n: int, spec: Attention, out: Any) -> None:
        """What an architecture with its own attention code lets out, and the rest from q and k."""
        if (n, "pattern") in self.kept[0]:
            return
        full = (self.shape[0], len(spec.q.starts), self.shape[1], self.shape[1])
        for part in out if isinstance(out, tuple | list) else ():
            if isinstance(part, Tensor) and part.shape == full:
                self.keep_weights(n, part)
        for s, kept in enumerate(self.kept):
            at = self.plan.rows(s, self.plan.device)
            if spec.rotary is not None:
                everywhere = torch.arange(self.plan.lengths[s], device=self.plan.device)
                kept[n, "q_rotated"] = spec.rotary.turn(kept[n, "q"], at)
                kept[n, "k_rotated"] = spec.rotary.turn(kept[n, "k"], everywhere)
            if (n, "pattern") not in kept:
                q, k = (kept.get((n, f"{x}_rotated"), kept[n, x]) for x in "qk")
                kept[n, "pattern"] = weights_of(
                    spec, q, k, at, self.architecture.causal, self.checkpoint
                )
        self._fill_edited(n)

    def _fill_edited(self, n: int) -> None:
        """Weights that were changed from outside the architecture's own attention."""
        for (row, layer, head), weights in (
            {} if self.editor is None else self.editor.patterns
        ).items():
            if layer == n:
                kept = self.kept[row][n, "pattern"]
                kept[head] = weights[self.plan.rows(row, weights.device)].to(kept)

    def _hook_ff(self, n: int, ff: FeedForward | Experts) -> None:
        reader, writer = (
            (ff.module, ff.module) if isinstance(ff, Experts) else (ff.w_in.module, ff.w_out.module)
        )
        if "residual" in self.plan.what:
            self.before(reader, self._keeper(n, "mlp_in"))
            gathers = ff.sum_reader if isinstance(ff, Experts) else None
            if gathers is None:
                self.after(writer, self._keeper(n, "mlp_write"))
            else:
                self.before(gathers, self._keeper(n, "mlp_write"))
            if isinstance(ff, Experts) and ff.shared is not None and ff.shared_beside:
                self.after(ff.shared.w_out.module, partial(self.add, n, "mlp_write"))
            if ff.post_norm is not None and ff.post_norm.module is not None:
                self.after(ff.post_norm.module, self._keeper(n, "mlp_out"))
        if "mlp" in self.plan.what:
            if isinstance(ff, Experts):
                self._hook_shared(n, ff)
            else:
                self._hook_neurons(n, ff)

    def _hook_neurons(self, n: int, ff: FeedForward) -> None:
        for name, linear in (("pre", ff.w_in), ("gate_pre", ff.w_gate)):
            if linear is not None:
                self.after(linear.module, self._outputs(n, name, linear, ff.d_mlp))
        self.before(ff.w_out.module, self._keeper(n, "coefficients"))

    def _outputs(self, n: int, name: str, linear: Linear, size: int) -> Callable[[Any], None]:
        at = slice(linear.start, linear.start + size)
        return lambda out: self.keep(n, name, out[..., at] * linear.factor)

    def _hook_shared(self, n: int, ff: Experts) -> None:
        if ff.shared is not None:
            self.before(ff.shared.w_out.module, self._keeper(n, "shared_coefficients"))
        if ff.shared_gate is not None:
            self.after(
                ff.shared_gate.module,
                lambda out: self.keep(n, "shared_weight", out.sigmoid()),
            )
        for name, norm in (("experts_scale", ff.own_norm), ("shared_scale", ff.shared_norm)):
            if norm is not None and norm.module is not None:
                self.before(norm.module, partial(self._keep_scale, n, name, norm))

    def _keep_scale(self, n: int, name: str, norm: Norm, x: Tensor) -> None:
        """What a norm multiplies by, besides its gain."""
        wide = x.float() if x.dtype.itemsize < 4 else x
        self.keep(n, name, norm.scale(wide))


def _show_input(
    see: Callable[[Tensor], None], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    see(args[0] if args else kwargs["hidden_states"])


def _as_it_is(see: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return see


def _first(out: Any) -> Tensor:
    first: Tensor = out[0] if isinstance(out, tuple | list) else out
    return first


def split_heads(x: Tensor, width: int) -> Tensor:
    """The last axis as (head, width)."""
    return x.reshape(*x.shape[:-1], -1, width)


def _part(out: Tensor, heads: Heads, tail: Tensor | None) -> Tensor:
    """The heads inside a projection's output, as (…, head, width), with what all share."""
    starts, width = torch.tensor(heads.starts, device=out.device) + heads.linear.start, heads.d_head
    if tail is not None and isinstance(heads.linear, Latent):
        starts, width = torch.arange(len(starts)) * heads.linear.spacing, heads.linear.content
    part = out[..., starts[:, None] + torch.arange(width, device=out.device)]
    if tail is None:
        return part
    return torch.cat([part, tail[..., None, :].expand(*part.shape[:-1], -1)], -1)
