"""Effects as pictures: heat maps around zero, and what was added against what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.effects.grids import SMALL, short
from lexray.result.charts.axes import Axis
from lexray.result.charts.cells import Cells, Square
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Curve, Dots, Heat, Panel, StandingBars
from lexray.result.format import show_number

LABELLED = 10
"""How many points of a scatter have their name beside them."""

JUST = "removing it takes what it had added, no more and no less"


def as_lists(grid: Float[Tensor, "lines columns"]) -> list[list[float | None]]:
    """Numbers, and None for what is none."""
    return [[None if v != v else float(v) for v in line] for line in grid.tolist()]


def draw_effects(
    title: str,
    note: str,
    grids: Mapping[str, Float[Tensor, "lines columns"]],
    names: Sequence[str],
    direct: Sequence[float | None],
    change: Sequence[float],
) -> Panels:
    """The heat maps (if there are grids), and what was added directly against what changed."""
    known = [(n, d, c) for n, d, c in zip(names, direct, change, strict=True) if d is not None]
    panels, grid = [], next(iter(grids.values())) if len(grids) == 1 else None
    if any(each.shape[1] > 1 for each in grids.values()):
        for of, each in grids.items():
            said = f"{of}: change when removed" if of else "change when removed"
            panels.append(signed_map(said, each, "head", "layer"))
    else:
        places = _places(grid, len(names))
        told = [f"{name}: {show_number(c)}" for name, c in zip(names, change, strict=True)]
        bars = StandingBars(places, list(change), "change", "positive", listed=False, said=told)
        axis = Axis("number" if grid is None else "layer", whole=True)
        panels.append(Panel("change when removed", (bars,), axis, Axis()))
    if known:
        panels.append(
            scatter("added directly", "change when removed", known, slope=-1.0, same=JUST)
        )
    return Panels(title, note, tuple(panels))


def _places(grid: Float[Tensor, "lines 1"] | None, n: int) -> list[float]:
    """The layers of which something was removed, else just numbers."""
    known = list(range(n)) if grid is None else grid[:, 0].isfinite().nonzero()[:, 0].tolist()
    return [float(place) for place in (known if len(known) == n else range(n))]


def by_layer(
    grid: Float[Tensor, "some columns"], layers: Sequence[int]
) -> Float[Tensor, "lines columns"]:
    """The same with a line for each layer from 0 on, NaN where there is none."""
    rows = torch.full((max(layers, default=-1) + 1, grid.shape[1]), torch.nan)
    rows[list(layers)] = grid.cpu().float()
    return rows


def signed_map(title: str, grid: Float[Tensor, "lines columns"], columns: str, lines: str) -> Panel:
    """Lines are numbered from 0 on; those before the first with a number are left out."""
    known = grid.isfinite().any(1).nonzero()[:, 0].tolist()
    first = known[0] if known else 0
    heat = Heat(as_lists(grid[first:]), signed=True, first=first)
    return Panel(title, (heat,), Axis(columns, whole=True), Axis(lines, whole=True))


def scatter(
    x: str, y: str, points: Sequence[tuple[str, float, float]], *, slope: float, same: str
) -> Panel:
    """Named points, and the line on which both say the same."""
    named = _apart(points)
    series: list[Dots | Curve] = []
    for chosen in (False, True):
        some = [point for point in points if (point[0] in named) == chosen]
        if some:
            xs, ys = [p[1] for p in some], [p[2] for p in some]
            dots = Dots(xs, ys, "", ["positive"], [p[0] for p in some], named=chosen)
            series.append(dots)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    line = Curve([low, high], [slope * low, slope * high], same, "faint", "dash", 1.0, False)
    return Panel(f"{x} and {y}", (line, *series), Axis(x), Axis(y))


def _apart(points: Sequence[tuple[str, float, float]]) -> set[str]:
    """The points furthest out in either direction, as long as their names do not meet."""
    wide = max((abs(p[1]) for p in points), default=0.0) or 1.0
    high = max((abs(p[2]) for p in points), default=0.0) or 1.0
    order = sorted(points, key=lambda p: -max(abs(p[1]) / wide, abs(p[2]) / high))
    apart: list[tuple[str, float, float]] = []
    for point in order:
        meets = any(
            abs(point[1] - other[1]) < 0.25 * wide and abs(point[2] - other[2]) < 0.08 * high
            for other in apart
        )
        if not meets:
            apart.append(point)
        if len(apart) == LABELLED:
            break
    return {point[0] for point in apart}


def draw_cells(
    title: str,
    note: str,
    columns: Sequence[tuple[str, str]],
    names: Sequence[str],
    grid: Float[Tensor, "lines columns"],
    meaning: str,
) -> Cells:
    """Lines by columns with a number in each cell; the deeper, the further from zero, which has a
    colour on either side."""
    largest = float(grid.nan_to_num().abs().max()) or 1.0
    squares = tuple(
        tuple(
            Square(short(v), abs(v) / largest, f"{name}, {word}: {show_number(v)}", v < -SMALL)
            for (_, word), v in zip(columns, line, strict=True)
        )
        for name, line in zip(names, grid.nan_to_num().tolist(), strict=True)
    )
    return Cells(title, note, tuple(columns), tuple(names), squares, meaning)
