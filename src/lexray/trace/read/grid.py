"""A table of coloured cells, lines by positions: as text, in a terminal, as HTML.

A terminal is narrow and a prompt is long, so a grid shows the last positions that fit and says what
it leaves out.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from lexray.clean import clean
from lexray.result.table import Table

TOKEN_WIDTH = 14
"""Longer tokens are cut in grids."""
FRAME = 3
"""What a column takes besides its text: a line and two spaces."""
COLOUR = (43, 123, 186)
AGAINST = (212, 96, 58)
"""Of what is below zero."""
VISIBLE = 0.02
"""Weaker cells are left uncoloured in a terminal."""


@dataclass(frozen=True)
class GridCell:
    """A coloured text."""

    text: str
    strength: float
    """From 0 to 1: how deep the colour is."""
    more: str = ""
    """What is shown when the pointer rests on it."""
    token: str = ""
    """The best token alone."""
    against: bool = False
    """Below zero, in a colour of its own."""


@dataclass(frozen=True)
class Grid:
    title: str
    corner: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    """Of the lines."""
    cells: tuple[tuple[GridCell, ...], ...]
    note: str = ""

    def fitting(self, width: int) -> Grid:
        """The last columns that fit into a width, with a word on what is left out."""
        room = width - FRAME - 1 - max(map(cell_len, (self.corner, *self.names)))
        kept = 0
        for i in reversed(range(len(self.columns))):
            texts = (self.columns[i], *(line[i].text for line in self.cells))
            room -= FRAME + max(map(cell_len, texts))
            if room < 0 and kept:
                break
            kept += 1
        dropped = len(self.columns) - kept
        if not dropped:
            return self
        said = f"{dropped} earlier position{'s' if dropped > 1 else ''} left out for lack of width"
        return replace(
            self,
            columns=self.columns[dropped:],
            cells=tuple(line[dropped:] for line in self.cells),
            note=" · ".join(filter(None, [self.note, said])),
        )

    def table(self) -> Table:
        rows = tuple(
            (name, *(cell.text for cell in line))
            for name, line in zip(self.names, self.cells, strict=True)
        )
        return Table((self.corner, *self.columns), rows, self.title, self.note)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def text(words: str, style: str = "") -> Text:
            return Text(clean(words, options.encoding), style)

        shown = self.fitting(options.max_width)
        out = RichTable()
        for column in (shown.corner, *shown.columns):
            out.add_column(text(column), no_wrap=True)
        for name, line in zip(shown.names, shown.cells, strict=True):
            out.add_row(text(name), *(text(cell.text, _style(cell)) for cell in line))
        yield text(shown.title, "bold")
        yield out
        if shown.note:
            yield text(shown.note, "dim")

    def to_html(self) -> str:
        """A table that shows its last positions first where there is no room for all."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in (self.corner, *self.columns))
        body = "\n".join(
            f"<tr><th>{html.escape(name)}</th>{''.join(map(_html, line))}</tr>"
            for name, line in zip(self.names, self.cells, strict=True)
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return (
            f'<p class="lexray-title" style="font-weight:600;margin:0.8em 0 0.2em">'
            f'{html.escape(self.title)}</p><div class="scroll latest" style="overflow-x:auto;'
            f'direction:rtl"><table class="lexray" style="direction:ltr;margin:0 auto 0 0">'
            f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>{note}"
        )


def _style(cell: GridCell) -> str:
    """Black on a tint of the colour."""
    if cell.strength < VISIBLE:
        return ""
    share = min(1.0, cell.strength) ** 0.5
    colour = AGAINST if cell.against else COLOUR
    tint = ",".join(str(round(255 + (c - 255) * share)) for c in colour)
    return f"{'white' if share > 0.75 else 'black'} on rgb({tint})"


def _html(cell: GridCell) -> str:
    red, green, blue = AGAINST if cell.against else COLOUR
    share = 0.75 * min(1.0, max(0.0, cell.strength)) ** 0.5
    more = f' title="{html.escape(cell.more)}"' if cell.more else ""
    return (
        f'<td{more} style="white-space:pre;background:rgba({red},{green},{blue},{share:.3f})">'
        f"{html.escape(cell.text)}</td>"
    )


def clip(text: str, width: int = TOKEN_WIDTH) -> str:
    """A token that is no wider than a column should be."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
