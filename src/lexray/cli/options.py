"""The options that commands share: which model and how it is read, which tokens and pairs.

This is the one place where a model is opened, and a View and a filter are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.cli.groups import option
from lexray.cli.parse import words
from lexray.cli.streams import tell
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.circuits import Circuit
    from lexray.model.model import Model
    from lexray.result.pairs import Pairs
    from lexray.vocabulary.filters import Filter

MODEL, READING, TOKENS = "The model", "How it is read", "Which tokens"

AddressArg = Annotated[
    str,
    typer.Argument(metavar="ADDRESS", help="Where: L19H4, L19H4.QK, L23N907, L3H7.V12, L3.b_out …"),
]
DictionaryArg = Annotated[
    Path,
    typer.Argument(
        metavar="DICTIONARY",
        help="A sparse autoencoder or transcoder: a SAELens folder, or a .safetensors file.",
    ),
]
K = Annotated[int, option("How many tokens or pairs of each.", None, "-k", min=1)]
Limit = Annotated[int, option("How many, the best first.", None, "--limit", "-n", min=1)]
Among = Annotated[
    list[str] | None,
    option(
        "Only these groups, all by default: keys, gates, values, Q, K, V or O. Repeatable, or "
        "with commas.",
        metavar="GROUP",
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model."""

    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A path, a Hub id, or a shipped name: demo, smollm2."),
    ]
    revision: Annotated[str | None, option("Branch, tag or commit of a Hub model.", MODEL)] = None
    remote: Annotated[bool, option("Download nothing: read byte ranges from the Hub.", MODEL)] = (
        False
    )
    adapter: Annotated[str | None, option("A LoRA adapter to put on top of MODEL.", MODEL)] = None
    family: Annotated[str | None, option("Read MODEL by the rules of this family.", MODEL)] = None

    def open(self) -> Model:
        return self._open()

    def _open(self, **further: Any) -> Model:
        return open_model(
            self.model,
            revision=self.revision,
            remote=self.remote,
            adapter=self.adapter,
            family=self.family,
            **further,
        )


