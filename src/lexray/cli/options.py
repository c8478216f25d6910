"""The options that commands share, and the one place where a model is opened and a result shown."""

from __future__ import annotations

import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model import Model
    from lexray.render import Result


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


ModelArg = Annotated[
    str, typer.Argument(metavar="MODEL", help="A path, a Hub id, or a shipped name.")
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="How to show it (by the ending of --output).")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, mps, …")]
DtypeOption = Annotated[
    str | None, typer.Option(help="Compute in this dtype (float32, …), not the checkpoint's own.")
]
RevisionOption = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
RemoteOption = Annotated[
    bool, typer.Option("--remote", help="Download nothing: read byte ranges from the Hub.")
]
AdapterOption = Annotated[str | None, typer.Option(help="A LoRA adapter to put on top of MODEL.")]
FamilyOption = Annotated[str | None, typer.Option(help="Read MODEL by the rules of this family.")]


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

    from lexray.model import Model

    kind = getattr(torch, dtype, None) if dtype else None
    if dtype and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise LexrayError(f"unknown dtype {dtype!r}; try float32, bfloat16 or float16")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        first = str(error).splitlines()[0]
        raise LexrayError(f"there is no device {device!r} here ({first}); try cpu") from error
    return Model.from_pretrained(
        source,
        revision=revision,
        remote=remote,
        adapter=adapter,
        family=family,
        device=place,
        dtype=kind,
    )


def show(result: Result, form: Format | None, output: Path | None) -> None:
    """Prints a result, or writes it to a file, whole or not at all."""
    form = form or _by_ending(output)
    if output is None:
        if form is Format.TABLE:
            from rich.console import Console

            Console().print(result)
        else:
            sys.stdout.write(_rendered(result, form))
        return
    write_file(output, _rendered(result, form))


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
    ending = output.suffix.lstrip(".").lower() if output else ""
    ending = "html" if ending == "htm" else ending
    return Format(ending) if ending in {form.value for form in Format} else Format.TABLE


def _rendered(result: Result, form: Format) -> str:
    match form:
        case Format.JSON:
            return result.to_json() + "\n"
        case Format.CSV:
            return result.to_csv()
        case Format.HTML:
            return result.to_html()
        case Format.TABLE:
            return str(result) + "\n"
