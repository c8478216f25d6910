"""The options that commands share: which model and how it is read, which tokens, what to show.

This is the one place where a model is opened, a View and a filter are made, and a result shown.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.clean import ascii_json, clean, is_unicode
from lexray.cli.streams import say, written
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.circuits import Circuit
    from lexray.model.model import Model
    from lexray.result.readings import Pairs
    from lexray.result.table import Result
    from lexray.vocabulary.filters import Filter

PICTURES = ("png", "svg", "pdf", "jpg", "jpeg", "webp", "gif")
MODEL, READING, TOKENS, OUTPUT = "The model", "How it is read", "Which tokens", "Output"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


AddressArg = Annotated[
    str,
    typer.Argument(metavar="ADDRESS", help="Where: L19H4, L19H4.QK, L23N907, L3H7.V12, L3.b_out …"),
]
K = Annotated[int, typer.Option("-k", min=1, help="How many tokens or pairs to show.")]


@dataclass(frozen=True)
class ModelOptions:
    """Which model."""

    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A path, a Hub id, or a shipped name: demo, smollm2."),
    ]
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit of a Hub model.", rich_help_panel=MODEL),
    ] = None
    remote: Annotated[
        bool,
        typer.Option(
            "--remote",
            help="Download nothing: read byte ranges from the Hub.",
            rich_help_panel=MODEL,
        ),
    ] = False
    adapter: Annotated[
        str | None,
        typer.Option(help="A LoRA adapter to put on top of MODEL.", rich_help_panel=MODEL),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(help="Read MODEL by the rules of this family.", rich_help_panel=MODEL),
    ] = None

    def open(self) -> Model:
        return self._opened()

    def _opened(self, **further: Any) -> Model:
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

    device: Annotated[str, typer.Option(help="cpu, cuda, mps, …", rich_help_panel=MODEL)] = "cpu"
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Compute in this dtype (float32, …), not the checkpoint's own.",
            rich_help_panel=MODEL,
        ),
    ] = None

    def open(self) -> Model:
        return self._opened(device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class ReadingOptions(PlacedOptions):
    """Which model, and how it is read: fields that are named as those of `View` make the view."""

    folded: Annotated[
        bool,
        typer.Option("--folded", help="Fold the norms into the weights.", rich_help_panel=READING),
    ] = False
    calibrated: Annotated[
        bool,
        typer.Option(
            "--calibrated",
            help="Divide scores by what is typical for the token, so that rare ones do not lead.",
            rich_help_panel=READING,
        ),
    ] = False
    centred: Annotated[
        bool,
        typer.Option("--centred", help="Subtract the mean embedding.", rich_help_panel=READING),
    ] = False
    inverse: Annotated[
        Literal["transpose", "pinv"],
        typer.Option(
            help="What stands for reading: the embedding's transpose or its pseudo-inverse.",
            rich_help_panel=READING,
        ),
    ] = "transpose"
    reading: Annotated[
        Literal["output", "input"],
        typer.Option(
            help="Which embedding stands on the reading side, if the model has two.",
            rich_help_panel=READING,
        ),
    ] = "output"

    def open(self) -> Model:
        return super().open().view(**self.view())

    def view(self) -> dict[str, Any]:
        """The options of the View that was asked for."""
        from lexray.view import View

        named = {field.name for field in fields(self)}
        return {name: getattr(self, name) for name in View.options() if name in named}


@dataclass(frozen=True)
class CircuitOptions(ReadingOptions):
    """The same for a head's matrices."""

    offset: Annotated[
        int,
        typer.Option(
            help="QK of rotary models: how far the key is from the query; -1 is the token before.",
            rich_help_panel=READING,
        ),
    ] = 0


