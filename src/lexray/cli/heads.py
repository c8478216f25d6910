"""`lexray head` and `lexray svd`: what a head moves (VO) and where it looks (QK)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import AddressArg, CircuitOptions, K, PairOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.cli.searching import searching
from lexray.cli.signals import INTERRUPTED
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.circuits import Circuit

MatrixOption = Annotated[
    bool | None,
    option("What the head moves (VO, by default), or where it looks (QK).", None, "--vo/--qk"),
]
ROWS = ("--of", "--attends-to")
VO_LINES = ("--of", "--writing")


def register(app: typer.Typer) -> None:
    app.command()(expand(head))
    app.command()(expand(svd))


def head(
    model: CircuitOptions,
    address: AddressArg,
    pairs: PairOptions,
    tokens: TokenOptions,
    output: OutputOptions,
    vo: MatrixOption = None,
    of: Annotated[
        str | None, option("One row of VO: what attending to TOKEN writes.", metavar="TOKEN")
    ] = None,
    writing: Annotated[
        str | None, option("One column of VO: attending to what writes TOKEN.", metavar="TOKEN")
    ] = None,
    attends_to: Annotated[
        str | None, option("One row of QK: what the query TOKEN attends to.", metavar="QUERY")
    ] = None,
    attended_by: Annotated[
        str | None, option("One column of QK: what the key TOKEN is attended by.", metavar="KEY")
    ] = None,
    budget: Annotated[
        float | None,
        option("Search so many seconds; what is not proven by then is said.", min=0),
    ] = None,
) -> None:
    """A head as its strongest token pairs, exactly: L19H4, L19H4.VO or L19H4.QK.

    A search of more than two seconds shows what it has found, and ctrl-C takes that.

    lexray head smollm2 L25H1 --exclude-same --ascii
    """
    lines = {
        "--of": of,
        "--writing": writing,
        "--attends-to": attends_to,
        "--attended-by": attended_by,
    }
    given = {name: token for name, token in lines.items() if token is not None}
    if len(given) > 1:
        raise LexrayError(f"{' and '.join(given)} are one line of the matrix each; choose one")
    line, token = next(iter(given.items()), ("", ""))
    implied = None if not line else line in VO_LINES
    if implied is not None and vo not in (None, implied):
        raise LexrayError(f"{line} reads {_name(implied)}, not {_name(not implied)}")
    circuit = circuit_at(model, address, implied if vo is None else vo)
    if not line:
        with searching() as search:
            result = pairs.top(circuit, tokens.filter(), budget)
        output.show(result)
        if search.interrupted:
            raise typer.Exit(INTERRUPTED)
        return
    pairs.refuse(line)
    if budget is not None:
        raise LexrayError(f"--budget is for pairs, not with {line}, which takes no time")
    read = circuit.row if line in ROWS else circuit.col
    output.show(read(token, pairs.k, filter=tokens.filter()))


def svd(
    model: CircuitOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    vo: MatrixOption = None,
    limit: Annotated[int, option("How many directions.", None, "--limit", "-n", min=1)] = 10,
    k: K = 10,
) -> None:
    """A head's largest singular directions, read at both ends: L19H4.VO or L19H4.QK.

    lexray svd smollm2 L25H1.VO -n 5 --ascii
    """
    output.show(circuit_at(model, address, vo).svd(limit, k, filter=tokens.filter()))


def circuit_at(model: CircuitOptions, text: str, vo: bool | None) -> Circuit:
    """A head's matrix: the one in the address, else the one that was asked for, else VO."""
    from lexray.address import Address

    address = Address.parse(text)
    if address.head is None or address.subhead is not None:
        raise LexrayError(f"{address} is no head; heads look like L19H4, L19H4.VO or L19H4.QK")
    if address.matrix is not None and vo not in (None, address.matrix == "VO"):
        raise LexrayError(f"{address} is {address.matrix}, but {_name(bool(vo))} was asked for")
    matrix = address.matrix or _name(vo is not False)
    head = model.open().head(replace(address, matrix=None))
    return head.vo if matrix == "VO" else head.qk


def _name(vo: bool) -> str:
    return "VO" if vo else "QK"
