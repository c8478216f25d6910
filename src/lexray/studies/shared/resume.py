"""Work over prompts that can be interrupted: what is done is kept, a line for each prompt.

Whoever runs a study says where (`keep_in`); the study calls `each_prompt` and need not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from lexray.errors import LexrayError
from lexray.files import append_json_line, appending, whole_lines
from lexray.model.model import Model
from lexray.progress import track
from lexray.studies.shared.prompts import Prompt, answers_rightly, read_prompts
from lexray.studies.shared.study import PromptOptions

Numbers = dict[str, Any]
"""Plain numbers, lists and dicts: what JSON gives back as it was."""

_place: ContextVar[Path | None] = ContextVar("place", default=None)
CHOOSING = {f.name for f in fields(PromptOptions)} - {"seed", "right"}
"""Options that choose prompts, and do not change what is computed for one."""


class NoneRightError(LexrayError):
    """The model answers none of the prompts rightly."""


@contextmanager
def keep_in(path: Path | None) -> Iterator[None]:
    """Inside, `each_prompt` keeps its results in this file and takes up what it finds there."""
    token = _place.set(path)
    try:
        yield
    finally:
        _place.reset(token)


@dataclass(frozen=True)
class Done:
    """What was computed for one prompt."""

    prompt: Prompt
    numbers: Numbers


def each_prompt(
    study: str, model: Model, options: PromptOptions, compute: Callable[[Prompt], Numbers]
) -> list[Done]:
    """`compute` for each prompt that the options choose, in order.

    With `options.right`, prompts that the model answers wrongly are passed over. What earlier runs
    with the same weights and options left in the file of `keep_in` is not computed again.
    """
    prompts = read_prompts(options.prompts)
    place = _place.get()
    store = WorkFile.open(place, fingerprint(study, model, options) if place else "")

    def one(prompt: Prompt) -> Numbers | None:
        return _one(model, options, compute, store, prompt)

    done = list(_choose(study, prompts, options.limit, one))
    if not done:
        raise NoneRightError(
            f"{model.name} answers none of {len(prompts)} prompts rightly; --all (right=False) "
            "takes them all, --prompts FILE others"
        )
    return done


def _choose(
    study: str, prompts: Sequence[Prompt], limit: int, one: Callable[[Prompt], Numbers | None]
) -> Iterator[Done]:
    wanted = min(limit or len(prompts), len(prompts))
    kept = 0
    for prompt in track(prompts, len(prompts), f"{study}: prompts"):
        numbers = one(prompt)
        if numbers is None:
            continue
        yield Done(prompt, numbers)
        kept += 1
        if kept == wanted:
            return


def _one(
    model: Model,
    options: PromptOptions,
    compute: Callable[[Prompt], Numbers],
    store: WorkFile,
    prompt: Prompt,
) -> Numbers | None:
    """A prompt's numbers; None if it is passed over."""
    if prompt in store:
        return store[prompt]
    wrong = options.right and prompt.answer is not None and not answers_rightly(model, prompt)
    return store.keep(prompt, None if wrong else compute(prompt))


def fingerprint(study: str, model: Model, options: PromptOptions) -> str:
    """What a prompt's numbers depend on besides the prompt."""
    from lexray import __version__

    said = {name: value for name, value in options.to_dict().items() if name not in CHOOSING}
    view = (str(model.options), str(model.dtype), model.family.name)
    text = json.dumps([__version__, study, said, model.name, model.checkpoint.revision, *view])
    return hashlib.sha256(text.encode() + weights_sample(model)).hexdigest()[:16]


def weights_sample(model: Model) -> bytes:
    """Some of every layer's numbers, so that another model under the same name is noticed."""
    parts = []
    for layer in model.layers:
        for head in layer.heads[:1]:
            parts += [head.W_Q[:, 0], head.W_K[:, 0], head.W_V[:, 0], head.W_O[0]]
        if layer.spec.mixer is not None:
            parts += [layer.mixer.vectors("in")[0].tensor, layer.mixer.vectors("out")[0].tensor]
        parts += [ff.neurons[0].W_out for ff in islice(layer.feed_forwards, 1)]
    digest = hashlib.sha256(model.vocabulary.fingerprint.encode())
    for part in parts:
        digest.update(part.float().cpu().contiguous().numpy().tobytes())
    return digest.digest()


@dataclass(frozen=True)
class WorkFile:
    """Lines of JSON, {"key", "prompt", "numbers"}; one is on disk before the next is computed."""

    path: Path | None
    made: str
    """The fingerprint of this run: lines of others are left alone."""
    known: dict[str, Numbers | None]

    @classmethod
    def open(cls, path: Path | None, made: str) -> WorkFile:
        return cls(path, made, {} if path is None or not path.exists() else _lines(path))

    def key(self, prompt: Prompt) -> str:
        text = json.dumps([self.made, prompt.text, prompt.answer])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def __contains__(self, prompt: Prompt) -> bool:
        return self.key(prompt) in self.known

    def __getitem__(self, prompt: Prompt) -> Numbers | None:
        return self.known[self.key(prompt)]

    def keep(self, prompt: Prompt, numbers: Numbers | None) -> Numbers | None:
        """The numbers as JSON gives them back, so that a resumed run is the same as a whole one."""
        key = self.key(prompt)
        self.known[key] = json.loads(json.dumps(numbers))
        if self.path is not None:
            with appending(self.path) as stream:
                append_json_line(stream, {"key": key, "prompt": prompt.text, "numbers": numbers})
        return self.known[key]


def keep_work(path: Path | None, made: str, name: str, compute: Callable[[], Numbers]) -> Numbers:
    """A piece of work that is kept in a file as a prompt's numbers are, under a name of its own."""
    if path is None:
        return compute()
    store, piece = WorkFile.open(path, made), Prompt(name)
    known = store[piece] if piece in store else store.keep(piece, compute())
    assert known is not None
    return known


def _lines(path: Path) -> dict[str, Numbers | None]:
    """What the whole lines of a file hold, by key; a torn last one is cut off."""
    with appending(path) as stream:
        return dict(_parse(line, path) for line in whole_lines(stream, b'{"key":'))


def _parse(line: bytes, path: Path) -> tuple[str, Numbers | None]:
    try:
        row = json.loads(line)
        return str(row["key"]), row["numbers"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _foreign(path) from None


def _foreign(path: Path) -> LexrayError:
    return LexrayError(
        f"{path} was not written by `lexray study`, which keeps its prompts' results there; "
        "move it, or choose another output"
    )
