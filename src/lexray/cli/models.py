"""`lexray info`: what a model is, before anything of it is read."""

from __future__ import annotations

import typer

from lexray.cli.options import (
    AdapterOption,
    FamilyOption,
    FormatOption,
    ModelArg,
    OutputOption,
    RemoteOption,
    RevisionOption,
    open_model,
    show,
)


def register(app: typer.Typer) -> None:
    app.command()(info)


def info(
    model: ModelArg,
    format: FormatOption = None,
    output: OutputOption = None,
    revision: RevisionOption = None,
    remote: RemoteOption = False,
    adapter: AdapterOption = None,
    family: FamilyOption = None,
) -> None:
    """Family, sizes, where each parameter lives, and what would be read for one head."""
    from lexray.info import info as describe

    opened = open_model(model, revision=revision, remote=remote, adapter=adapter, family=family)
    show(describe(opened), format, output)
