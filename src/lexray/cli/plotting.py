"""`--plot FILE`: a picture of the result, for the commands that have one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from lexray.cli.options import OUTPUT
from lexray.errors import LexrayError

ENDINGS = (".html", ".htm", ".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


@runtime_checkable
class Drawable(Protocol):
    def plot(self) -> Any: ...


@dataclass(frozen=True)
class PlotOptions:
    """A picture of the result."""

    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw it to this .html or image file.", rich_help_panel=OUTPUT
        ),
    ] = None

    def check(self) -> None:
        """Before the work, what could go wrong after it."""
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in ENDINGS:
            raise LexrayError(f"--plot {self.plot}: plots end in {', '.join(ENDINGS)}")
        if not self.plot.parent.is_dir():
            raise LexrayError(f"cannot write {self.plot}: there is no folder {self.plot.parent}")

    def draw(self, result: Drawable) -> None:
        if self.plot is None:
            return
        from lexray.result.plots import save_plot

        name = self.plot.name
        try:
            with tempfile.TemporaryDirectory(dir=self.plot.parent, prefix=f".{name}.") as folder:
                save_plot(result.plot(), Path(folder) / name).replace(self.plot)
        except OSError as error:
            raise LexrayError(f"cannot write {self.plot}: {error.strerror}") from error
