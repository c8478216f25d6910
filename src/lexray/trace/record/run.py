"""From token ids to a recorded forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.choice import Some, choose
from lexray.edits.directions import Run
from lexray.edits.values import Edits
from lexray.errors import LexrayError
from lexray.finite import all_finite
from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.trace.apply.actions import Action, shift
from lexray.trace.apply.editor import Editor
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.record.attention import configure
from lexray.trace.record.config import running_entries
from lexray.trace.record.experts import SETTING as EXPERTS
from lexray.trace.record.hooks import Recorder
from lexray.trace.record.keeper import Kept
from lexray.trace.record.module import module_of
from lexray.trace.record.plan import RecordPlan, choose_what, refuse_too_large
from lexray.trace.record.prompt import pad, read_prompts, refuse_too_long
from lexray.trace.record.refuse import refuse_pair
from lexray.trace.record.running import RECORDING, EnoughError, evaluating
from lexray.trace.record.spread import entry_device
from lexray.trace.recording import Recording, no_head
from lexray.view import RAW

WEIGHTS: Drawer[int, Anatomy] = Drawer(most=1)
"""By the module that ran, which they keep alive."""


def record(
    model: Anatomy,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int = 0,
    layers: Some = None,
    positions: Some = None,
    what: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
    edits: Edits | None = None,
    n_prompt: int | None = None,
    stops: bool = False,
) -> list[Recording]:
    """Runs prompts (token ids) through transformers' own model as one batch and keeps what was
    asked for; `lexray.model.model.Model.trace` says what the options mean. `n_prompt`: how many
    of the ids are the prompt, where the rest is its continuation; `stops`: what comes after the
    last of the layers is not run."""
    if model.architecture.encoder is not None:
        refuse_pair(model)
    runner = runner_of(model)
    if new_tokens < 0:
        raise LexrayError(f"new_tokens={new_tokens} is negative")
    words, kept = choose_what(what), choose(layers, model.n_layers, "layer")
    for ids in prompts:
        refuse_too_long(model, len(ids), new_tokens)
    changes = ReadyEdits.check(model, edits, partial(run_whole, model))
    changes.fit([len(ids) for ids in prompts])
    if what is not None and "logits" in words and runner.head is None:
        raise no_head(model)
    where = runner.device if device is None else torch.device(device)

    def plan(lengths: Sequence[int]) -> RecordPlan:
        rows = tuple(choose(positions, n, "position") for n in lengths)
        return RecordPlan(tuple(lengths), rows, kept, words, where, stops)

    lengths = [len(ids) for ids in prompts]
    runner.refuse_too_large(plan([n + new_tokens for n in lengths]))
    whole = runner.continue_all(prompts, new_tokens, changes)
    counted = lengths if n_prompt is None else [n_prompt] * len(prompts)
    rows = [changes.actions(len(row), n) for row, n in zip(whole, counted, strict=True)]
    recordings = runner.run(whole, plan([len(ids) for ids in whole]), counted, rows)
    return [replace(recording, edits=changes.edits) for recording in recordings]


def run_whole(model: Anatomy, run: Run) -> Recording:
    """A prompt that an edit names, recorded whole."""
    if isinstance(run, Recording):
        return run
    prompts = read_prompts(model, run)
    if not prompts.single:
        raise LexrayError(
            f"{model.name} is one stack of layers: an edit takes from one prompt, not from a "
            "source and a target, which are for encoder–decoders"
        )
    return record(model, prompts.ids)[0]


@dataclass(frozen=True)
class Runner:
    """A model and the transformers module that runs it."""

    model: Anatomy
    module: nn.Module

    @property
    def head(self) -> nn.Module | None:
        """The module that gives logits over tokens, if there is one."""
        getter = getattr(self.module, "get_output_embeddings", lambda: None)
        head: nn.Module | None = getter()
        return head

    @property
    def device(self) -> torch.device:
        """Where tokens go in."""
        return entry_device(self.model, self.module)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    @property
    def pad(self) -> int:
        """Any token serves, since it is masked; RoBERTa counts positions by its own."""
        pad = self.model.config.get("pad_token_id")
        return pad if isinstance(pad, int) and 0 <= pad < self.model.d_vocab else 0

    @property
    def weights(self) -> Anatomy:
        """The raw weights of the module that runs, under its own names."""
        model = self._whole()
        if isinstance(model.checkpoint, ModuleCheckpoint) and not model.architecture.unrolled:
            return model.with_view(RAW)

        def make() -> Anatomy:
            anatomy = Anatomy(
                ModuleCheckpoint(self.module),
                vocabulary=model.vocabulary,
                family=model.family.name,
                config=running_entries(model),
                device=self.device,
            )
            return anatomy.with_view(RAW)

        return WEIGHTS.get(model.cache, id(self.module), make)

    def _whole(self) -> Anatomy:
        """The model whose module it is."""
        return self.model

    def refuse_too_large(self, plan: RecordPlan) -> None:
        """Raises before a run that would not fit into memory."""
        refuse_too_large(self.model, plan, self.device, self.dtype)

    def continue_all(
        self, ids: Sequence[Sequence[int]], new_tokens: int, changes: ReadyEdits | None = None
    ) -> list[list[int]]:
        """Each prompt with the most probable continuation, up to the end-of-text token."""
        if new_tokens and (self.head is None or not self.model.architecture.causal):
            raise LexrayError(
                f"{self.model.name} has no causal language-model head, so it cannot continue a "
                "prompt; trace it with new_tokens=0"
            )
        if changes:
            return [self._continue_changed(list(row), new_tokens, changes) for row in ids]
        return [self._continue(list(row), new_tokens) for row in ids]

    def _continue_changed(self, ids: list[int], new_tokens: int, changes: ReadyEdits) -> list[int]:
        """With a cache of keys and values where no edit would change what is in it."""
        n_prompt, ends, cache = len(ids), self._ends(), None
        for _ in range(new_tokens):
            actions = changes.actions(len(ids), n_prompt)
            keeps = all(action.lasts for action in actions)
            known = 0 if cache is None else len(ids) - 1
            n = len(ids) - known
            plan = RecordPlan((n,), ((n - 1,),), (), frozenset({"logits"}), self.device)
            recorder = self._recorder(plan)
            recorder.editor = self.editor(recorder, [shift(actions, known)])
            with recorder.listening():
                out = self._step(ids, cache, keep=keeps)
            cache = getattr(out, "past_key_values", None) if keeps else None
            ids.append(int(out.logits[0, -1].argmax()))
            if ids[-1] in ends:
                break
        return ids

    def _step(self, ids: Sequence[int], cache: Any, *, keep: bool = True) -> Any:
        """The pass that gives the next token; of what a cache knows the last token alone is run."""
        fresh = list(ids) if cache is None else [ids[-1]]
        options: dict[str, Any] = {}
        if any(block.mixer is not None for block in self.model.architecture.blocks):
            at = torch.arange(len(ids) - len(fresh), len(ids), device=self.device)
            options["position_ids"] = at[None]  # Bamba would count from 0 again
        return self.module(
            input_ids=torch.tensor([fresh], device=self.device),
            **options,
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=self.device),
            past_key_values=cache,
            use_cache=keep,
            return_dict=True,
        )

    def _recorder(self, plan: RecordPlan) -> Recorder:
        weights = self.weights
        return Recorder(plan, self.module, weights.architecture, weights.checkpoint)

    def editor(self, recorder: Recorder, rows: Sequence[Sequence[Action]]) -> Editor | None:
        """Who changes the pass that a recorder watches; None without actions."""
        if not any(rows):
            return None
        lengths, interface = recorder.plan.lengths, recorder.uses_interface
        known = recorder.architecture, recorder.modules, recorder.checkpoint
        return Editor(*known, rows, lengths, interface)

    def _continue(self, ids: list[int], new_tokens: int) -> list[int]:
        ends, cache = self._ends(), None
        with RECORDING, evaluating(self.module), configure(self.module, EXPERTS, "eager"):
            for _ in range(new_tokens):
                out = self._step(ids, cache)
                cache = getattr(out, "past_key_values", None)  # the first GPT keeps none
                ids.append(int(out.logits[0, -1].argmax()))
                if ids[-1] in ends:
                    break
        return ids

    def _ends(self) -> set[int]:
        """The tokens that end a text, by the generation config and by the model's own."""
        configs: list[Any] = [
            getattr(self.module, name, None) for name in ("generation_config", "config")
        ]
        known = [getattr(config, "eos_token_id", None) for config in configs]
        listed = [e for ends in known for e in (ends if isinstance(ends, list) else [ends])]
        return {int(e) for e in listed if e is not None}

    def run(
        self,
        ids: list[list[int]],
        plan: RecordPlan,
        n_prompt: list[int],
        rows: Sequence[Sequence[Action]],
    ) -> list[Recording]:
        """One forward pass over the batch, recorded; each trace cut to its own length. `rows` are
        what is changed in each sequence."""
        weights, recorder = self.weights, self._recorder(plan)
        recorder.editor = self.editor(recorder, rows)
        with recorder.listening(), suppress(EnoughError):
            self._forward(recorder, ids)
        end = max(plan.layers) + 1 if plan.stops and plan.layers else self.model.n_layers
        for kept in recorder.kept:
            self._refuse_broken(kept, end)
        return [
            Recording(
                model=self.model,
                weights=weights,
                ids=torch.tensor(row),
                n_prompt=n,
                layers=plan.layers,
                positions=kept,
                what=plan.what,
                parts=parts,
            )
            for row, n, kept, parts in zip(
                ids, n_prompt, plan.positions, recorder.kept, strict=True
            )
        ]

    def _refuse_broken(self, parts: Kept, end: int) -> None:
        """Raises if the pass ended in what is no number: for a damaged weight, or by overflow."""
        last = parts.get((end, "resid_pre"))
        if last is None or all_finite(last):
            return
        for name in self.model.checkpoint.names():  # a live model is not read to be run
            self.model.tensor(name)
        raise LexrayError(
            f"the forward pass of {self.model.name} leaves the range of {self.dtype}: its last "
            "residual holds NaN or infinite numbers; try dtype=torch.float32 (--dtype float32)"
        )

    def _forward(self, recorder: Recorder, ids: list[list[int]]) -> None:
        inputs, mask = pad(ids, self.pad, self.device)
        options: dict[str, Any] = {"attention_mask": mask, "return_dict": True}
        if self.model.architecture.causal:
            options["use_cache"] = False
        if "logits" not in recorder.plan.what or self.head is None:
            body: Any = getattr(self.module, "base_model", self.module)
            body(input_ids=inputs, **options)
            return
        self._forward_with_logits(recorder, inputs, options)

    def _forward_with_logits(
        self, recorder: Recorder, inputs: Tensor, options: dict[str, Any]
    ) -> None:
        """The logits of kept positions alone, where the model can leave out the others."""
        plan = recorder.plan
        wanted = sorted({i for kept in plan.positions for i in kept})
        if "logits_to_keep" in inspect.signature(self.module.forward).parameters:
            options["logits_to_keep"] = torch.tensor(wanted, device=self.device)
        else:
            wanted = list(range(inputs.shape[1]))
        logits = Logits(recorder, wanted)
        self._keep_uncapped(recorder, logits)
        out = self.module(input_ids=inputs, **options)
        logits.keep("logits", out.logits if "logits" in out else out.prediction_logits)

    def _keep_uncapped(self, recorder: Recorder, logits: Logits) -> None:
        """Logits before their tanh cap, where they have one."""
        a = self.model.architecture
        if a.logit_cap is not None and self.head is not None:
            handle = self.head.register_forward_hook(
                lambda _, __, out: logits.keep("logits_uncapped", out * a.logit_scale)
            )
            recorder.handles.append(handle)


