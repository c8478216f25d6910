"""`lexray head` and `lexray svd`: what a head moves (VO) and where it looks (QK)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import (
    AddressArg,
    CircuitOptions,
    K,
    OutputOptions,
    PairOptions,
    TokenOptions,
)
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.circuits import Circuit

MatrixOption = Annotated[
    bool | None,
    typer.Option("--vo/--qk", help="What the head moves (VO, by default), or where it looks (QK)."),
]


def register(app: typer.Typer) -> None:
    app.command()(expanded(head))
    app.command()(expanded(svd))


def head(
    model: CircuitOptions,
    address: AddressArg,
    pairs: PairOptions,
    tokens: TokenOptions,
    output: OutputOptions,
    vo: MatrixOption = None,
    of: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="One row of VO: what attending to TOKEN writes."),
    ] = None,
    writing: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="One column of VO: attending to what writes TOKEN."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TOKEN", help="One row of QK: where TOKEN looks."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="One column of QK: what looks at TOKEN."),
    ] = None,
) -> None:
    """A head as its strongest token pairs, exactly: L19H4, L19H4.VO or L19H4.QK.

    lexray head smollm2 L25H1 --exclude-same --ascii
    """
    lines = {"--of": of, "--writing": writing, "--from": from_, "--to": to}
    given = {option: token for option, token in lines.items() if token is not None}
    if len(given) > 1:
        raise LexrayError(f"{' and '.join(given)} are one line of the matrix each; choose one")
    option, token = next(iter(given.items()), ("", ""))
    implied = None if not option else option in ("--of", "--writing")
    if implied is not None and vo not in (None, implied):
        raise LexrayError(f"{option} reads {_name(implied)}, not {_name(not implied)}")
    circuit = circuit_at(model, address, implied if vo is None else vo)
    if not option:
        output.show(pairs.top(circuit, tokens.filter()))
        return
    pairs.refuse(option)
    line = circuit.row if option in ("--of", "--from") else circuit.col
    output.show(line(token, pairs.k, filter=tokens.filter()))


def svd(
    model: CircuitOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    vo: MatrixOption = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many directions.")] = 10,
    k: K = 10,
) -> None:
    """A head's largest singular directions, read at both ends: L19H4.VO or L19H4.QK.

    lexray svd smollm2 L25H1.VO -n 5 --ascii
    """
    output.show(circuit_at(model, address, vo).svd(n, k, filter=tokens.filter()))


def circuit_at(model: CircuitOptions, text: str, vo: bool | None) -> Circuit:
    """A head's matrix: the one in the address, else the one that was asked for, else VO."""
    from lexray.address import Address

    address = Address.parse(text)
    if address.head is None or address.subhead is not None:
        raise LexrayError(f"{address} is no head; heads look like L19H4, L19H4.VO or L19H4.QK")
    if address.matrix is not None and vo not in (None, address.matrix == "VO"):
        raise LexrayError(f"{address} is {address.matrix}, but {_name(bool(vo))} was asked for")
    matrix = address.matrix or _name(vo is not False)
    found = model.open().layers[address.layer].heads[address.head]
    return found.vo if matrix == "VO" else found.qk


def _name(vo: bool) -> str:
    return "VO" if vo else "QK"
