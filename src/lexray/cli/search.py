"""`lexray lookup`, `lexray related` and `lexray nearest`: searching a whole model."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import AddressArg, OutputOptions, ReadingOptions, TokenOptions

AMONG = "values, keys, gates, Q, K, V or O"


def register(app: typer.Typer) -> None:
    for command in (lookup, related, nearest):
        app.command()(expanded(command))


def lookup(
    model: ReadingOptions,
    words: Annotated[
        list[str], typer.Argument(metavar="WORD…", help="Words that are one token each.")
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    among: Annotated[str, typer.Option(help=f"Search {AMONG}.")] = "values",
    by: Annotated[
        Literal["dot", "cosine"], typer.Option(help="What a match is measured by.")
    ] = "dot",
    k: Annotated[int, typer.Option("-k", min=1, help="How many parameters to show.")] = 10,
    n_tokens: Annotated[int, typer.Option("--tokens", min=1, help="How many tokens of each.")] = 10,
) -> None:
    """Which parameters of the whole model know about some words.

    lexray lookup smollm2 " law" " court" " judge" --ascii
    """
    found = model.open().lookup(words, among, by=by)
    output.show(found.top(k, tokens=n_tokens, filter=tokens.filter()))


def related(
    model: ReadingOptions,
    output: OutputOptions,
    k: Annotated[int, typer.Option("-k", min=1, help="Compare so many top tokens.")] = 100,
    overlap: Annotated[
        float, typer.Option(min=0, max=1, help="The share of them that must be common.")
    ] = 0.15,
    read: Annotated[
        Literal["key", "gate"], typer.Option(help="Compare the value with the key, or the gate.")
    ] = "key",
    limit: Annotated[
        int, typer.Option(min=1, help="How many rows a table has; other formats have all.")
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
    n: Annotated[int, typer.Option("-n", min=1, help="How many to show.")] = 20,
    among: Annotated[
        list[str] | None,
        typer.Option(help=f"Compare with {AMONG} only; repeatable, all of them by default."),
    ] = None,
) -> None:
    """The parameters anywhere in the model that are most like one vector, as L23N907.value.

    lexray nearest smollm2 L26N777.value -n 10 --among values
    """
    output.show(model.open().nearest(address, n, among=tuple(among or ())))
