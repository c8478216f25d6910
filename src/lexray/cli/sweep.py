"""`lexray heads`: every head of a model, a line each, and on from where it was interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, BinaryIO, Literal

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import OUTPUT, CircuitOptions, PairOptions, TokenOptions
from lexray.errors import LexrayError

Line = dict[str, Any]
START = b'{"model":'


def register(app: typer.Typer) -> None:
    app.command()(expanded(heads))


def heads(
    model: CircuitOptions,
    pairs: PairOptions,
    tokens: TokenOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to this file, after the lines that an interrupted run has left in it.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    format: Annotated[
        Literal["json"],
        typer.Option(help="Lines of JSON, as `lexray head` gives.", rich_help_panel=OUTPUT),
    ] = "json",
) -> None:
    """Every head of a model, VO and QK, as its strongest token pairs: a line of JSON each.

    lexray heads demo -k 50 -o heads.jsonl
    """
    from lexray.progress import track

    started = perf_counter()
    opened, filter = model.open(), tokens.filter()
    circuits = {
        str(c.address): c for layer in opened.layers for h in layer.heads for c in (h.vo, h.qk)
    }

    def line(address: str) -> Line:
        if address not in circuits:
            raise LexrayError(f"{output} has a line for {address}, which {opened.name} has not")
        return pairs.top(circuits[address], filter).to_dict()

    with _sink(output) as sink:
        done = set() if output is None else finished(sink, output, line)
        left = [address for address in circuits if address not in done]
        for address in track(left, len(left), f"reading the heads of {opened.name}"):
            _write(sink, line(address))
    seconds = perf_counter() - started
    kept = f", {len(done)} were there already" if done else ""
    print(f"lexray: {len(left)} lines in {seconds:.1f} s{kept}", file=sys.stderr)


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        return
    try:
        stream = output.open("a+b")
    except OSError as error:
        raise LexrayError(f"cannot write {output}: {error.strerror}") from error
    with stream:
        yield stream


def _write(sink: BinaryIO, line: Line) -> None:
    """One whole line, on disk before the next one is made."""
    sink.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    sink.flush()
    if sink is not sys.stdout.buffer:
        os.fsync(sink.fileno())


def finished(stream: BinaryIO, path: Path, again: Callable[[str], Line]) -> set[str]:
    """The addresses whose lines are in a file; a torn last line is cut off.

    The first line is made again: the file must be of the same model, options and weights.
    """
    stream.seek(0)
    done: set[str] = set()
    whole = 0
    for number, data in enumerate(stream, 1):
        if not data.endswith(b"\n") and data.startswith(START):
            break
        line = _parsed(data, path, number)
        address = f"{line['address']}.{line['matrix']}"
        if not done:
            _refuse_others(line, again(address), path)
        done.add(address)
        whole += len(data)
    stream.truncate(whole)
    return done


def _parsed(data: bytes, path: Path, number: int) -> Line:
    try:
        line = json.loads(data)
        whole = isinstance(line["pairs"], list) and line["address"] and line["matrix"]
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise LexrayError(
            f"{path}, line {number}, was not written by `lexray heads`; choose another file"
        )
    return dict(line)


def _refuse_others(there: Line, here: Line, path: Path) -> None:
    """A file that was made in another way is not continued."""
    differences = [
        f"{name} {old!r} there, {new!r} here"
        for (name, old), (_, new) in zip(_settings(there), _settings(here), strict=True)
        if old != new
    ]
    if differences:
        raise LexrayError(
            f"{path} was begun with other options ({'; '.join(differences)}); "
            "go on with the same ones, or choose another file"
        )
    if not all(
        isclose(a["score"], b["score"], rel_tol=1e-2, abs_tol=1e-6)
        for a, b in zip(there["pairs"], here["pairs"], strict=True)
    ):
        raise LexrayError(f"{path} was begun with other weights; choose another file")


def _settings(line: Line) -> list[tuple[str, Any]]:
    names = ("model", "revision", "reading", "filter", "sign")
    return [(name, line.get(name)) for name in names] + [("pairs", len(line["pairs"]))]
