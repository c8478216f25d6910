"""`lexray wires` and `lexray path`: what one parameter writes and another reads."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import K, ReadingOptions
from lexray.cli.output import OutputOptions
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    app.command()(expand(wires))
    app.command()(expand(path))


def wires(
    model: ReadingOptions,
    output: OutputOptions,
    plot: PlotOptions,
    source: Annotated[
        str | None,
        option("What reads this head or neuron.", None, "--from", metavar="ADDRESS"),
    ] = None,
    target: Annotated[
        str | None,
        option("What writes for this head or neuron.", None, "--to", metavar="ADDRESS"),
    ] = None,
    heads: Annotated[
        bool, option("Composition of all pairs of heads instead of neurons; --plot draws it.")
    ] = False,
    via: Annotated[
        Literal["key", "gate", "Q", "K", "V"] | None,
        option("Only what is read by keys, gates, or heads' Q, K or V."),
    ] = None,
    top: Annotated[int, option("How many links.", None, "--top", "-n", min=1)] = 100,
) -> None:
    """The strongest links of a model: what one parameter writes, a later one reads.

    lexray wires smollm2 --from L10N5 --top 20
    lexray wires demo --heads --via K
    """
    if sum((source is not None, target is not None, heads)) > 1:
        raise LexrayError("--from, --to and --heads each ask for something else; choose one")
    if plot.plot is not None and not heads:
        raise LexrayError("--plot draws the composition of heads: with --heads")
    output.check()
    plot.check()
    opened = model.open()
    if heads:
        result = opened.composition(top, via=[via] if via else ["Q", "K", "V"])
        plot.draw(result)
        output.show(result)
    elif source is not None:
        output.show(opened[_whole(source)].readers(top, via=via))
    elif target is not None:
        output.show(opened[_whole(target)].writers(top, via=via))
    else:
        output.show(opened.wires(top, via=[via] if via else ["key", "gate"]))


def _whole(text: str) -> str:
    """The head or neuron at an address, which may name one of its vectors."""
    from lexray.address import Address

    at = Address.parse(text)
    if at.subhead is not None or (at.head is None and at.neuron is None):
        raise LexrayError(f"{at} is neither a head nor a neuron; try L3H7 or L12N345")
    return str(at).partition(".")[0]


def path(
    model: ReadingOptions,
    chain: Annotated[
        list[str],
        typer.Argument(
            metavar="STEP… TOKEN",
            help="Heads (L1H4), a head's keys or queries at the end (L5H2.K), neurons (L7N12); "
            'and last the token: " her".',
        ),
    ],
    output: OutputOptions,
    k: K = 10,
) -> None:
    """What a token becomes along a chain of parameters, at each step as words.

    lexray path smollm2 L1H4 L5H2.K " her"
    """
    if len(chain) < 2:
        raise LexrayError('a path needs parameters and then a token: L1H4 L5H2.K " her"')
    *steps, token = chain
    output.show(model.open().path(token, *steps, k=k))
