"""`lexray evidence`: what a parameter does on running text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import AddressArg, Limit, ReadingOptions
from lexray.cli.output import OutputOptions


def register(app: typer.Typer) -> None:
    app.command()(expand(evidence))


def evidence(
    model: ReadingOptions,
    address: AddressArg,
    output: OutputOptions,
    text: Annotated[
        Path | None, option("Run this text; else one that comes along.", None, metavar="FILE")
    ] = None,
    dictionary: Annotated[
        Path | None,
        option("ADDRESS is a feature, L12F345, of this SAELens folder or .safetensors file."),
    ] = None,
    limit: Limit = 10,
) -> None:
    """Where a parameter is strongest in a text, what followed, and whether its reading tells it.

    lexray evidence smollm2 L26N777

    lexray evidence smollm2 L23H4 --text story.txt -n 20
    """
    from lexray.dictionary.dictionary import Dictionary
    from lexray.files import open_text

    read = None
    if text is not None:
        with open_text(text) as stream:
            read = stream.read()
    opened = replace(model, dtype=model.dtype or "float32").open()  # half precision crawls on CPUs
    if dictionary is not None:
        feature = Dictionary.open(dictionary, opened)[address.partition(".")[0]]
        output.show(feature.evidence(read, limit))
        return
    output.show(opened.evidence(address, read, limit))
