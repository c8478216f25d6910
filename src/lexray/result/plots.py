"""Results as pictures: bars of tokens, a map of tokens, pairs as threads between words.

Each is a `Chart`: it shows itself in a notebook, and `save_plot` writes it as a page, SVG, PNG or
PDF. `.to_plotly()` gives a figure of plotly instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lexray.result.charts.bars import Bars
from lexray.result.charts.chart import ENDINGS, Chart
from lexray.result.charts.cloud import Cloud
from lexray.result.charts.threads import Threads
from lexray.result.draw import principal_plane
from lexray.result.pairs import Pairs
from lexray.result.readings import Embeds, Reading

__all__ = ["ENDINGS", "Chart", "bars", "principal_plane", "save_plot", "threads", "token_map"]


def __dir__() -> list[str]:
    return sorted(__all__)


def bars(reading: Reading) -> Bars:
    """The top tokens and the bottom tokens of a vector, side by side."""
    return reading.plot()


def token_map(reading: Reading, model: Embeds) -> Cloud:
    """The top tokens in the plane in which their centred embeddings differ most."""
    return reading.map(model)


def threads(pairs: Pairs, n: int = 50) -> Threads:
    """The n best pairs as threads from row tokens to column tokens; strong ones are thick."""
    return pairs.plot(n)


def save_plot(chart: Chart | Any, path: str | Path) -> Path:
    """Writes `.html` that needs no network, `.svg`, `.png` or `.pdf`.

    A figure of plotly is written by plotly itself: a page of 5 MB, or images by a browser.
    """
    if isinstance(chart, Chart):
        return chart.save(path)
    from lexray.result.charts.plotly import save_figure

    return save_figure(chart, Path(path))
