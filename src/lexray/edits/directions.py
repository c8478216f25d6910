"""Vectors that an edit adds or writes: a tensor, an address, words, or what two runs differ by."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families import Architecture
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.trace.recording import Recording

Prompt = str | tuple[int, ...]
"""A text, or its token ids."""
Run = Recording | Prompt | tuple[Prompt, Prompt]
"""A recorded pass, or the prompt that is run to have one: of an encoder–decoder a source, or a
source and a target."""
Recorded = Callable[[Run], Recording]
"""Gives the recording that is meant; prompts are run."""


@dataclass(frozen=True, eq=False)
class OfTensor:
    """A vector of the user's own."""

    tensor: Float[Tensor, "d_model"]

    def read(self, model: Anatomy, layer: int, recorded: Recorded) -> Float[Tensor, "d_model"]:
        if len(self.tensor) != model.d_model:
            raise LexrayError(
                f"the vector has {len(self.tensor)} entries, but the stream of {model.name} "
                f"has {model.d_model}"
            )
        return model.place(self.tensor)

    def __str__(self) -> str:
        return f"<a vector of {len(self.tensor)}>"


@dataclass(frozen=True)
class OfAddress:
    """A parameter, as it is stored: `L29N50.value`, `L3H7.O12`."""

    address: Address

    def read(self, model: Anatomy, layer: int, recorded: Recorded) -> Float[Tensor, "d_model"]:
        return model.view("raw").vector(self.address).tensor

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True)
class OfWords:
    """The mean direction that raises these tokens' logits: columns of E with the final norm in."""

    words: tuple[str, ...]

    def read(self, model: Anatomy, layer: int, recorded: Recorded) -> Float[Tensor, "d_model"]:
        ids = torch.tensor([model.space.id(word) for word in self.words], device=model.device)
        folded = model.view("raw", folded=True)
        return at_least_float32(folded.W_U[:, ids]).mean(1)

    def __str__(self) -> str:
        if len(self.words) == 1:
            return json.dumps(self.words[0], ensure_ascii=False)
        return json.dumps(self.words, ensure_ascii=False)


@dataclass(frozen=True)
class Difference:
    """What the residual stream of one run has more than that of another, at their last positions
    and at the layer to which it is added."""

    one: Run
    other: Run

    def read(self, model: Anatomy, layer: int, recorded: Recorded) -> Float[Tensor, "width"]:
        ends = [
            at_least_float32(residual(recorded(run), layer, model)[-1])
            for run in (self.one, self.other)
        ]
        return ends[0] - ends[1]

    def __str__(self) -> str:
        return f"({show_run(self.one)} - {show_run(self.other)})"


Direction = OfTensor | OfAddress | OfWords | Difference


def residual(recording: Recording, entering: int, model: Anatomy) -> Float[Tensor, "p width"]:
    """The stream of a run as it enters a layer (n_layers: as it leaves the last one); several
    streams lie in a row."""
    refuse_other_model(recording, model)
    stream = recording.entering(entering)
    if stream is None:
        raise LexrayError(
            f"the run {show_run(recording)} has not kept the residual stream around layer "
            f"{entering}; trace it without layers= and what="
        )
    return stream


def refuse_other_model(recording: Recording, model: Anatomy) -> None:
    """Raises where a run's vectors do not fit."""
    ours, theirs = model.architecture, recording.model.architecture
    sizes = [_sizes(a) for a in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise LexrayError(
            f"a run of {recording.model.name} (width, heads, key heads, head width, layers: "
            f"{sizes[1]}) does not fit into {model.name} ({sizes[0]})"
        )


def _sizes(a: Architecture) -> tuple[int, ...]:
    n = 1 if a.streams is None else a.streams.count
    own = (n * a.d_model, a.n_heads, a.n_kv_heads, a.d_head, len(a.blocks))
    return own if a.encoder is None else (*own, *_sizes(a.encoder))


def as_run(given: Any) -> Run:
    """A run as people give it: a trace, a text, token ids."""
    if isinstance(given, Recording):
        return given
    if isinstance(given, (list, tuple)) and len(given) == 2 and not any(map(_is_number, given)):
        return _as_prompt(given[0]), _as_prompt(given[1])
    return _as_prompt(given)


def _as_prompt(given: Any) -> Prompt:
    if isinstance(given, str):
        return given
    try:
        return tuple(int(i) for i in given)
    except (TypeError, ValueError) as error:
        raise LexrayError(
            "a run is a trace, a text or token ids, of an encoder–decoder also a pair of these, "
            f"not {given!r}"
        ) from error


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float)) or getattr(given, "ndim", None) == 0


def as_direction(given: Any) -> Direction:
    """A vector as people give it: a tensor, an address, words, or a pair of runs."""
    if isinstance(given, (OfTensor, OfAddress, OfWords, Difference)):
        return given
    if isinstance(given, Address):
        return OfAddress(given)
    if isinstance(given, str):
        return _of_text(given)
    if isinstance(given, tuple) and len(given) == 2 and all(map(_is_run, given)):
        return Difference(as_run(given[0]), as_run(given[1]))
    if isinstance(given, (list, tuple)) and given and all(isinstance(w, str) for w in given):
        return OfWords(tuple(given))
    try:
        tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LexrayError(
            "a vector is a tensor, an address such as L29N50.value, a list of words, or two "
            f"traces whose difference is meant, not {given!r}"
        ) from error
    if tensor.ndim != 1 or not tensor.is_floating_point() or not tensor.isfinite().all():
        raise LexrayError(
            f"a vector has one axis of finite numbers, not the shape {tuple(tensor.shape)} of "
            f"{str(tensor.dtype).removeprefix('torch.')}"
        )
    return OfTensor(tensor.detach())


def _of_text(text: str) -> OfAddress | OfWords:
    """An address if it looks like one, else a word."""
    try:
        return OfAddress(Address.parse(text))
    except LexrayError:
        return OfWords((text,))


def _is_run(given: Any) -> bool:
    return isinstance(given, Recording)


def show_run(run: Run) -> str:
    """A run in the text form of an edit: its prompt."""
    if isinstance(run, Recording):
        said = _say(run, begun=run.source is not None)
        run = said if run.source is None else (_say(run.source), said)
    return json.dumps(run, ensure_ascii=False)


def _say(recording: Recording, *, begun: bool = False) -> str:
    """Its tokens as one text, but for the one with which decoding begins."""
    return "".join(token.text for token in recording.tokens[begun:])
