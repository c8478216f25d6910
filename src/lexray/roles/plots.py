"""Heads as heat maps: a panel for each relation, layers down, heads across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Heat, Panel

Grid = NDArray[np.float64]
ACROSS = 4


def heat_maps(panels: Sequence[tuple[str, Grid, Grid]], title: str, note: str) -> Panels:
    """For each panel the share that heads write, or less than zero, that they suppress."""
    drawn = tuple(
        Panel(
            name,
            (Heat(_plain(np.where(suppressed > written, -suppressed, written))),),
            Axis("head", whole=True),
            Axis("layer", whole=True, down=True),
        )
        for name, written, suppressed in panels
    )
    said = f"{note} · each panel from its least to its largest · below zero: suppressed"
    return Panels(title, said, drawn, across=ACROSS)


def compositions(matrices: Mapping[str, Grid], title: str, note: str) -> Panels:
    """Writers down, readers across, a panel for each way of reading."""
    drawn = tuple(
        Panel(
            f"by {via}",
            (Heat(_plain(matrix)),),
            Axis("reader, heads counted through all layers", whole=True),
            Axis("writer", whole=True, down=True),
        )
        for via, matrix in matrices.items()
    )
    return Panels(title, f"{note} · each panel from its least to its largest", drawn, across=3)


def _plain(grid: Grid) -> list[list[float | None]]:
    return [[None if np.isnan(x) else float(x) for x in row] for row in grid]
