"""A run of an encoder–decoder: the source through the encoder, then the target through the decoder.

Two passes of transformers' own modules, each recorded as any stack is; the decoder's is given what
the encoder gave. Cross-attention is recorded beside a layer's own attention, its keys and values at
the positions of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.families import Attention, Heads
from lexray.model.anatomy import Anatomy
from lexray.trace.record.hooks import RECORDING, Recorder, evaluating
from lexray.trace.record.module import module_of
from lexray.trace.record.plan import RecordPlan, What, choose_what
from lexray.trace.record.prompt import read_prompts, refuse_too_long
from lexray.trace.record.run import Logits, Runner
from lexray.trace.recording import Recording


class CrossRecorder(Recorder):
    """Of a decoder: also what passes through cross-attention. One sequence at a time."""

    def _hook_attention(self, n: int, spec: Attention) -> None:
        super()._hook_attention(n, spec)
        cross, what = self.architecture.blocks[n].cross, self.plan.what
        assert cross is not None
        if "residual" in what:
            self.before(cross.q.linear.module, self._keeper(n, "cross_in"))
            self.after(cross.o.module, self._keeper(n, "cross_write"))
        if "heads" in what:
            width = cross.v.d_head
            self.before(cross.o.module, lambda x: self.keep(n, "cross_z", _split(x, width)))
        if "attention" in what:
            for name, heads in (("q", cross.q), ("k", cross.k), ("v", cross.v)):
                self.after(heads.linear.module, partial(self._keep_heads, n, name, heads))

    def _keep_heads(self, n: int, name: str, heads: Heads, out: Tensor) -> None:
        x = _split(out, heads.d_head)
        if name == "q":
            self.keep(n, "cross_q", x)
        else:
            self._keep_source(n, f"cross_{name}", x[0])

    def _keep_source(self, n: int, name: str, x: Tensor) -> None:
        """Keeps what belongs to the source's positions."""
        self.kept[0][n, name] = x.detach().to(self.plan.device, copy=True)

    def _see_attention(self, module: nn.Module, q: Tensor, k: Tensor, weights: Tensor) -> None:
        layer = self.layer_of.get(id(module))
        if layer is None or layer not in self.plan.layers:
            return
        cross = self.architecture.blocks[layer].cross
        if cross is None or module is not self.modules[cross.module]:
            super()._see_attention(module, q, k, weights)
            return
        rows = self.plan.rows(0, weights.device)
        self._keep_source(layer, "cross_pattern", weights[0][:, rows])


def _split(x: Tensor, width: int) -> Tensor:
    return x.reshape(*x.shape[:-1], -1, width)


def record_prompt_pair(
    model: Anatomy,
    prompt: Any,
    target: Any,
    refused: Mapping[str, Any],
    *,
    new_tokens: int = 0,
    layers: Some = None,
    positions: Some = None,
    what: str | Iterable[str] | None = None,
    special: bool = True,
) -> Recording:
    """The same for texts; `refused` are options of traces that these do not have."""
    if names := [name for name, value in refused.items() if value is not None and value != []]:
        raise LexrayError(
            f"traces of encoder–decoders know no {', '.join(names)}: one source and one target are "
            "run as they are, and kept where they run"
        )
    source = read_prompts(model, prompt, special=special)
    begins = target is not None and len(target) > 0
    begun = read_prompts(model, target, special=False).ids if begins else ((),)
    if not source.single or len(begun) > 1:
        raise LexrayError("an encoder–decoder is traced with one source and one target at a time")
    return record_pair(
        model,
        source.ids[0],
        begun[0],
        new_tokens=new_tokens,
        layers=layers,
        positions=positions,
        what=what,
    )


