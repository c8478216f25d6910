"""`lexray info`: what a model is, before anything of it is read."""

from __future__ import annotations

from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import ModelOptions
from lexray.cli.output import OutputOptions


def register(app: typer.Typer) -> None:
    app.command()(expand(info))


def info(
    model: ModelOptions,
    output: OutputOptions,
    untrained: Annotated[
        bool, option("The tokens that standard lists set aside, and why.", None, "--untrained")
    ] = False,
) -> None:
    """Family, sizes, where each parameter lives, and what would be read for one head."""
    from lexray.model.info import info as describe

    opened = model.open()
    output.show(opened.untrained() if untrained else describe(opened))
