"""`lexray lookup`, `lexray related` and `lexray nearest`: searching a whole model."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import AddressArg, Among, K, Limit, ReadingOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import names


def register(app: typer.Typer) -> None:
    for command in (lookup, related, nearest):
        app.command()(expand(command))


def lookup(
    model: ReadingOptions,
    words: Annotated[
        list[str], typer.Argument(metavar="WORD…", help="Words that are one token each.")
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    among: Annotated[
        str, option("Search values, keys, gates, Q, K, V or O.", metavar="GROUP")
    ] = "values",
    by: Annotated[Literal["dot", "cosine"], option("What a match is measured by.")] = "dot",
    limit: Limit = 10,
    k: K = 10,
) -> None:
    """Which parameters of the whole model know about some words.

    lexray lookup smollm2 " law" " court" " judge" --ascii
    """
    found = model.open().lookup(words, among, by=by)
    output.show(found.top(limit, tokens=k, filter=tokens.filter()))


def related(
    model: ReadingOptions,
    output: OutputOptions,
    k: Annotated[int, option("Compare so many top tokens.", None, "-k", min=1)] = 100,
    overlap: Annotated[
        float, option("The share of them that must be common.", min=0, max=1)
    ] = 0.15,
    read: Annotated[
        Literal["key", "gate"], option("Compare the value with the key, or the gate.")
    ] = "key",
    limit: Annotated[
        int,
        option("How many rows a table has; other formats have all.", None, "--limit", "-n", min=1),
    ] = 50,
) -> None:
    """Feed-forward neurons that read what they write: key and value share top tokens.

    lexray related demo --overlap 0.3
    """
    output.show(model.open().related(k, overlap, read=read), limit)


def nearest(
    model: ReadingOptions,
    address: AddressArg,
    output: OutputOptions,
    limit: Limit = 20,
    among: Among = None,
) -> None:
    """The parameters anywhere in the model that are most like one vector, as L23N907.value.

    lexray nearest smollm2 L26N777.value -n 10 --among values
    """
    output.show(model.open().nearest(address, limit, among=tuple(names(among))))
