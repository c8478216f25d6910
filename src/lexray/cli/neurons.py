"""`lexray neuron`, `lexray subhead` and `lexray vector`: single vectors as tokens."""

from __future__ import annotations

import typer

from lexray.cli.groups import expand
from lexray.cli.options import AddressArg, K, ReadingOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    for command in (neuron, subhead, vector):
        app.command()(expand(command))


def neuron(
    model: ReadingOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 30,
) -> None:
    """A feed-forward neuron as tokens: its key, gate and value, or one: L23N907.value.

    lexray neuron smollm2 L26N777 -k 10
    """
    from lexray.address import Address

    at = Address.parse(address)
    if at.neuron is None:
        raise LexrayError(f"{at} is no neuron; neurons look like L23N907 or L23N907.value")
    found = model.open()[at]
    read = found.top if at.vector is None else found.every
    output.show(read(k, filter=tokens.filter()))


def subhead(
    model: ReadingOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 30,
) -> None:
    """A subhead as tokens: a column of a head's Q, K or V, or a row of its O, as L3H7.V12.

    lexray subhead smollm2 L25H1.O3 --ascii
    """
    from lexray.address import Address

    at = Address.parse(address)
    if at.subhead is None:
        raise LexrayError(f"{at} is no subhead; subheads look like L3H7.V12 (Q, K, V or O)")
    output.show(model.open()[at].every(k, filter=tokens.filter()))


def vector(
    model: ReadingOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 30,
) -> None:
    """Any vector as tokens: also biases (L3.b_O, L3.b_out) and norms (L3.attn_norm, L3.mlp_norm).

    lexray vector smollm2 L29.mlp_norm -k 10
    """
    from lexray.model.vectors import Vector

    found = model.open()[address]
    if not isinstance(found, Vector):
        raise LexrayError(
            f"{address} is no single vector; those look like L3N7.value (.key, .gate), L3H7.V12, "
            "L3.b_out or L3.attn_norm"
        )
    output.show(found.every(k, filter=tokens.filter()))
