"""A recorded run once more from some layer on, in many copies, each changed in its own way.

What comes before the first changed layer would be the same again, so it is left out: its blocks
pass on what they are given, and the recorded residual stream enters the first block that counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.checkpoint.module import modules_by_name
from lexray.errors import LexrayError
from lexray.families import Experts
from lexray.model.cache import Drawer
from lexray.trace.apply.actions import Action
from lexray.trace.apply.choose import make_editor
from lexray.trace.apply.editor import Editor
from lexray.trace.record.attention import watch_attention
from lexray.trace.record.beside import as_passed
from lexray.trace.record.experts import watch_experts
from lexray.trace.record.module import module_of
from lexray.trace.record.running import RECORDING, evaluating
from lexray.trace.record.skip import begin_at, count_outputs, lowest_needed
from lexray.trace.record.spread import entry_device
from lexray.trace.recording import Recording, no_head

TOKENS_AT_ONCE = 512
"""In a batch; more are no faster on a CPU, and take memory."""
TUPLES: Drawer[int, int | None] = Drawer(most=2)

Rows = Sequence[Sequence[Action]]


@dataclass(frozen=True, eq=False)
class Rerun:
    """What the model would have said, had something been different."""

    recording: Recording
    base: tuple[Action, ...] = ()
    """What was changed in the recorded run itself."""

    def __post_init__(self) -> None:
        r = self.recording
        if len(r.positions) < len(r) or "residual" not in r.what:
            raise LexrayError(
                "to run a trace again from its middle, it needs the residual stream at all "
                "positions: trace without positions= and what="
            )

    @cached_property
    def module(self) -> nn.Module:
        return module_of(self.recording.model)

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        return modules_by_name(self.module)

    def logits(
        self, rows: Rows, position: int, *, first: int | None = None
    ) -> Float[Tensor, "rows d_vocab"]:
        """The logits at one position of each copy; `first`: from which layer on, by default the
        first that any of them changes."""
        batches = [self._batch(batch, position, first) for batch in self._batches(rows)]
        return torch.cat(batches)

    def _batches(self, rows: Rows) -> Iterator[Rows]:
        source = self.recording.source
        longest = max(len(self.recording), 0 if source is None else len(source))
        size = max(1, TOKENS_AT_ONCE // longest)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def _batch(self, rows: Rows, position: int, first: int | None) -> Float[Tensor, "rows d_vocab"]:
        stack = StackRerun(self.recording, self.module, self.modules)
        if self.recording.source is None:
            with stack.change(rows, self.base, first):
                return self._forward(len(rows), position)
        return self._batch_pair(self.recording.source, stack, rows, position, first)

    def _batch_pair(
        self, source: Recording, stack: StackRerun, rows: Rows, position: int, first: int | None
    ) -> Float[Tensor, "rows d_vocab"]:
        """An encoder is run again where something changes in it, and then all of the decoder."""
        from lexray.trace.record.pair import encoder_outputs  # which runs both stacks

        module: Any = self.module
        given, mask = encoder_outputs([source], module)
        sides = [[[a for a in row if a.encoder == side] for row in rows] for side in (True, False)]
        base = [[a for a in self.base if a.encoder == side] for side in (True, False)]
        states = given.last_hidden_state.expand(len(rows), -1, -1)
        if any(sides[0]):
            encoder, first = StackRerun(source, module, self.modules), 0
            ids = source.ids.to(mask.device).expand(len(rows), -1)
            with encoder.change(sides[0], base[0], None):
                states = module.get_encoder()(
                    input_ids=ids, attention_mask=torch.ones_like(ids), return_dict=True
                ).last_hidden_state
        given.last_hidden_state = states
        ids = self.recording.ids.to(mask.device).expand(len(rows), -1)
        with stack.change(sides[1], base[1], first):
            out = module(
                encoder_outputs=given,
                attention_mask=mask.expand(len(rows), -1),
                decoder_input_ids=ids,
                use_cache=False,
                return_dict=True,
            )
        last: Tensor = out.logits[:, position].detach()
        return last

    def _forward(self, n: int, position: int) -> Float[Tensor, "n d_vocab"]:
        device = entry_device(self.recording.model, self.module)
        ids = self.recording.ids.to(device).expand(n, -1)
        options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "return_dict": True}
        if self.recording.model.architecture.causal:
            options["use_cache"] = False
        if "logits_to_keep" in inspect.signature(self.module.forward).parameters:
            options["logits_to_keep"] = torch.tensor([position], device=device)
            position = 0
        out = self.module(input_ids=ids, **options)
        logits = out.get("logits", out.get("prediction_logits"))
        if logits is None:
            raise no_head(self.recording.model)
        last: Tensor = logits[:, position].detach()
        return last


@dataclass(frozen=True, eq=False)
class StackRerun:
    """The layers of a recorded run: all of a model's, or an encoder's, or a decoder's."""

    recording: Recording
    module: nn.Module
    """Of the whole model."""
    modules: Mapping[str, nn.Module]

    @contextmanager
    def change(self, rows: Rows, base: Sequence[Action], first: int | None) -> Iterator[None]:
        """Inside, passes begin at a layer (by default the first that any row changes) with the
        recorded states, and each sequence of a batch is changed by its own actions, after those of
        the recorded run itself."""
        architecture = self.recording.weights.architecture
        blocks = [self.modules[block.module] for block in architecture.blocks]
        with RECORDING, ExitStack() as undo:
            undo.enter_context(evaluating(self.module))
            first, extra = self._begin(rows, first, blocks[0])
            editor = self._editor(rows, base, first)
            entering = self._entering(first)

            def give() -> Tensor:
                rows = entering.expand(len(editor.rows), *entering.shape).clone()
                if architecture.streams is None:
                    return rows
                several = rows.view(*rows.shape[:2], architecture.streams.count, -1)
                return as_passed(several).contiguous()

            if editor.attends:
                undo.enter_context(watch_attention(self.module, None, editor))
            if any(isinstance(block.ff, Experts) for block in architecture.blocks):
                undo.enter_context(watch_experts(self.module, None, editor))
            undo.enter_context(begin_at(blocks, first, extra, give))
            undo.enter_context(editor.editing())
            yield

    def _begin(self, rows: Rows, first: int | None, block: nn.Module) -> tuple[int, int | None]:
        """The first layer that is run, and how many things the blocks before it give. In T5 the
        first block makes the scores of distances for all, so that it is run with them."""
        if first is None:
            last = self.recording.model.n_layers - 1
            first = min((a.layer for row in rows for a in row), default=last)
        first = lowest_needed(self.recording.weights.architecture.blocks, first)
        if not first:
            return 0, None
        extra = TUPLES.get(self.recording.model.cache, id(block), lambda: self._count(block))
        of_pair = self.recording.source is not None or self.recording.model.decoder is not None
        return (0, None) if extra and of_pair else (first, extra)

    def _editor(self, rows: Rows, base: Sequence[Action], first: int) -> Editor:
        before = [a for a in base if (a.layer, a.point != "pre") >= (first, True)]
        return make_editor(self.recording, self.modules, [[*before, *row] for row in rows])

    def _entering(self, first: int) -> Float[Tensor, "n width"]:
        states = self.recording.entering(first)
        if states is None:
            raise LexrayError(
                f"the trace has not kept the residual stream before layer {first}; trace without "
                "layers="
            )
        dtype = next(self.module.parameters()).dtype
        return states.to(entry_device(self.recording.model, self.module), dtype)

    def _count(self, block: nn.Module) -> int | None:
        ids = self.recording.ids[:1][None].to(entry_device(self.recording.model, self.module))
        both = {} if self.recording.source is None else {"decoder_input_ids": ids}
        return count_outputs(self.module, block, {"input_ids": ids, **both})
