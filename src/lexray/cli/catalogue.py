"""`lexray describe` and `lexray catalogue`: what a head or neuron does; all heads at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import AddressArg, ReadingOptions
from lexray.cli.output import OutputOptions
from lexray.errors import LexrayError

Static = Annotated[bool, option("Run nothing: roles from the weights alone.", None, "--static")]


def register(app: typer.Typer) -> None:
    app.command()(expand(describe))
    app.command()(expand(catalogue))


def describe(
    model: ReadingOptions, address: AddressArg, output: OutputOptions, static: Static = False
) -> None:
    """One card for a head or neuron: roles, relations, tokens, pairs, partners.

    lexray describe smollm2 L25H1
    """
    from lexray.address import Address

    output.check()
    at = Address.parse(address)
    if at.subhead is not None or (at.head is None and at.neuron is None):
        raise LexrayError(f"{at} is neither a head nor a neuron; try L3H7 or L12N345")
    part = replace(at, matrix=None, vector=None)
    output.show(model.open()[part].describe(measure=not static))


def catalogue(
    model: ReadingOptions,
    output: OutputOptions,
    static: Static = False,
    relations: Annotated[
        bool, option("Also the relations between words that each head holds.", None, "--relations")
    ] = False,
    seed: Annotated[int, option("Which random tokens.")] = 0,
) -> None:
    """All heads with their roles; as .html sortable and searchable, as .csv or .parquet.

    lexray catalogue smollm2 --relations -o heads.html
    """
    output.check()
    opened = model.open()
    held = opened.relations() if relations else None
    result = opened.catalogue(measure=not static, relations=held, seed=seed)
    output.show(result)
