"""Effects as pictures: heat maps around zero, and what was added against what changed."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from lexray.result.charts.axes import Axis
from lexray.result.charts.cells import Cells, Square
from lexray.result.charts.panels import Columns, Dots, Heat, Line, Panel, Panels
from lexray.result.format import show_number

LABELLED = 8
"""How many points of a scatter have their name beside them."""


def as_lists(grid: Float[Tensor, "lines columns"]) -> list[list[float | None]]:
    """Numbers, and None for what is none."""
    return [[None if v != v else float(v) for v in line] for line in grid.tolist()]


def draw_effects(
    title: str,
    note: str,
    grid: Float[Tensor, "lines columns"] | None,
    names: Sequence[str],
    direct: Sequence[float | None],
    change: Sequence[float],
) -> Panels:
    """The heat map (if there is a grid), and what was added directly against what changed."""
    known = [(n, d, c) for n, d, c in zip(names, direct, change, strict=True) if d is not None]
    panels = []
    if grid is not None and grid.shape[1] > 1:
        panels.append(signed_map("change when removed", grid, "head", "layer"))
    else:
        places = list(range(len(names)))
        said = [f"{name}: {show_number(c)}" for name, c in zip(names, change, strict=True)]
        bars = Columns(places, list(change), "change", "positive", listed=False, said=said)
        panels.append(Panel("change when removed", (bars,), Axis("number", whole=True), Axis()))
    if known:
        panels.append(scatter("added directly", "change when removed", known, slope=-1.0))
    return Panels(title, note, tuple(panels))


def signed_map(title: str, grid: Float[Tensor, "lines columns"], columns: str, lines: str) -> Panel:
    heat = Heat(as_lists(grid), signed=True)
    return Panel(title, (heat,), Axis(columns, whole=True), Axis(lines, whole=True))


def scatter(x: str, y: str, points: Sequence[tuple[str, float, float]], *, slope: float) -> Panel:
    """Named points, and the line on which both say the same."""
    order = sorted(points, key=lambda point: -(abs(point[1]) + abs(point[2])))
    series: list[Dots | Line] = []
    for some, named in ((order[LABELLED:], False), (order[:LABELLED], True)):
        if some:
            xs, ys = [p[1] for p in some], [p[2] for p in some]
            dots = Dots(xs, ys, "", ["positive"], [p[0] for p in some], named=named)
            series.append(dots)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    line = Line([low, high], [slope * low, slope * high], "the same", "faint", "dash", 1.0, False)
    return Panel(f"{x} against {y}", (line, *series), Axis(x), Axis(y))


def draw_cells(
    title: str,
    note: str,
    columns: Sequence[tuple[str, str]],
    names: Sequence[str],
    grid: Float[Tensor, "lines columns"],
    meaning: str,
) -> Cells:
    """Lines by columns with a number in each cell; the deeper, the further from zero."""
    largest = float(grid.nan_to_num().abs().max()) or 1.0
    squares = tuple(
        tuple(Square(f"{v:.2f}", abs(v) / largest, f"{name}: {show_number(v)}") for v in line)
        for name, line in zip(names, grid.nan_to_num().tolist(), strict=True)
    )
    return Cells(title, note, tuple(columns), tuple(names), squares, meaning)
