"""The sweep over layers as curves, like the paper's Fig. 4."""

from __future__ import annotations

from lexray.compare.stitch.sweep import Sweep
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Level, Line, Panel, Panels, Series

COLOURS = ("positive", "negative", "third", "fifth", "fourth", "sixth", "seventh", "faint")
DASHES = ("solid", "dash", "dot", "dashdot")


def curves(sweep: Sweep) -> Panels:
    """A colour for each variant, a dash for each fine-tuned model, intervals as bars."""
    names = [point.b for point in sweep.ceilings]
    series: list[Series] = []
    for i, recipe in enumerate(sweep.recipes):
        for j, name in enumerate(names):
            points = sorted((p for p in sweep.of(recipe) if p.b == name), key=lambda p: p.after)
            label = recipe if len(names) == 1 else f"{recipe} → {name}"
            line = Line(
                [p.after for p in points],
                [p.accuracy for p in points],
                label,
                COLOURS[i % len(COLOURS)],
                DASHES[j % len(DASHES)],
                spread=[p.interval for p in points],
            )
            series.append(line)
    series.append(Level(sweep.majority, "the most frequent class", "faint", "dot"))
    series += [Level(p.accuracy, f"{p.b} by itself", "ink", "dot") for p in sweep.ceilings]
    title = f"{sweep.a} stitched to the last {sweep.layers} layers of {', '.join(names)}"
    height = Axis("accuracy, with 95 % intervals", percent=True)
    panel = Panel("", tuple(series), Axis(f"after layer of {sweep.a}", whole=True), height)
    return Panels(title, "", (panel,))