@dataclass(frozen=True)
class PlacedOptions(ModelOptions):
    """Which model, and where it computes in which dtype."""

    device: Annotated[str, option("cpu, cuda, mps, …", MODEL)] = "cpu"
    dtype: Annotated[
        str | None, option("Compute in this dtype (float32, …), not the checkpoint's own.", MODEL)
    ] = None

    def open(self) -> Model:
        return self._open(device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class ReadingOptions(PlacedOptions):
    """Which model, and how it is read: fields that are named as those of `View` make the view."""

    view: Annotated[
        Literal["standard", "raw"] | None,
        option("standard, or raw: the papers' way, which align and studies take.", READING),
    ] = None
    raw: Annotated[bool, option("The same as --view raw.", READING)] = False
    folded: Annotated[
        bool | None, option("Fold the norms into the weights.", READING, "--folded/--no-folded")
    ] = None
    standardised: Annotated[
        bool | None,
        option(
            "Scores less their mean, over their spread, for the token and kind of parameter.",
            READING,
            "--standardised/--no-standardised",
        ),
    ] = None
    calibrated: Annotated[
        bool | None,
        option(
            "Divide scores by what is typical for the token, so that rare ones do not lead.",
            READING,
            "--calibrated/--no-calibrated",
        ),
    ] = None
    centred: Annotated[
        bool | None, option("Subtract the mean embedding.", READING, "--centred/--no-centred")
    ] = None
    trained: Annotated[
        bool | None,
        option(
            "Set tokens aside that training never touched, and pieces of characters.",
            READING,
            "--trained/--all-tokens",
        ),
    ] = None
    inverse: Annotated[
        Literal["transpose", "pinv"] | None,
        option("What stands for reading: the embedding's transpose or pseudo-inverse.", READING),
    ] = None
    reading: Annotated[
        Literal["output", "input", "effective"] | None,
        option("Which embedding stands on the reading side: output is what is expected.", READING),
    ] = None
    head: Annotated[
        Literal["decoder", "jacobian"] | None,
        option("BERT's prediction head: leave it out, or read through its Jacobian.", READING),
    ] = None

    def open(self) -> Model:
        return super().open().view(self.view_name, **self.changes())

    @property
    def unsaid(self) -> bool:
        """Whether nothing was said of how to read: the library then does what is best for each."""
        return self.view_name is None and not self.changes().keys() - {"offset"}

    def open_as_papers_do(self) -> Model:
        """The same, raw where nothing is said."""
        return super().open().view(self.view_name or "raw", **self.changes())

    @property
    def view_name(self) -> Literal["standard", "raw"] | None:
        if self.raw and self.view == "standard":
            raise LexrayError("--raw and --view standard contradict each other; choose one")
        return "raw" if self.raw else self.view

    def changes(self) -> dict[str, Any]:
        """The options of the View that were asked for."""
        from lexray.view import View

        named = {field.name for field in fields(self)}
        asked = {name: getattr(self, name) for name in View.options() if name in named}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class CircuitOptions(ReadingOptions):
    """The same for a head's matrices."""

    offset: Annotated[
        int,
        option(
            "QK of rotary models: how far the key is from the query; -1 is the token before.",
            READING,
        ),
    ] = 0


@dataclass(frozen=True)
class TokenOptions:
    """Which tokens may appear; the answer is exact among them."""

    ascii: Annotated[bool, option("Only ASCII tokens.", TOKENS)] = False
    alnum: Annotated[bool, option("Only letters and digits, of any script.", TOKENS)] = False
    starts_word: Annotated[bool, option("Only tokens that begin a word.", TOKENS)] = False
    corpus: Annotated[
        Path | None,
        option(
            "Only tokens that occur in this .txt or .jsonl file (perhaps .gz).",
            TOKENS,
            metavar="FILE",
        ),
    ] = None
    min_count: Annotated[int | None, option("With --corpus: at least so often.", TOKENS, min=1)] = (
        None
    )
    only: Annotated[
        list[str] | None,
        option(
            "Only these words, in any form; or a file with a word a line: @FILE or FILE.txt. "
            "Repeatable.",
            TOKENS,
            metavar="WORDS",
        ),
    ] = None

    def filter(self) -> Filter | None:
        """All that was asked for, together; None if nothing was."""
        from lexray.vocabulary import filters

        if self.min_count is not None and self.corpus is None:
            raise LexrayError("--min-count counts in a corpus; say which with --corpus FILE")
        parts: list[Filter] = []
        if self.ascii:
            parts.append(filters.ascii)
        if self.alnum:
            parts.append(filters.alphanumeric)
        if self.starts_word:
            parts.append(filters.starts_word)
        if self.corpus is not None:
            parts.append(filters.corpus(self.corpus, minimum=self.min_count or 1))
        if self.only is not None:
            parts.append(filters.among(words("--only", self.only), any_form=True))
        return reduce(and_, parts) if parts else None


@dataclass(frozen=True)
class PairOptions:
    """Which pairs of a head's matrix."""

    k: Annotated[int, option("How many pairs.", None, "-k", min=1)] = 50
    smallest: Annotated[bool, option("The smallest (most negative) scores.")] = False
    absolute: Annotated[bool, option("The largest scores in absolute value.")] = False
    exclude_same: Annotated[
        bool, option("No pairs of a token with itself, whatever its case and leading space.")
    ] = False
    exclude_inflected: Annotated[bool, option("Nor with a simple inflection: walk, walked.")] = (
        False
    )

    def top(self, circuit: Circuit, filter: Filter | None, budget: float | None = None) -> Pairs:
        return circuit.top(
            self.k, sign=self.sign, exclude_same=self._exclude, filter=filter, budget=budget
        )

    def each(self, circuits: Iterable[Circuit], filter: Filter | None) -> Iterator[Pairs]:
        """The same of many."""
        from lexray.model.sweep import each_top

        return each_top(circuits, self.k, sign=self.sign, exclude_same=self._exclude, filter=filter)

    @property
    def _exclude(self) -> bool | Literal["inflected"]:
        return "inflected" if self.exclude_inflected else self.exclude_same

    @property
    def sign(self) -> Literal["largest", "smallest", "absolute"]:
        if self.smallest and self.absolute:
            raise LexrayError("--smallest and --absolute contradict each other; choose one")
        return "smallest" if self.smallest else "absolute" if self.absolute else "largest"

    def refuse(self, because: str) -> None:
        """Only k may be set."""
        names = ("smallest", "absolute", "exclude_same", "exclude_inflected")
        if given := [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]:
            raise LexrayError(f"{', '.join(given)} chooses among pairs, not with {because}")


def open_model(
    source: str,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    revision: str | None = None,
    remote: bool = False,
    adapter: str | None = None,
    family: str | None = None,
) -> Model:
    """The model that a command is about."""
    import torch

    from lexray.model.model import Model

    kind = getattr(torch, dtype, None) if dtype else None
    if dtype and not (
        isinstance(kind, torch.dtype) and kind.is_floating_point and kind.itemsize > 1
    ):
        raise LexrayError(f"unknown dtype {dtype!r}; try float32, bfloat16 or float16")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        first = str(error).splitlines()[0]
        raise LexrayError(f"there is no device {device!r} here ({first}); try cpu") from error
    model = Model.from_pretrained(
        source,
        revision=revision,
        remote=remote,
        adapter=adapter,
        family=family,
        device=place,
        dtype=kind,
    )
    for note in model.checkpoint.notes:
        tell(note)
    return model
