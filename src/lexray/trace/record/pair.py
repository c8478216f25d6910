"""A run of an encoder–decoder: the source through the encoder, then the target through the decoder.

Two passes of transformers' own modules, each recorded as any stack is; the decoder's is given what
the encoder gave. Cross-attention is recorded beside a layer's own attention, its keys and values at
the positions of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from lexray.choice import Some, choose
from lexray.edits.directions import Run
from lexray.edits.parse import read_edits
from lexray.edits.values import Edit, Edits
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.trace.apply.actions import Action
from lexray.trace.apply.choose import choose_editor, is_merged
from lexray.trace.apply.cross import CrossEditor
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.record.crossing import CrossRecorder
from lexray.trace.record.hooks import Recorder
from lexray.trace.record.merged import MergedRecorder
from lexray.trace.record.module import module_of
from lexray.trace.record.plan import RecordPlan, What, choose_what
from lexray.trace.record.prompt import pad, read_prompts, refuse_too_long
from lexray.trace.record.run import Logits, Runner, record, runner_of
from lexray.trace.recording import Recording

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True)
class SourceTargets:
    """Token ids of sources and of how their targets begin."""

    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]
    single: bool


def read_pairs(model: Anatomy, prompt: Any, target: Any, *, special: bool = True) -> SourceTargets:
    """The ids of a source and a target, or of a batch: sources with a target each (or none), or
    pairs of both."""
    if (
        target is None
        and isinstance(prompt, (list, tuple))
        and prompt
        and all(map(_is_both, prompt))
    ):
        prompt, target = [pair[0] for pair in prompt], [pair[1] for pair in prompt]
    sources = read_prompts(model, prompt, special=special)
    n = len(sources.ids)
    if target is None or len(target) == 0:
        return SourceTargets(sources.ids, ((),) * n, sources.single)
    if sources.single:
        return SourceTargets(sources.ids, (_begin(model, target),), True)
    if isinstance(target, str) or len(target) != n:
        raise LexrayError(f"{n} sources are traced with a list of {n} targets, one for each")
    return SourceTargets(sources.ids, tuple(_begin(model, each) for each in target), False)


def _is_both(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and not any(isinstance(i, int) for i in item)


def _begin(model: Anatomy, target: Any) -> tuple[int, ...]:
    """The ids of a target, which may be empty; the token that begins it is no part of it."""
    if target is None or len(target) == 0:
        return ()
    begun = read_prompts(model, target, special=False)
    if not begun.single:
        raise LexrayError("a source has one target: a text, or token ids")
    return begun.ids[0]


def record_pairs(
    model: Anatomy,
    pairs: SourceTargets,
    *,
    new_tokens: int = 0,
    layers: Some = None,
    positions: Some = None,
    what: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
    edits: Edits | None = None,
    n_prompt: int | None = None,
) -> list[Recording]:
    """Runs sources and the beginnings of targets as one batch; of the sources all is kept, of the
    targets these layers and positions.

    The decoder begins with the token that its config says; `new_tokens` continues each target by so
    many of the most probable tokens. `n_prompt`: how many of the decoder's tokens are the prompt.
    """
    if new_tokens < 0:
        raise LexrayError(f"new_tokens={new_tokens} is negative")
    words, kept = choose_what(what), choose(layers, model.n_layers, "layer")
    runner = Runner(model, module_of(model))
    begin = start_token(model, runner.module)
    ids = [[begin, *target] for target in pairs.targets]
    for source, row in zip(pairs.sources, ids, strict=True):
        refuse_too_long(model.encoder, len(source))
        refuse_too_long(model, len(row), new_tokens)
    changes = _ready(model, read_edits(edits), pairs)
    where = runner.device if device is None else torch.device(device)
    encoded = encode(model, pairs.sources, words, where, changes)
    decoder = PairRunner(model, runner.module, tuple(encoded))
    own = [
        each.of_decoder(len(source)) for each, source in zip(changes, pairs.sources, strict=True)
    ]
    lengths = [len(row) for row in ids]

    def plan(lengths: Sequence[int]) -> RecordPlan:
        rows = tuple(choose(positions, n, "position") for n in lengths)
        return RecordPlan(tuple(lengths), rows, kept, words, where)

    decoder.refuse_too_large(plan([n + new_tokens for n in lengths]))
    whole = decoder.continue_each(ids, new_tokens, own)
    counted = lengths if n_prompt is None else [n_prompt] * len(ids)
    rows = [each.actions(len(row), n) for each, row, n in zip(own, whole, counted, strict=True)]
    recordings = decoder.run(whole, plan([len(row) for row in whole]), counted, rows)
    return [
        replace(recording, source=source, edits=each.edits)
        for recording, source, each in zip(recordings, encoded, changes, strict=True)
    ]


def _ready(model: Anatomy, edits: tuple[Edit, ...], pairs: SourceTargets) -> list[ReadyEdits]:
    """The edits for each pair; a source that they name is run with the pair's own target."""
    ready = []
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        changes = ReadyEdits.check(model, edits, partial(run_pair, model, target))
        changes.of_encoder().fit([len(source)])
        changes.of_decoder(len(source)).fit([1 + len(target)])
        ready.append(changes)
    return ready


