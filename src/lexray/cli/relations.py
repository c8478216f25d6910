"""`lexray relations`: which heads and neurons hold which relations between words."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import ReadingOptions
from lexray.cli.output import OutputOptions
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    app.command()(expand(relations))


def relations(
    model: ReadingOptions,
    output: OutputOptions,
    plot: PlotOptions,
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RELATION…]",
            help="capital, past, antonym …; a .csv, .tsv or .json file; or pairs: "
            "France→Paris,Japan→Tokyo (-> will do). All that come along if none is given.",
        ),
    ] = None,
    neurons: Annotated[bool, option("Feed-forward neurons instead of heads.")] = False,
    k: Annotated[
        int | None,
        option(
            "The target is among so many of the best; 10, and 1 for copying.", None, "-k", min=1
        ),
    ] = None,
    limit: Annotated[
        int, option("How many heads of each relation.", None, "--limit", "-n", min=1)
    ] = 3,
    shuffles: Annotated[int, option("How often targets are shuffled for chance.", min=100)] = 1000,
    seed: Annotated[int, option("Of the shuffles.")] = 0,
) -> None:
    """Which heads map countries to capitals, verbs to their past: all relations, all heads.

    lexray relations smollm2 capital antonym
    lexray relations smollm2 "France→Paris,Japan→Tokyo,Italy→Rome"
    """
    from lexray.roles.neurons import neuron_relations

    output.check()
    plot.check()
    opened = model.open()
    if neurons:
        if plot.plot is not None:
            raise LexrayError("--plot draws heads by layer; neurons have no such picture")
        output.show(replace(neuron_relations(opened, which or None), shown=limit))
        return
    result = replace(
        opened.relations(which or None, k=k, shuffled=shuffles, seed=seed), shown=limit
    )
    plot.draw(result)
    output.show(result)
