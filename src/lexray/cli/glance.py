"""`lexray overview`, `layer` and `token`: a model, a layer and a token at a glance."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import K, ReadingOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import numbers
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    for command in (overview, layer, token):
        app.command()(expand(command))


def overview(
    model: ReadingOptions,
    output: OutputOptions,
    by: Annotated[
        Literal["legibility", "norm"], option("How well they read, or how large they are.")
    ] = "legibility",
    of: Annotated[Literal["heads", "neurons"], option("Of all heads, or of all neurons.")] = (
        "heads"
    ),
    layers: Annotated[str | None, option("Only these layers: 3, 20-29 or 0,5,-1.")] = None,
) -> None:
    """One figure for every head or neuron: what the map of `lexray serve` is coloured by.

    lexray overview smollm2 --of neurons --layers 20-29 -o neurons.json
    """
    from lexray.find.overview import overview as read

    output.check()
    output.show(read(model.open(), by, of, numbers("--layers", layers)))


def layer(
    model: ReadingOptions,
    where: Annotated[
        str, typer.Argument(metavar="LAYER", help="L3, enc.L3 of an encoder, or an expert: L3E5.")
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 8,
) -> None:
    """What each neuron of a layer writes; the lists that read best come first.

    lexray layer smollm2 L26 -o layer.csv
    """
    from lexray.model.feedforward import FeedForward
    from lexray.model.layer import Layer

    output.check()
    part = model.open()[where]
    if not isinstance(part, Layer | FeedForward):
        raise LexrayError(f"{where} is no layer; layers look like L3, enc.L3 or L3E5 (an expert)")
    output.show(part.values.top(k, filter=tokens.filter()).by_legibility())


def token(
    model: ReadingOptions,
    word: Annotated[str, typer.Argument(metavar="TOKEN", help='A token, as " film"; or its id.')],
    output: OutputOptions,
) -> None:
    """A token in the embedding: how long it is, whether it was trained, and what lies near.

    lexray token smollm2 " Paris"
    """
    from lexray.find.token import read_token

    output.check()
    opened = model.open()
    known = opened.vocabulary.find(word) is not None or not word.isdecimal()
    output.show(read_token(opened, word if known else int(word)))
