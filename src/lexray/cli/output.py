"""How a result is shown: in the terminal, or in a file that is written whole or not at all."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lexray.clean import ascii_json, clean, is_unicode
from lexray.cli.groups import option
from lexray.cli.streams import say, writing
from lexray.errors import LexrayError
from lexray.files import write_whole

if TYPE_CHECKING:
    from lexray.result.table import Result

OUTPUT = "Output"
PICTURES = ("png", "svg", "pdf", "jpg", "jpeg", "webp", "gif")


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


CsvRaw = Annotated[
    bool,
    option(
        "CSV with every token as it is; by default an apostrophe stands before = + - @, "
        "which spreadsheets would run.",
        OUTPUT,
    ),
]


@dataclass(frozen=True)
class OutputOptions:
    """How to show a result, and where."""

    format: Annotated[
        Format | None,
        option("How to show it; by default a table, or what the ending of --output says.", OUTPUT),
    ] = None
    output: Annotated[Path | None, option("Write to this file.", OUTPUT, "--output", "-o")] = None

    csv_raw: CsvRaw = False

    def show(self, result: Result, limit: int | None = None) -> None:
        show(result, self.format, self.output, limit=limit, csv_raw=self.csv_raw)

    def check(self) -> None:
        """Before the work, what could go wrong after it."""
        refuse_unwritable(self.output)


def refuse_unwritable(path: Path | None) -> None:
    if path is not None and not path.parent.is_dir():
        raise LexrayError(f"cannot write {path}: there is no folder {path.parent}")


def show(
    result: Result,
    form: Format | None,
    output: Path | None,
    *,
    limit: int | None = None,
    csv_raw: bool = False,
) -> None:
    """Prints a result, or writes it to a file, whole or not at all; a table has `limit` rows."""
    if form is None and output is not None and _is_drawn(result, output):
        result.plot().save(output)  # type: ignore[attr-defined]
        return
    if form is None and output is not None and output.suffix.lower() == ".parquet":
        result.to_parquet(output)
        return
    form = form or format_of(output)
    if form is Format.TABLE and limit is not None:
        from lexray.cli.shorten import Shortened

        result = Shortened(result, limit)
    if output is not None:
        write_whole(output, _render(result, form, csv_raw))
    elif form is Format.TABLE and sys.stdout.isatty():
        from rich.console import Console

        with writing():
            Console().print(result)
    else:
        say(_render_for_stdout(result, form, csv_raw))


def _is_drawn(result: Result, path: Path) -> bool:
    """Whether the file's ending asks for a picture, and the result has one."""
    from lexray.result.images import IMAGES

    return path.suffix.lower() in IMAGES and hasattr(result, "plot")


def format_of(output: Path | None) -> Format:
    """What a file's ending asks for; an unknown one is a table, but a picture is not text."""
    ending = output.suffix.lstrip(".").lower() if output else ""
    if ending in PICTURES:
        raise LexrayError(
            f"{output}: this result is written as text, not as .{ending}; end the name in .html, "
            ".json, .csv, .parquet or .txt (pictures, where there are any: --plot FILE)"
        )
    ending = "html" if ending == "htm" else ending
    return Format(ending) if ending in {form.value for form in Format} else Format.TABLE


def _render(result: Result, form: Format, csv_raw: bool) -> str:
    match form:
        case Format.JSON:
            return result.to_json() + "\n"
        case Format.CSV:
            return result.to_csv(safe=not csv_raw)
        case Format.HTML:
            return result.to_html()
        case Format.TABLE:
            return f"{result}\n"


def _render_for_stdout(result: Result, form: Format, csv_raw: bool) -> str:
    """As `_render`, for what stands behind stdout."""
    encoding = sys.stdout.encoding
    if form is Format.TABLE:
        return result.to_text(encoding) + "\n"
    if form is Format.JSON and sys.stdout.isatty():
        return result.to_json(state=False) + "\n"
    text = _render(result, form, csv_raw)
    if form is Format.CSV and sys.stdout.isatty():
        return clean(text)
    if is_unicode(encoding):
        return text
    if form is Format.JSON:
        return ascii_json(text)
    return text.encode("ascii", "xmlcharrefreplace").decode() if form is Format.HTML else text
