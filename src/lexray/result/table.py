"""One description, many renderings: a result is a few tables, and these become text or HTML.

Every result derives from `Result` and says what it holds twice: `tables()` for people and
`to_dict()` for programs. Terminal, notebook, CSV, pandas and JSON follow from these.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from lexray.clean import clean, clean_json
from lexray.errors import LexrayError
from lexray.files import writing
from lexray.result.format import show_number
from lexray.result.page import page
from lexray.result.state import is_same, pack
from lexray.result.theme import LIGHT

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Cell = str | int | float | bool | None
STATE = "lexray"
"""Under this name a result's JSON holds all that it is made from, for `lx.load`."""
TEXT_WIDTH = 100
TITLE = 70
"""So many signs of its title a result's one line has."""
CALLS = ("plot", "to_pandas", "to_html")
ROWS_KEPT = 200
"""So many rows of a table a notebook shows and keeps."""
FORMULA = re.compile(r"'*[\t\r\n]*[=+\-@＝＋－＠]")
"""How formulas begin in a spreadsheet, in both widths."""


@dataclass(frozen=True)
class Table:
    """Rows under named columns; numbers are aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""
    bars: frozenset[str] = field(default_factory=frozenset)
    """Columns of numbers that are also drawn as bars in HTML."""


class Result(ABC):
    """What functions return: small, frozen, and able to show itself."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """What a person sees."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """What a program sees."""

    def __rich__(self) -> RenderableType:
        return Group(*(rich_table(table) for table in self.tables()))

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        """One line, with what to call next; `print` shows the tables, and so do notebooks."""
        tables = self.tables()
        title = clean(next((table.title for table in tables if table.title), ""))
        title = title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
        rows = sum(len(table.rows) for table in tables)
        calls = [f".{name}()" for name in CALLS if hasattr(type(self), name)]
        what = f"{type(self).__name__}: {title}, " if title else f"{type(self).__name__}: "
        return f"<{what}{rows} rows: print(…), {', '.join(calls)}>"

    def to_text(self, encoding: str | None = None) -> str:
        """The tables as plain text; `encoding`: of a terminal that may lack some signs."""
        console = Console(file=_Sheet(encoding), width=TEXT_WIDTH, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n")

    def _repr_html_(self) -> str:
        """What a notebook shows, and keeps: of long tables the first rows."""
        return "\n".join(html_table(shorten(table)) for table in self.tables())

    def html_body(self) -> str:
        """What a page of this result holds: every row, and tables beside each other where they fit.

        In notebooks some bring the pages' style."""
        if type(self)._repr_html_ is not Result._repr_html_:
            return self._repr_html_()
        tables = [html_table(table) for table in self.tables()]
        if len(tables) == 1:
            return tables[0]
        return "\n".join(
            ['<div class="beside">', *(f"<div>{one}</div>" for one in tables), "</div>"]
        )

    def to_html(self) -> str:
        """A whole page, without scripts or links."""
        title = next((table.title for table in self.tables() if table.title), "lexray")
        return page(clean(title), f"<main>\n{self.html_body()}\n</main>")

    def to_json(self, *, state: bool = True) -> str:
        """For programs, and with the result's whole state for `lx.load`, which opens it again."""
        said = json.dumps(self.to_dict(), ensure_ascii=False, indent=2)
        if not state:
            return clean_json(said)
        packed = json.dumps(pack(self), ensure_ascii=False, separators=(",", ":"))
        between = "" if said == "{}" else ","
        return clean_json(f'{said[:-1].rstrip()}{between}\n  "{STATE}": {packed}\n}}')

    def __init_subclass__(cls) -> None:
        """A dataclass keeps what is there: an equality that knows tensors and NaN, a line that does
        not list every number."""
        cls.__eq__ = Result.__eq__  # type: ignore[method-assign]
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        return is_same(self, other)

    def __hash__(self) -> int:
        return hash(type(self))

    def to_csv(self, *, safe: bool = True) -> str:
        """All tables below one another, each with its header; columns alike share one.

        Spreadsheets take text that begins with =, +, - or @ for a formula and run it, and there
        are such tokens: `safe` puts an apostrophe before it, which they hide. Numbers are never
        touched. For programs that read every token as it is: `safe=False`.
        """
        out = io.StringIO()
        writer = csv.writer(_Lines(out))
        header: tuple[str, ...] | None = None
        for table in self.csv_tables():
            if table.columns != header:
                writer.writerow(map(_no_formula, table.columns) if safe else table.columns)
                header = table.columns
            writer.writerows(map(_no_formula, row) if safe else row for row in table.rows)
        return out.getvalue()

    def csv_tables(self) -> list[Table]:
        """The tables for CSV and pandas, where they should differ from those for people."""
        return self.tables()

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame (`pip install pandas`)."""
        pd = need("pandas")
        frames = [pd.DataFrame(t.rows, columns=list(t.columns)) for t in self.csv_tables()]
        whole: pandas.DataFrame
        whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        return whole

    def by_column(self) -> dict[str, list[Cell]]:
        """The rows as columns by name; where tables have others, None stands in them."""
        tables = self.csv_tables()
        names = dict.fromkeys(name for table in tables for name in table.columns)
        columns: dict[str, list[Cell]] = {name: [] for name in names}
        for table in tables:
            at = {name: i for i, name in enumerate(table.columns)}
            for row in table.rows:
                for name, cells in columns.items():
                    cells.append(row[at[name]] if name in at else None)
        return columns

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table (`pip install pyarrow`)."""
        arrow = need("pyarrow")
        return arrow.table({name: _alike(cells) for name, cells in self.by_column().items()})

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars data frame (`pip install polars`)."""
        frame = need("polars")
        return frame.DataFrame({name: _alike(cells) for name, cells in self.by_column().items()})

    def to_parquet(self, path: str | Path) -> None:
        """The rows as a Parquet file, written whole or not at all (`pip install pyarrow`)."""
        table = self.to_arrow()
        with writing(Path(path)) as part:
            need("pyarrow.parquet").write_table(table, part, compression="zstd")


def need(package: str) -> Any:
    """A package that need not be there."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise LexrayError(f"this needs {name}, which is not there: pip install {name}") from error


