"""`lexray heads`: every head of a model, a line each, and on from where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from io import FileIO
from math import isclose
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexray.cli import output as whole
from lexray.cli.groups import expand, option
from lexray.cli.options import CircuitOptions, PairOptions, TokenOptions
from lexray.cli.output import OUTPUT, refuse_unwritable
from lexray.cli.streams import say_bytes, tell
from lexray.errors import LexrayError
from lexray.files import append_json_line, appending, json_line, whole_lines
from lexray.result.format import show_percent, show_time

if TYPE_CHECKING:
    from lexray.model.plan import SweepPlan
    from lexray.result.pairs import Pairs

Line = dict[str, Any]


class SweepFormat(StrEnum):
    """Lines of JSON are written one by one and can be gone on with; the others come at the end."""

    JSONL = "jsonl"
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


def register(app: typer.Typer) -> None:
    app.command()(expand(heads))


def heads(
    model: CircuitOptions,
    pairs: PairOptions,
    tokens: TokenOptions,
    output: Annotated[
        Path | None,
        option(
            "Write to this file; lines of JSON after those that an interrupted run has left in it.",
            OUTPUT,
            "--output",
            "-o",
        ),
    ] = None,
    format: Annotated[
        SweepFormat | None,
        option("By default a line of JSON each, or what the ending of --output says.", OUTPUT),
    ] = None,
    plan: Annotated[
        bool, option("Only say what it would cost here: bytes, operations, memory, time.")
    ] = False,
) -> None:
    """Every head of a model, VO and QK, as its strongest token pairs: a line of JSON each; of an
    encoder–decoder also enc.L3H2 and L3X2.

    lexray heads demo -k 50 -o heads.jsonl

    lexray heads demo -k 5 --format table
    """
    form = format or _by_ending(output)
    refuse_unwritable(output)
    opened, filter = model.open(), tokens.filter()
    if plan:
        from lexray.model.plan import plan_heads

        shown = whole.Format.TABLE if form is SweepFormat.JSONL else whole.Format(form.value)
        whole.show(plan_heads(opened), shown, output)
        return
    circuits = {str(c.address): c for head in opened.every_head for c in (head.vo, head.qk)}

    def read(addresses: list[str]) -> Iterator[Pairs]:
        return pairs.each([circuits[address] for address in addresses], filter)

    if form is SweepFormat.JSONL:
        from lexray.model.plan import plan_noticed

        planned = plan_noticed(opened) if filter is None else None
        _stream(opened.name, list(circuits), read, output, planned)
    else:
        from lexray.result.head_list import HeadList

        result = HeadList(tuple(_track(read(list(circuits)), len(circuits), opened.name)))
        whole.show(result, whole.Format(form.value), output)


def _by_ending(output: Path | None) -> SweepFormat:
    """Lines of JSON, unless the ending says otherwise."""
    form = whole.format_of(output)
    return SweepFormat.JSONL if form is whole.Format.TABLE else SweepFormat(form.value)


def _track(pairs: Iterator[Pairs], total: int, name: str) -> Iterable[Pairs]:
    from lexray.progress import track

    return track(pairs, total, f"reading the heads of {name}")


def _stream(
    name: str,
    addresses: list[str],
    read: Callable[[list[str]], Iterator[Pairs]],
    output: Path | None,
    planned: SweepPlan | None,
) -> None:
    """A line for each head that the file does not have yet."""
    started = perf_counter()

    def line(address: str) -> Line:
        if address not in addresses:
            raise LexrayError(f"{output} has a line for {address}, which {name} has not")
        return next(read([address])).to_dict()

    done: set[str] = set()
    work = 0.0
    if output is None:
        for pairs in _track(read(addresses), len(addresses), name):
            work += pairs.work
            say_bytes(json_line(pairs.to_dict()))
    else:
        with appending(output) as stream:
            done = read_finished(stream, output, name, line)
            left = [address for address in addresses if address not in done]
            for pairs in _track(read(left), len(left), name):
                work += pairs.work
                append_json_line(stream, pairs.to_dict())
    seconds = perf_counter() - started
    kept = f", {len(done)} were there already" if done else ""
    new = len(addresses) - len(done)
    share = f" ({show_percent(work / new)} of all pairs multiplied)" if new else ""
    plan = ""
    if planned is not None and new:
        expected = planned.seconds(planned.typical) * new / len(addresses)
        cores = planned.speed.cores
        plan = f"; planned: {show_time(expected)} of {cores} core{'s' * (cores > 1)} for itself"
    tell(f"{new} lines in {seconds:.1f} s{share}{kept}{plan}")


def read_finished(stream: FileIO, path: Path, name: str, again: Callable[[str], Line]) -> set[str]:
    """The addresses whose lines are in a file; a torn last line is cut off.

    The first line is made again: the file must be of the same model, options and weights.
    """
    done: set[str] = set()
    start = json_line({"model": name}).rstrip(b"}\n")
    for number, data in enumerate(whole_lines(stream, start), 1):
        line = _parse(data, path, number)
        address = f"{line['address']}.{line['matrix']}"
        if not done:
            _refuse_others(line, again(address), path)
        done.add(address)
    return done


def _parse(data: bytes, path: Path, number: int) -> Line:
    try:
        line = json.loads(data)
        whole = isinstance(line["pairs"], list) and line["address"] and line["matrix"]
    except (ValueError, KeyError, TypeError, RecursionError):
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
