"""`--plot FILE`: a picture of the result, for the commands that have one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from lexray.cli.groups import option
from lexray.cli.output import OUTPUT, refuse_unwritable
from lexray.errors import LexrayError

ENDINGS = (".html", ".htm", ".svg", ".png", ".pdf")


@runtime_checkable
class Drawable(Protocol):
    def plot(self) -> Any: ...


@dataclass(frozen=True)
class PlotOptions:
    """A picture of the result."""

    plot: Annotated[
        Path | None, option("Draw it to this .html or image file.", OUTPUT, metavar="FILE")
    ] = None

    def check(self) -> None:
        """Before the work, what could go wrong after it."""
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in ENDINGS:
            raise LexrayError(f"--plot {self.plot}: plots end in {', '.join(ENDINGS)}")
        refuse_unwritable(self.plot)

    def draw(self, result: Drawable) -> None:
        if self.plot is None:
            return
        result.plot().save(self.plot)
