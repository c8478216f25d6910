"""`lexray ground`: does a reading say what the parameter does?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import PlacedOptions
from lexray.cli.output import OutputOptions


def register(app: typer.Typer) -> None:
    app.command()(expand(ground))


def ground(
    model: PlacedOptions,
    output: OutputOptions,
    text: Annotated[
        Path | None, option("Run this text; else one that comes along.", None, metavar="FILE")
    ] = None,
    kinds: Annotated[
        str | None, option("Some of key,gate,value,O,QK,VO; else all.", None, metavar="KINDS")
    ] = None,
    windows: Annotated[int, option("How many pieces of the text are run.", None, min=1)] = 48,
    seed: Annotated[int, option("Which parameters are drawn.", None)] = 0,
) -> None:
    """How well raw, folded and standard readings tell what parameters do, on a text.

    lexray ground demo --kinds key,QK
    """
    from lexray.files import open_text
    from lexray.studies.grounding import KINDS
    from lexray.studies.grounding import ground as measure

    read = None
    if text is not None:
        with open_text(text) as stream:
            read = stream.read()
    wanted = KINDS if kinds is None else tuple(kinds.replace(",", " ").split())
    opened = replace(model, dtype=model.dtype or "float32").open()  # half precision crawls on CPUs
    output.show(measure(opened, read, wanted, windows=windows, seed=seed))
