"""`lexray ground`: does a reading say what the parameter does?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import PlacedOptions
from lexray.cli.output import OUTPUT, Format, show
from lexray.cli.streams import tell
from lexray.errors import LexrayError
from lexray.files import write_whole

if TYPE_CHECKING:
    from lexray.studies.grounding import Grounding

REPORT, KEPT = "index.html", "ground.parts.jsonl"


def register(app: typer.Typer) -> None:
    app.command()(expand(ground))


def ground(
    model: PlacedOptions,
    text: Annotated[
        Path | None, option("Run this text; else one that comes along.", None, metavar="FILE")
    ] = None,
    kinds: Annotated[
        str | None, option("Some of key,gate,value,O,QK,VO; else all.", None, metavar="KINDS")
    ] = None,
    windows: Annotated[int, option("How many pieces of the text are run.", None, min=1)] = 48,
    seed: Annotated[int, option("Which parameters are drawn.", None)] = 0,
    format: Annotated[
        Format | None, option("How to show it; by default a table, or by FILE's ending.", OUTPUT)
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "Into this folder: a page, ground.json and ground.csv; an interrupted run goes on "
            "where it was. A name with the ending .html, .json, .csv or .txt is a file.",
            OUTPUT,
            "--output",
            "-o",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """How well raw, folded and standard readings tell what parameters do, on a text.

    lexray ground demo --kinds key,QK

    lexray ground demo -o report
    """
    from lexray.files import open_text
    from lexray.studies.grounding import KINDS
    from lexray.studies.grounding import ground as measure

    read = None
    if text is not None:
        with open_text(text) as stream:
            read = stream.read()
    folder = _folder(output) if format is None else None
    wanted = KINDS if kinds is None else tuple(kinds.replace(",", " ").split())
    opened = replace(model, dtype=model.dtype or "float32").open()  # half precision crawls on CPUs
    place = None if folder is None else folder / KEPT
    result = measure(opened, read, wanted, windows=windows, seed=seed, place=place)
    if folder is None:
        show(result, format, output)
    else:
        _write(result, folder)


def _folder(output: Path | None) -> Path | None:
    """The folder to write into, made; None where a file is meant, or nothing."""
    if output is None or output.suffix.lower() in (".html", ".htm", ".json", ".csv", ".txt"):
        return None
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LexrayError(f"cannot make the folder {output}: {error.strerror}") from error
    return output


def _write(grounding: Grounding, folder: Path) -> None:
    write_whole(folder / "ground.json", grounding.to_json() + "\n")
    write_whole(folder / "ground.csv", grounding.to_csv())
    write_whole(folder / REPORT, grounding.to_html())
    tell(str(folder / REPORT))