@dataclass(frozen=True)
class TokenOptions:
    """Which tokens may appear; the answer is exact among them."""

    ascii: Annotated[
        bool, typer.Option("--ascii", help="Only ASCII tokens.", rich_help_panel=TOKENS)
    ] = False
    alnum: Annotated[
        bool,
        typer.Option(
            "--alnum", help="Only letters and digits, of any script.", rich_help_panel=TOKENS
        ),
    ] = False
    starts_word: Annotated[
        bool,
        typer.Option(
            "--starts-word", help="Only tokens that begin a word.", rich_help_panel=TOKENS
        ),
    ] = False
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Only tokens that occur in this .txt or .jsonl file (perhaps .gz).",
            rich_help_panel=TOKENS,
        ),
    ] = None
    min_count: Annotated[
        int | None,
        typer.Option(min=1, help="With --corpus: at least so often.", rich_help_panel=TOKENS),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="Only these words, in any form; or a file with a token a line. Repeatable.",
            rich_help_panel=TOKENS,
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
            parts.append(filters.among(_listed(self.only), any_form=True))
        return reduce(and_, parts) if parts else None


def _listed(only: list[str]) -> list[str]:
    """The words of `--only`: of each value itself, or of the file that it names."""
    words: list[str] = []
    for value in only:
        if "/" in value or value.endswith(".txt") or Path(value).is_file():
            words += _lines(Path(value))
        else:
            words += value.split()
    if not words:
        raise LexrayError(f"--only names no words: {', '.join(map(repr, only))}")
    return words


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LexrayError(f"cannot read the words of --only {path}: {error}") from error
    return [line for line in lines if line.strip()]


@dataclass(frozen=True)
class PairOptions:
    """Which pairs of a head's matrix."""

    k: K = 50
    smallest: Annotated[
        bool, typer.Option("--smallest", help="The smallest (most negative) scores.")
    ] = False
    absolute: Annotated[
        bool, typer.Option("--absolute", help="The largest scores in absolute value.")
    ] = False
    exclude_same: Annotated[
        bool,
        typer.Option(
            "--exclude-same",
            help="No pairs of a token with itself, whatever its case and leading space.",
        ),
    ] = False
    exclude_inflected: Annotated[
        bool,
        typer.Option("--exclude-inflected", help="Nor with a simple inflection: walk, walked."),
    ] = False

    def top(self, circuit: Circuit, filter: Filter | None) -> Pairs:
        exclude: bool | Literal["inflected"] = (
            "inflected" if self.exclude_inflected else self.exclude_same
        )
        return circuit.top(self.k, sign=self.sign, exclude_same=exclude, filter=filter)

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


@dataclass(frozen=True)
class OutputOptions:
    """How to show a result, and where."""

    format: Annotated[
        Format | None,
        typer.Option(
            help="How to show it; by default a table, or what the ending of --output says.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file.", rich_help_panel=OUTPUT),
    ] = None
    csv_raw: Annotated[
        bool,
        typer.Option(
            "--csv-raw",
            help="CSV with every token as it is; by default an apostrophe stands before = + - @, "
            "which spreadsheets would run.",
            rich_help_panel=OUTPUT,
        ),
    ] = False

    def show(self, result: Result, limit: int | None = None) -> None:
        show(result, self.format, self.output, limit=limit, csv_raw=self.csv_raw)


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
        typer.echo(note, err=True)
    return model


def show(
    result: Result,
    form: Format | None,
    output: Path | None,
    *,
    limit: int | None = None,
    csv_raw: bool = False,
) -> None:
    """Prints a result, or writes it to a file, whole or not at all; a table has `limit` rows."""
    form = form or _by_ending(output)
    if form is Format.TABLE and limit is not None:
        from lexray.cli.shortened import Shortened

        result = Shortened(result, limit)
    if output is not None:
        write_file(output, _rendered(result, form, csv_raw))
    elif form is Format.TABLE and sys.stdout.isatty():
        from rich.console import Console

        with written():
            Console().print(result)
    else:
        say(_printed(result, form, csv_raw))


def write_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            part = Path(folder) / path.name
            part.write_text(text, encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise LexrayError(f"cannot write {path}: {error.strerror}") from error


def _by_ending(output: Path | None) -> Format:
    """What a file's ending asks for; an unknown one is a table, but a picture is not text."""
    ending = output.suffix.lstrip(".").lower() if output else ""
    if ending in PICTURES:
        raise LexrayError(
            f"{output}: this result is written as text, not as .{ending}; end the name in .html, "
            ".json, .csv or .txt (pictures, where there are any: --plot FILE)"
        )
    ending = "html" if ending == "htm" else ending
    return Format(ending) if ending in {form.value for form in Format} else Format.TABLE


def _rendered(result: Result, form: Format, csv_raw: bool) -> str:
    match form:
        case Format.JSON:
            return result.to_json() + "\n"
        case Format.CSV:
            return result.to_csv(safe=not csv_raw)
        case Format.HTML:
            return result.to_html()
        case Format.TABLE:
            return f"{result}\n"


def _printed(result: Result, form: Format, csv_raw: bool) -> str:
    """As `_rendered`, for what stands behind stdout."""
    encoding = sys.stdout.encoding
    if form is Format.TABLE:
        return result.to_text(encoding) + "\n"
    text = _rendered(result, form, csv_raw)
    if form is Format.CSV and sys.stdout.isatty():
        return clean(text)
    if is_unicode(encoding):
        return text
    if form is Format.JSON:
        return ascii_json(text)
    return text.encode("ascii", "xmlcharrefreplace").decode() if form is Format.HTML else text
