"""`lexray lookup`, `lexray related` and `lexray nearest`: searching a whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import AddressArg, Among, K, Limit, ReadingOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import names, numbers


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
        list[str] | None,
        option(
            "Search these groups, values by default: keys, gates, values, Q, K, V or O. "
            "Repeatable, or with commas.",
            metavar="GROUP",
        ),
    ] = None,
    by: Annotated[
        Literal["standard", "dot", "cosine"],
        option("Rank by how unusual the words are in a parameter's own list, or as in the paper."),
    ] = "standard",
    suppressed: Annotated[bool, option("Those that push the words down most.")] = False,
    dictionary: Annotated[
        Path | None,
        option("Search a dictionary's features instead: a SAELens folder or .safetensors file."),
    ] = None,
    layers: Annotated[str | None, option("Only those of these layers: 3, 20-29 or 0,5,-1.")] = None,
    legible: Annotated[float | None, option("Only lists at least so legible.", max=1)] = None,
    limit: Limit = 10,
    k: K = 10,
) -> None:
    """Which parameters of the whole model know about some words.

    lexray lookup smollm2 " law" " court" " judge" --ascii
    """
    from lexray.dictionary.dictionary import Dictionary
    from lexray.find.lookup import lookup as find

    opened, groups = model.open(), names(among) or ["values"]
    features = None if dictionary is None else Dictionary.open(dictionary, opened)
    searched = None if features is None else features.choose_groups(groups)
    result = find(opened, words, groups, by=by, suppressed=suppressed, groups=searched)
    only = numbers("--layers", layers)
    hits = result.top(limit, tokens=k, filter=tokens.filter(), layers=only, legible=legible)
    output.show(hits)


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
