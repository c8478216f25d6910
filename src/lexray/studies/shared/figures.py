"""What the studies' figures share: their colours, the axis of layers, the papers' own points."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Dots, Panel

OURS, CONTROL, THIRD = "positive", "negative", "third"
"""What was measured; what it is compared with; one more."""
PUBLISHED, MUTED = "fourth", "faint"
"""The paper's own figure; what stands back."""
LAYER = Axis("layer", whole=True)


def panels(*panels: Panel, across: int = 2) -> Panels:
    """Small figures side by side; titles are added where a figure stands alone."""
    return Panels("", "", panels, across)


def draw_published(x: Sequence[float], y: Sequence[float], texts: Sequence[str]) -> Dots:
    """Points that the paper reports."""
    return Dots(x, y, "published", [PUBLISHED], texts, 5.0, named=True, listed=True)