def _alike(cells: list[Cell]) -> list[Cell]:
    """One kind of values in a column: numbers of both kinds are floats, other mixtures text."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if len(kinds) < 2:
        return cells
    if kinds <= {int, float}:
        return [None if cell is None else float(cell) for cell in cells]
    return [None if cell is None else str(cell) for cell in cells]


class _Sheet(io.StringIO):
    """What is written as for a terminal of some encoding."""

    def __init__(self, encoding: str | None) -> None:
        super().__init__()
        self._encoding = encoding or "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def _no_formula(cell: Cell) -> Cell:
    """A cell that no spreadsheet runs: text that looks like a formula after an apostrophe.

    So does text that looks as if that had been done already; who takes one apostrophe away where
    `FORMULA` matches has what was there. Numbers, even as text, are no formulas.
    """
    if not isinstance(cell, str) or not FORMULA.match(cell) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Lines:
    """Ends CSV rows with a plain newline. Told to do so, Python's writer (before 3.13) would leave
    fields with a carriage return unquoted, and there are such tokens."""

    def __init__(self, out: io.StringIO) -> None:
        self._out = out

    def write(self, row: str) -> int:
        return self._out.write(row.removesuffix("\r\n") + "\n")


def _show_cell(cell: Cell) -> str:
    match cell:
        case None:
            return "–"
        case bool():
            return "yes" if cell else "no"
        case float():
            return show_number(cell)
        case int():
            return str(cell)
        case _:
            return clean(cell)


def _numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells
    )


@dataclass(frozen=True)
class DrawnTable:
    """A table as rich draws it, in the signs that the terminal has."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def text(words: str, style: str = "") -> Text:
            # Text, so that square brackets in tokens are not taken for markup
            return Text(clean(words, options.encoding), style)

        table, out = self.table, RichTable()
        for i, column in enumerate(table.columns):
            right = _numeric(table, i)
            out.add_column(text(column), justify="right" if right else "left", overflow="fold")
        for row in table.rows:
            out.add_row(*(text(_show_cell(cell)) for cell in row))
        if table.title:
            yield text(table.title, "bold")
        yield out
        if table.note:
            yield text(table.note, "dim")


def rich_table(table: Table) -> RenderableType:
    return DrawnTable(table)


def shorten(table: Table, most: int = ROWS_KEPT) -> Table:
    """The first rows of a long table, and how to see the others."""
    if len(table.rows) <= most:
        return table
    said = (
        f"The first {most:,} of {len(table.rows):,} rows; all of them: .to_html(), .to_csv(), "
        ".to_pandas(), print()."
    )
    return replace(table, rows=table.rows[:most], note=f"{said} {table.note}".strip())


def html_table(table: Table) -> str:
    aligned = ["right" if _numeric(table, i) else "left" for i in range(len(table.columns))]
    head = "".join(
        f'<th style="text-align:{side}">{html.escape(clean(name))}</th>'
        for name, side in zip(table.columns, aligned, strict=True)
    )
    body = "\n".join(f"<tr>{_html_row(table, row, aligned)}</tr>" for row in table.rows)
    title = f"<caption>{html.escape(clean(table.title))}</caption>" if table.title else ""
    note = f"<p>{html.escape(clean(table.note))}</p>" if table.note else ""
    return (
        f'<div class="scroll"><table class="lexray">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def _html_row(table: Table, row: tuple[Cell, ...], aligned: list[str]) -> str:
    cells = []
    for name, cell, side in zip(table.columns, row, aligned, strict=True):
        bar = _bar(table, name, cell) if name in table.bars else ""
        text = html.escape(_show_cell(cell))
        cells.append(f'<td style="text-align:{side};white-space:pre-wrap{bar}">{text}</td>')
    return "".join(cells)


def _bar(table: Table, name: str, cell: Cell) -> str:
    """A bar behind a number, as a CSS gradient: nothing to load, nothing to run."""
    column = table.columns.index(name)
    largest = max((abs(float(row[column] or 0)) for row in table.rows), default=0.0)
    share = 100 * abs(float(cell or 0)) / largest if largest else 0
    colour = LIGHT.positive if float(cell or 0) >= 0 else LIGHT.negative  # half, so on dark too
    return f";background:linear-gradient(90deg,{colour}80 {share:.1f}%,transparent {share:.1f}%)"
