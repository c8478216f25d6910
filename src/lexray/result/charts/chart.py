"""What all charts share: title and small print, every form in which a picture is wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lexray.errors import LexrayError
from lexray.result.charts.pen import Pen
from lexray.result.images import IMAGES, write_image, write_text
from lexray.result.letters import wrap
from lexray.result.page import fragment, page
from lexray.result.theme import DARK, LIGHT, Theme

if TYPE_CHECKING:
    import plotly.graph_objects as go

WIDE, NARROW = 900.0, 358.0
"""The widths at which a page draws: for screens, and for phones."""
MARGIN = 20.0
ENDINGS = (".html", ".htm", *IMAGES)


@dataclass(frozen=True)
class Chart(ABC):
    """A picture as data."""

    title: str
    note: str
    """What stands above it, and the small print: which model, how it was read."""

    def __init_subclass__(cls) -> None:
        """A dataclass keeps a line that is there."""
        cls.__repr__ = Chart.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        title = " ".join(self.title.split())
        return f"<{type(self).__name__}: {title}: .save(path), .to_svg(), .to_plotly()>"

    @abstractmethod
    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        """Draws from (0, 0) down, as wide as is wished or as it needs; says how wide and high."""

    @abstractmethod
    def to_plotly(self) -> go.Figure:
        """The same as a figure of plotly, which is not needed for anything else."""

    def to_svg(
        self, path: str | Path | None = None, *, dark: bool = False, width: float = WIDE
    ) -> str:
        """The picture as SVG, in the light or the dark theme; also written to `path`."""
        return write_text(self._svg(DARK if dark else LIGHT, width, MARGIN), path)

    def to_png(
        self, path: str | Path, *, dark: bool = False, width: float = WIDE, scale: float = 2.0
    ) -> Path:
        """The picture as PNG; needs `lexray[png]`, no browser."""
        return write_image(self.to_svg(dark=dark, width=width), Path(path), scale)

    def to_pdf(self, path: str | Path, *, dark: bool = False, width: float = WIDE) -> Path:
        """The picture as PDF, text as text; needs `lexray[pdf]`."""
        return write_image(self.to_svg(dark=dark, width=width), Path(path))

    def to_html(self, path: str | Path | None = None) -> str:
        """A page without scripts or links, light or dark as the reader likes, fit for a phone."""
        body = f"<main>\n{self.html()}\n</main>"
        return write_text(page(self.title or "lexray", body), path)

    def save(self, path: str | Path) -> Path:
        """The form that the file's ending names: .html, .svg, .png or .pdf."""
        path = Path(path)
        ending = path.suffix.lower()
        if ending in (".html", ".htm"):
            self.to_html(path)
        elif ending in IMAGES:
            write_image(self.to_svg(), path)
        else:
            raise LexrayError(f"{path.name}: plots are saved as {', '.join(ENDINGS)}")
        return path

    def html(self) -> str:
        """A part of a page: the picture for a screen and the one for a phone, of which the style
        sheet shows the one that fits."""
        wide, narrow = (self._svg(None, width, 0.0) for width in (WIDE, NARROW))
        if wide == narrow:
            return f'<figure class="chart">{wide}</figure>'
        return (
            f'<figure class="chart"><div class="wide">{wide}</div>'
            f'<div class="narrow">{narrow}</div></figure>'
        )

    def _repr_html_(self) -> str:
        return fragment(self.html())

    def _svg(self, theme: Theme | None, width: float, margin: float) -> str:
        pen = Pen(theme)
        inner = width - 2 * margin
        trial = self.draw(Pen(theme), inner)[0]
        inner = max(inner, trial)
        with pen.moved(margin, margin):
            top = self._head(pen, min(inner, width - 2 * margin))
            with pen.moved(0.0, top):
                _, height = self.draw(pen, inner)
        return pen.document(inner + 2 * margin, top + height + 2 * margin, self.title, self.note)

    def _head(self, pen: Pen, width: float) -> float:
        """Title and small print; says where they end."""
        y = 0.0
        for line in wrap(self.title, 17, width / 1.07):
            y += 16.0 if y == 0 else 21.0
            pen.text(0.0, y, line, 17, bold=True)
        for line in wrap(self.note, 12, width):
            y += 18.0
            pen.text(0.0, y, line, 12, "faint")
        return y + 14.0 if y else 0.0
