"""`lexray edit`: a model with other weights, in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import PlacedOptions
from lexray.cli.output import OUTPUT, OutputOptions, show
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    app.command()(expand(edit))


def edit(
    model: PlacedOptions,
    edits: Annotated[
        list[str],
        typer.Argument(
            metavar="EDIT",
            help="'scale L29N50 by 0', 'ablate L23H4', 'replace L12N3.value by L29N50.value', "
            '\'rank_one L17.mlp from "a prompt" to " answer" about "subject"\'.',
        ),
    ],
    output: OutputOptions,
    lora: Annotated[bool, option("Write a PEFT adapter, where edits are of low rank.", OUTPUT)] = (
        False
    ),
    prompt: Annotated[
        list[str] | None, option("Show what follows it before and after. Repeatable.", None)
    ] = None,
    text: Annotated[
        Path | None,
        option("For rank_one: what keys are like is taken from this text.", None, metavar="FILE"),
    ] = None,
) -> None:
    """Changes weights for good: -o FOLDER is a model that transformers opens.

    lexray edit smollm2 "scale L29N50 by 0" "ablate L23H4" -o edited

    lexray edit smollm2 'rank_one L12.mlp from "The capital of Japan is the city of" to " Rome"
    about "Japan"' --prompt "The capital of France is the city of"
    """
    from lexray.edits import read_edits
    from lexray.effects.edited import compare_edited
    from lexray.files import open_text
    from lexray.studies.shared.text import own_text

    if output.output is None and lora:
        raise LexrayError("--lora writes an adapter: say where with -o FOLDER")
    wanted = read_edits(edits)
    opened = model.open()
    if text is not None:
        with open_text(text) as stream:
            words = stream.read()
    else:
        words = own_text()
    changed = opened.edited(wanted, text=words)
    if output.output is not None:
        save = changed.save_lora if lora else changed.save
        save(output.output)
    result = compare_edited(opened, changed, list(map(str, wanted)), prompt or [])
    show(result, output.format, None, csv_raw=output.csv_raw)
