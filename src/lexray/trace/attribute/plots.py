"""Contributions as bars: by layer and kind, and the largest components."""

from __future__ import annotations

from collections.abc import Mapping

from lexray.result.charts.bars import Bar, BarList, BarPiece, Bars

COLOURS = {"embeddings": "faint", "heads": "positive", "neurons": "fourth", "biases": "fifth"}


def draw_contributions(
    title: str,
    note: str,
    sums: Mapping[str, Mapping[str, float]],
    largest: Mapping[str, float],
) -> Bars:
    """What each layer added, by kind (`sums[kind][layer]`), and the components that added or took
    most."""
    layers = list(dict.fromkeys(layer for by_layer in sums.values() for layer in by_layer))
    stacked = tuple(
        Bar(
            layer,
            tuple(
                BarPiece(by_layer[layer], COLOURS[kind], kind) for kind, by_layer in sums.items()
            ),
        )
        for layer in layers
    )
    components = tuple(
        Bar(label, (BarPiece(value, "positive" if value >= 0 else "negative"),))
        for label, value in largest.items()
    )
    lists = BarList("by layer", stacked, mono=False), BarList("largest components", components)
    return Bars(title, note, lists, tuple((kind, COLOURS[kind]) for kind in sums))
