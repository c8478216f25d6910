"""A recorded forward pass as data: every vector of it under one name, whatever the family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.choice import list_numbers
from lexray.errors import LexrayError
from lexray.families import Block, Experts, Norm
from lexray.families.streams import SHRUNK
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.result.readings import Token
from lexray.trace.record.active import ActiveFF, ExpertTrace
from lexray.trace.record.beside import BesideTrace, StreamsTrace
from lexray.trace.record.cross import CrossTrace, through_output
from lexray.trace.record.plan import What, not_kept


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """Everything that was kept of one sequence's forward pass.

    Readings, attributions and graphs need only this; `lexray.trace.trace.Trace` is the face on top.
    """

    model: Anatomy
    """The model as it was asked, under its view: by which the vectors are read."""
    weights: Anatomy
    """The weights behind the pass, raw: those of the module that ran."""
    ids: Int[Tensor, "n"]
    n_prompt: int
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    what: frozenset[What]
    """What of the pass was kept."""
    parts: Mapping[tuple[int | None, str], Tensor]
    """The tensors, by layer (None: the whole model) and name."""
    edits: tuple[object, ...] = ()
    """What was changed while it ran (`lexray.edits`)."""
    source: Recording | None = None
    """Of an encoder–decoder: the encoder's pass over the source."""

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        new = len(self) - self.n_prompt
        return (
            f"<{type(self).__name__} of {self.model.name}: {self.n_prompt} tokens"
            f"{f' and {new} new' * bool(new)}, "
            f"layers {list_numbers(self.layers)}, positions {list_numbers(self.positions)}, "
            f"{', '.join(sorted(self.what))}"
            f"{''.join(f', {edit}' for edit in self.edits)}"
            ": .lens(), .contributions(), .flow()>"
        )

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the whole sequence."""
        return tuple(self.model.space.token(i) for i in self.ids.tolist())

    def row(self, position: int) -> int:
        """Where a position (negative: from the end) lies among the kept ones."""
        n = len(self.ids)
        at = position + n if position < 0 else position
        if not 0 <= at < n:
            raise LexrayError(
                f"there is no position {position}: the sequence has {n} tokens, positions 0–{n - 1}"
            )
        if at not in self._rows:
            raise LexrayError(
                f"position {position} was not kept, only {list_numbers(self.positions)}; trace "
                f"again with positions={sorted({*self.positions, at})}, or without positions="
            )
        return self._rows[at]

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {position: row for row, position in enumerate(self.positions)}

    def __getitem__(self, layer: int) -> LayerTrace:
        n = self.model.n_layers
        at = layer + n if layer < 0 else layer
        if not 0 <= at < n:
            raise LexrayError(f"there is no layer {layer}: the model has layers 0–{n - 1}")
        if at not in self.layers:
            raise LexrayError(
                f"layer {layer} was not kept, only {list_numbers(self.layers)}; trace again with "
                f"layers={sorted({*self.layers, at})}, or without layers="
            )
        return LayerTrace(self, at)

    @property
    def embed(self) -> Float[Tensor, "p d_model"]:
        """What enters layer 0, as its `resid_pre` has it."""
        return self.parts[0, "resid_pre"]

    @cached_property
    def embed_parts(self) -> dict[str, Float[Tensor, "p width"]]:
        """What the embedding is the sum of ("token", "position", "token_type"), before its norm;
        as wide as the embedding, where that is made wider behind the norm (ALBERT)."""
        stem = "embed."
        own = {name: x for (_, name), x in self.parts.items() if name.startswith(stem)}
        parts = {name.removeprefix(stem): x for name, x in own.items()}
        edited = self.parts.get((0, "pre_edited"))
        if "token" not in parts:  # all that is left
            whole = self.embed if edited is None else self.embed - edited
            parts = {"token": whole - sum(parts.values()), **parts}
        return parts

    @property
    def final(self) -> Float[Tensor, "p d_model"]:
        """The residual stream after the last block."""
        return self.parts[self.model.n_layers, "resid_pre"]

    def entering(self, layer: int) -> Float[Tensor, "p width"] | None:
        """All that enters a layer, of several streams one after the other; None if not kept."""
        several = self.parts.get((layer, "streams"))
        return self.parts.get((layer, "resid_pre")) if several is None else several.flatten(1)

    @cached_property
    def normed(self) -> Float[Tensor, "p d_model"]:
        """After the final norm, which is what the unembedding (or the LM head) reads."""
        if (None, "normed") in self.parts:
            return self.parts[None, "normed"]
        norm, x = self.weights.architecture.final_norm, self.final
        return x if norm is None else norm(at_least_float32(x), self.weights.checkpoint).to(x)

    @property
    def logits(self) -> Float[Tensor, "p d_vocab"]:
        """What the model says at the kept positions."""
        return self._logits("logits")

    @property
    def logits_uncapped(self) -> Float[Tensor, "p d_vocab"]:
        """The logits before any tanh cap."""
        if self.model.architecture.logit_cap is None:
            return self.logits
        return self._logits("logits_uncapped")

    def _logits(self, name: str) -> Tensor:
        if (None, name) in self.parts:
            return self.parts[None, name]
        if "logits" not in self.what:
            raise not_kept(name, self.what)
        raise no_head(self.model)


def no_head(model: Anatomy) -> LexrayError:
    return LexrayError(
        f"{model.name} has no language-model head, so it gives no logits over tokens; "
        "model.logits(trace.final) reads its residual stream through the embedding"
    )


@dataclass(frozen=True, eq=False)
class LayerTrace(BesideTrace):
    """One block of a trace. p are the kept positions, n all of the sequence."""

    trace: Recording = field(repr=False)
    index: int

    @property
    def spec(self) -> Block:
        return self.trace.weights.architecture.blocks[self.index]

    def _part(self, name: str) -> Tensor:
        part = self.trace.parts.get((self.index, name))
        if part is None:
            raise not_kept(name, self.trace.what)
        return part

    def _residual(self, name: str, index: int) -> Tensor:
        if "residual" not in self.trace.what:
            raise not_kept(name, self.trace.what)
        return self.trace.parts[index, "streams" if name == "streams" else "resid_pre"]

    # ------------------------------------------------------------------ the residual stream

    @property
    def resid_pre(self) -> Float[Tensor, "p d_model"]:
        """The residual stream before the block; of several (Gemma 3n) what the model's last step
        would make of them all if it ended here."""
        return self._residual("resid_pre", self.index)

    @property
    def resid_mid(self) -> Float[Tensor, "p d_model"]:
        """After the attention's sum (and its norm, in post-norm models), cross-attention's too. In
        parallel blocks the sum is formed here alone: nothing in the model reads it."""
        cross = self.spec.cross
        if (cross or self.spec.attention).sum_norm is not None:
            return self._part("mlp_in")
        if cross is not None:
            return self.resid_self + self.cross.out
        if self.spec.laurel is not None:
            return (self.resid_in + self.attn_in + self.attn_out + self.laurel_out) * SHRUNK
        added, mixer = self.resid_pre + self.attn_out, self.spec.mixer
        return added if mixer is None or mixer.last else added + self.mixer_out

    @property
    def resid_late(self) -> Float[Tensor, "p d_model"]:
        """After the feed-forward's sum: of what stands last in a block (Gemma 3n, 4) the input, and
        before the factor on all that leaves it."""
        return self.resid_mid + self.mlp_out

    @property
    def resid_self(self) -> Float[Tensor, "p d_model"]:
        """Of a decoder with cross-attention: after its own attention, before that one. Where both
        are one (T5Gemma 2) the sum is formed here alone."""
        if self.spec.attention.sum_norm is not None:
            return self._part("cross_in")
        return self.resid_pre + self.attn_out

    @property
    def resid_post(self) -> Float[Tensor, "p d_model"]:
        """The block's output."""
        return self._residual("resid_post", self.index + 1)

    # ------------------------------------------------------------------ attention

    @property
    def attn_in(self) -> Float[Tensor, "p d_model"]:
        """What queries, keys and values are made of: the residual stream after the norm, if any."""
        return self._part("attn_in")

    @property
    def q(self) -> Float[Tensor, "p n_heads d_head"]:
        """Queries, with QK-norm and clip, before rotation."""
        return self._part("q")

    @property
    def k(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        """Keys, with QK-norm and clip, before rotation."""
        return self._part("k")

    @property
    def q_rotated(self) -> Float[Tensor, "p n_heads d_head"]:
        """Queries as they meet the keys; the same as `q` where nothing turns."""
        return self.q if not self.spec.attention.turns else self._part("q_rotated")

    @property
    def k_rotated(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        """Keys as they meet the queries; the same as `k` where nothing turns."""
        return self.k if not self.spec.attention.turns else self._part("k_rotated")

    @property
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        """Values."""
        return self._part("v")

    @property
    def pattern(self) -> Float[Tensor, "n_heads p n"]:
        """Attention weights."""
        return self._part("pattern")

    @property
    def gate(self) -> Float[Tensor, "p n_heads d_head"] | None:
        """What each head's sum of values is multiplied by before W_O; None without gates."""
        return None if self.spec.attention.gate is None else self._part("gate")

    @property
    def z(self) -> Float[Tensor, "p n_heads d_head"]:
        """Each head's weighted sum of values, before W_O; with its gate, where there is one."""
        if self.spec.attention.absent:
            return self.resid_pre.new_zeros(len(self.resid_pre), 0, self.spec.attention.v.d_head)
        return self._part("z")

    @property
    def head_out(self) -> Float[Tensor, "p n_heads d_model"]:
        """What each head writes: z through its part of W_O, before any norm."""
        return through_output(self.z, self.spec.attention.o.read(self.trace.weights.checkpoint))

    @property
    def attn_write(self) -> Float[Tensor, "p d_model"]:
        """Σ_heads and the bias, before any norm; zero in a layer without heads."""
        if self.spec.attention.absent:
            return torch.zeros_like(self.resid_pre)
        return self._part("attn_write")

    @property
    def attn_out(self) -> Float[Tensor, "p d_model"]:
        """What the attention adds to the residual stream."""
        return self._added("attn_out", self.attn_write, self.spec.attention.post_norm)

    def _added(self, name: str, written: Tensor, norm: Norm | None) -> Tensor:
        """What a sub-block wrote, behind the norm of its output; a constant factor (Granite) is
        no module that could be recorded."""
        if norm is None:
            return written
        if norm.module is not None:
            part = self._part(name)
            return part if norm.factor == 1 else part * norm.factor
        return norm(written, self.trace.weights.checkpoint)

    # ------------------------------------------------------------------ beside attention

    @property
    def streams(self) -> StreamsTrace:
        """All residual streams around the block, in a model that has several."""
        streams = self.trace.weights.architecture.streams
        if streams is None:
            raise LexrayError(f"{self.trace.model.name} has one residual stream: resid_pre")
        after = partial(self._residual, "streams", self.index + 1)
        return StreamsTrace(self._part, after, streams.active)

    @property
    def cross(self) -> CrossTrace:
        """What passed through cross-attention, in a decoder that has an encoder beside it."""
        cross = self.spec.cross
        if cross is None:
            raise LexrayError(
                f"layer {self.index} of {self.trace.model.name} has no cross-attention"
            )
        W_O = partial(cross.o.read, self.trace.weights.checkpoint)
        return CrossTrace(self._part, W_O, cross.post_norm is not None, self.spec.merged)

    # ------------------------------------------------------------------ feed-forward

    @property
    def mlp_in(self) -> Float[Tensor, "p d_model"]:
        """What the feed-forward reads."""
        return self._part("mlp_in")

    @property
    def shared_in(self) -> Float[Tensor, "p d_model"]:
        """What a mixture's shared expert reads: the same, but where it has a norm of its own."""
        shared = self.spec.ff.shared if isinstance(self.spec.ff, Experts) else None
        norm = None if shared is None else shared.pre_norm
        return self.mlp_in if norm is None else norm(self.resid_mid, self.trace.weights.checkpoint)

    @property
    def pre(self) -> Float[Tensor, "p d_mlp"] | None:
        """Pre-activations: input times key. None in mixtures, and without neurons."""
        return self._part("pre") if self._is_dense else None

    @property
    def gate_pre(self) -> Float[Tensor, "p d_mlp"] | None:
        """Pre-activations of the gates. None without gates and in mixtures."""
        ff = self.spec.ff
        gated = self._is_dense and not isinstance(ff, Experts) and ff.w_gate is not None
        return self._part("gate_pre") if gated else None

    @property
    def coefficients(self) -> Float[Tensor, "p d_mlp"] | None:
        """By how much each value is added. None in mixtures; see `experts` and `active`."""
        return self._part("coefficients") if self._is_dense else None

    @property
    def _is_dense(self) -> bool:
        return not isinstance(self.spec.ff, Experts) and not self.spec.ff.absent

    @property
    def experts(self) -> ExpertTrace | None:
        """What the experts did; None where the feed-forward is dense."""
        if not isinstance(self.spec.ff, Experts):
            return None
        if "mlp" not in self.trace.what:
            raise not_kept("experts", self.trace.what)
        names = ("shared_coefficients", "shared_weight", "experts_scale", "shared_scale")
        shared, weight, *scales = (self.trace.parts.get((self.index, name)) for name in names)
        return ExpertTrace(
            self._part("chosen"),
            self._part("weights"),
            self._part("coefficients"),
            shared,
            None if weight is None else weight.flatten(),
            *scales,
        )

    def active(self, position: int) -> list[ActiveFF]:
        """Which feed-forwards wrote at a position: Σ coefficients · W_out + weight · b_out over
        them is `mlp_write`. One, or in mixtures the chosen experts and the shared one."""
        row, ff = self.trace.row(position), self.trace.weights.layers[self.index].ff
        if self.spec.ff.absent:
            return []
        if isinstance(ff, FeedForward):
            return [ActiveFF(ff, self._part("coefficients")[row], 1.0)]
        did = self.experts
        assert did is not None
        return did.active(ff, row)

    @property
    def mlp_write(self) -> Float[Tensor, "p d_model"]:
        """Σ_neurons coefficient · value and the bias, before any norm; zero without neurons."""
        if self.spec.ff.absent:
            return torch.zeros_like(self.resid_pre)
        return self._part("mlp_write")

    @property
    def mlp_out(self) -> Float[Tensor, "p d_model"]:
        """What the feed-forward adds to the residual stream."""
        return self._added("mlp_out", self.mlp_write, self.spec.ff.post_norm)