def record_text(
    model: Anatomy, ids: Sequence[int], *, stops: bool = False, **options: Any
) -> Recording:
    """A text as a model reads it. An encoder–decoder is to say again what it is given: its decoder
    has the same tokens at the same positions, but for the first, with which decoding begins."""
    if model.architecture.encoder is None:
        return record(model, [ids], stops=stops, **options)[0]
    return record_pairs(model, SourceTargets((tuple(ids),), (tuple(ids[1:]),), True), **options)[0]


def begin_with_start(model: Anatomy, ids: Sequence[int]) -> list[int]:
    """A text's tokens as `record_text` gives them to a decoder beside an encoder."""
    if model.architecture.encoder is None:
        return list(ids)
    return [start_token(model, module_of(model)), *ids[1:]]


def run_pair(model: Anatomy, target: Sequence[int], run: Run) -> Recording:
    """A source, or a source and a target, that an edit names, recorded whole."""
    if isinstance(run, Recording):
        return run
    if _is_both(run):
        return record_pairs(model, read_pairs(model, run[0], run[1]))[0]
    source = read_prompts(model, run).ids
    return record_pairs(model, SourceTargets(source, (tuple(target),), True))[0]


def encode(
    model: Anatomy,
    sources: Ids,
    what: frozenset[What],
    where: torch.device,
    changes: Sequence[ReadyEdits],
) -> list[Recording]:
    """Sources through the encoder, recorded whole."""
    runner, stack = runner_of(model.encoder), model.encoder
    lengths = tuple(map(len, sources))
    rows = tuple(tuple(range(n)) for n in lengths)
    plan = RecordPlan(lengths, rows, tuple(range(stack.n_layers)), what - {"logits"}, where)
    runner.refuse_too_large(plan)
    own = [each.of_encoder() for each in changes]
    actions = [each.actions(n) for each, n in zip(own, lengths, strict=True)]
    recordings = runner.run([list(ids) for ids in sources], plan, list(lengths), actions)
    return [
        replace(recording, edits=each.edits)
        for recording, each in zip(recordings, own, strict=True)
    ]


def start_token(model: Anatomy, module: Any) -> int:
    """The token with which decoding begins."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    known = (getattr(module.config, name, None) for name in names)
    begin = next((i for i in known if isinstance(i, int)), None)
    if begin is None:
        raise LexrayError(
            f"the config of {model.name} does not say with which token decoding begins; "
            "give config={'decoder_start_token_id': …}"
        )
    return begin


def encoder_outputs(
    sources: Sequence[Recording], module: torch.nn.Module
) -> tuple[BaseModelOutput, Tensor]:
    """What the encoder gave for several sources, as the decoder takes it, and its mask."""
    like = next(module.parameters())
    lengths = [len(source) for source in sources]
    states = [source.normed.to(like) for source in sources]
    padded = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    mask = torch.zeros(padded.shape[:2], dtype=torch.long, device=padded.device)
    for row, n in enumerate(lengths):
        mask[row, :n] = 1
    return BaseModelOutput(last_hidden_state=padded), mask


@dataclass(frozen=True)
class PairRunner(Runner):
    """The decoder of an encoder–decoder, beside what the encoder gave for each of its sources."""

    sources: tuple[Recording, ...] = ()

    def _recorder(self, plan: RecordPlan) -> Recorder:
        weights, lengths = self.weights, [len(source) for source in self.sources]
        known = plan, self.module, weights.architecture, weights.checkpoint
        kind = MergedRecorder if is_merged(weights.architecture) else CrossRecorder
        return kind(*known, sources=lengths)

    def editor(self, recorder: Recorder, rows: Sequence[Sequence[Action]]) -> CrossEditor | None:
        if not any(rows):
            return None
        lengths, interface = recorder.plan.lengths, recorder.uses_interface
        known = recorder.architecture, recorder.modules, recorder.checkpoint
        sources = [len(source) for source in self.sources]
        kind = choose_editor(recorder.architecture)
        return kind(*known, rows, lengths, interface, sources=sources)

    def _given(self) -> dict[str, Any]:
        given, mask = encoder_outputs(self.sources, self.module)
        return {"encoder_outputs": given, "attention_mask": mask, "return_dict": True}

    def _forward(self, recorder: Recorder, ids: list[list[int]]) -> None:
        inputs, mask = pad(ids, self.pad, self.device)
        logits = Logits(recorder, list(range(inputs.shape[1])))
        if "logits" in recorder.plan.what:
            self._keep_uncapped(recorder, logits)
        out = self.module(
            decoder_input_ids=inputs,
            decoder_attention_mask=mask,
            use_cache=False,
            **self._given(),
        )
        if "logits" in recorder.plan.what:
            logits.keep("logits", out.logits)

    def continue_each(
        self, ids: Ids, new_tokens: int, changes: Sequence[ReadyEdits]
    ) -> list[list[int]]:
        """Each target with the most probable continuation, beside its own source."""
        rows = []
        for row, source, own in zip(ids, self.sources, changes, strict=True):
            one = replace(self, sources=(source,))
            rows += one.continue_all([row], new_tokens, own)
        return rows

    def _step(self, ids: Sequence[int], cache: Any, *, keep: bool = True) -> Any:
        fresh = list(ids) if cache is None else [ids[-1]]
        if cache is None and keep:  # transformers' own has as many layers as the encoder
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        return self.module(
            decoder_input_ids=torch.tensor([fresh], device=self.device),
            past_key_values=cache,
            use_cache=keep,
            **self._given(),
        )
