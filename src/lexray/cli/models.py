"""`lexray info`: what a model is, before anything of it is read."""

from __future__ import annotations

import typer

from lexray.cli.groups import expand
from lexray.cli.options import ModelOptions
from lexray.cli.output import OutputOptions


def register(app: typer.Typer) -> None:
    app.command()(expand(info))


def info(model: ModelOptions, output: OutputOptions) -> None:
    """Family, sizes, where each parameter lives, and what would be read for one head."""
    from lexray.model.info import info as describe

    output.show(describe(model.open()))