def record_pair(
    model: Anatomy,
    source: Sequence[int],
    target: Sequence[int],
    *,
    new_tokens: int = 0,
    layers: Some = None,
    positions: Some = None,
    what: str | Iterable[str] | None = None,
) -> Recording:
    """Runs a source and the beginning of a target; of the source all is kept, of the target these
    layers and positions.

    The decoder begins with the token that its config says; `new_tokens` continues the target by so
    many of the most probable tokens.
    """
    pair = StackPair(model, Runner(model, module_of(model)))
    words = choose_what(what)
    if new_tokens < 0:
        raise LexrayError(f"new_tokens={new_tokens} is negative")
    ids = [pair.start, *target]
    refuse_too_long(model.encoder, len(source))
    refuse_too_long(model, len(ids), new_tokens)
    encoded = pair.encode(source, words)
    n_prompt = len(ids)
    for _ in range(new_tokens):
        ids.append(pair.next(encoded, ids))
        if ids[-1] in pair.runner._ends():
            break
    kept = choose(layers, model.n_layers, "layer")
    return pair.decode(encoded, ids, n_prompt, words, kept, positions)


@dataclass(frozen=True)
class Encoded:
    """What the encoder gave."""

    states: Tensor
    recording: Recording


@dataclass(frozen=True)
class StackPair:
    """An encoder–decoder and what runs it."""

    model: Anatomy
    runner: Runner

    @property
    def module(self) -> Any:
        return self.runner.module

    @property
    def start(self) -> int:
        """The token with which decoding begins."""
        names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        known = (getattr(self.module.config, name, None) for name in names)
        begin = next((i for i in known if isinstance(i, int)), None)
        if begin is None:
            raise LexrayError(
                f"the config of {self.model.name} does not say with which token decoding begins; "
                "give config={'decoder_start_token_id': …}"
            )
        return begin

    def _plan(
        self, n: int, layers: tuple[int, ...], what: frozenset[What], positions: Some = None
    ) -> RecordPlan:
        kept = (choose(positions, n, "position"),)
        return RecordPlan((n,), kept, layers, what, self.runner.device)

    def encode(self, source: Sequence[int], what: frozenset[What]) -> Encoded:
        weights, model = self.runner.weights.encoder, self.model.encoder
        plan = self._plan(len(source), tuple(range(model.n_layers)), what - {"logits"})
        recorder = Recorder(self.module, weights.architecture, weights.checkpoint, plan)
        ids = torch.tensor([list(source)], device=self.runner.device)
        with recorder.listening():
            out = self.module.get_encoder()(
                input_ids=ids, attention_mask=torch.ones_like(ids), return_dict=True
            )
        recording = Recording(
            model=model,
            weights=weights,
            ids=ids[0].cpu(),
            n_prompt=len(source),
            layers=plan.layers,
            positions=plan.positions[0],
            what=plan.what,
            parts=recorder.kept[0],
        )
        return Encoded(out.last_hidden_state, recording)

    def _forward(self, encoded: Encoded, ids: Sequence[int]) -> Tensor:
        given, device = encoded.states, self.runner.device
        out = self.module(
            encoder_outputs=BaseModelOutput(last_hidden_state=given),
            attention_mask=torch.ones(given.shape[:2], dtype=torch.long, device=device),
            decoder_input_ids=torch.tensor([list(ids)], device=device),
            use_cache=False,
            return_dict=True,
        )
        logits: Tensor = out.logits
        return logits

    def next(self, encoded: Encoded, ids: Sequence[int]) -> int:
        with RECORDING, evaluating(self.module):
            return int(self._forward(encoded, ids)[0, -1].argmax())

    def decode(
        self,
        encoded: Encoded,
        ids: Sequence[int],
        n_prompt: int,
        what: frozenset[What],
        layers: tuple[int, ...],
        positions: Some,
    ) -> Recording:
        weights = self.runner.weights
        plan = self._plan(len(ids), layers, what, positions)
        recorder = CrossRecorder(self.module, weights.architecture, weights.checkpoint, plan)
        with recorder.listening():
            logits = self._forward(encoded, ids)
            if "logits" in what:
                Logits(recorder, list(range(len(ids)))).keep("logits", logits)
        return Recording(
            model=self.model,
            weights=weights,
            ids=torch.tensor(list(ids)),
            n_prompt=n_prompt,
            layers=plan.layers,
            positions=plan.positions[0],
            what=plan.what,
            parts=recorder.kept[0],
            source=encoded.recording,
        )