@dataclass(frozen=True)
class EncoderRunner(Runner):
    """The encoder of an encoder–decoder, run alone by the module of both."""

    @property
    def head(self) -> None:
        return None

    @property
    def weights(self) -> Anatomy:
        return super().weights.encoder

    def _whole(self) -> Anatomy:
        assert isinstance(self.model.decoder, Anatomy)
        return self.model.decoder

    def _forward(self, recorder: Recorder, ids: list[list[int]]) -> None:
        module: Any = self.module
        inputs, mask = pad(ids, self.pad, self.device)
        module.get_encoder()(input_ids=inputs, attention_mask=mask, return_dict=True)


def runner_of(model: Anatomy) -> Runner:
    """What runs one stack of layers."""
    if model.decoder is not None:
        return EncoderRunner(model, module_of(model.decoder))
    return Runner(model, module_of(model))


@dataclass(frozen=True)
class Logits:
    """Keeps logits that were computed at some positions only."""

    recorder: Recorder
    computed: list[int]

    def keep(self, name: str, logits: Tensor) -> None:
        plan = self.recorder.plan
        at = {position: row for row, position in enumerate(self.computed)}
        for s, kept in enumerate(self.recorder.kept):
            rows = torch.tensor([at[i] for i in plan.positions[s]], device=logits.device)
            kept[None, name] = logits[s, rows].detach().to(plan.device)
