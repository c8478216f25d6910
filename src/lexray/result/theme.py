"""One theme for all pages and pictures, light and dark.

Pages get the colours as CSS custom properties (`--lx-ink`), drawings take them from here. Cells of
JupyterLab follow its own theme, everything else what the reader's system prefers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lexray.result.assets import read_asset

SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
PRINT = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"
"""Of pictures: fonts of the same widths, which are known before anything is drawn."""
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SCOPE = "lexray-page"
"""The class within which the style sheet applies: of a page's body, or of a part of a notebook."""


@dataclass(frozen=True)
class Theme:
    paper: str
    card: str
    chip: str
    """Grounds: of the page, of what stands out of it, of a word."""
    line: str
    ink: str
    faint: str
    accent: str
    positive: str
    negative: str
    """The sign of a number."""
    good: str
    good_ground: str
    bad: str
    bad_ground: str
    """Verdicts and sides, as text and as ground."""
    hot: str
    cold: str
    """The ends of a heat map."""
    on_hot: str
    """Text on what is hot."""
    third: str
    fourth: str
    fifth: str
    sixth: str
    seventh: str
    """Further curves and bars of a chart, after positive and negative."""


LIGHT = Theme(
    paper="#fcfcfd",
    card="#ffffff",
    chip="#eceff2",
    line="#d5dbe2",
    ink="#1b2530",
    faint="#65717e",
    accent="#2f6fde",
    positive="#2b7bba",
    negative="#d4603a",
    good="#15733f",
    good_ground="#dcf5e5",
    bad="#b3312a",
    bad_ground="#fbe3e0",
    hot="#1f6fa8",
    cold="#eef4f9",
    on_hot="#ffffff",
    third="#3a9d5d",
    fourth="#b8860b",
    fifth="#8d5fb8",
    sixth="#2f9a9a",
    seventh="#b8487a",
)
DARK = Theme(
    paper="#12171d",
    card="#191f26",
    chip="#2a323c",
    line="#333d49",
    ink="#eef2f6",
    faint="#95a2b0",
    accent="#7aa9ff",
    positive="#5aa9e2",
    negative="#ee8661",
    good="#6fd39b",
    good_ground="#173a27",
    bad="#f59a90",
    bad_ground="#42201e",
    hot="#63b1ec",
    cold="#1a2733",
    on_hot="#0b1620",
    third="#5fc284",
    fourth="#e0b04a",
    fifth="#b394dd",
    sixth="#5cc5c5",
    seventh="#e07ba8",
)
MIDDLE = "#7d8893"
"""A grey that can be read on both papers."""


def variables(theme: Theme) -> str:
    """The theme's colours as CSS declarations."""
    names = (field.name for field in fields(theme))
    return "".join(f"--lx-{name.replace('_', '-')}:{getattr(theme, name)};" for name in names)


def style_sheet() -> str:
    """What every page and every styled part of a notebook shares."""
    light, dark = variables(LIGHT), variables(DARK)
    fonts = f"--lx-sans:{SANS};--lx-mono:{MONOSPACE};"
    return (
        f".{SCOPE}{{color-scheme:light dark;{fonts}{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{.{SCOPE}{{{dark}}}}}\n"
        f'[data-jp-theme-light="true"] .{SCOPE}{{color-scheme:light;{light}}}\n'
        f'[data-jp-theme-light="false"] .{SCOPE}{{color-scheme:dark;{dark}}}\n'
        + read_asset("lexray.result", "static/theme.css")
    )


def standing(rank: int, size: int) -> float:
    """How a rank among so many is coloured: from 1 (the first) over 0 (the middle) to -1 (the
    last), on a log scale.

    >>> [round(standing(rank, 50257), 2) for rank in (1, 10, 1000, 25129, 50257)]
    [1.0, 0.77, 0.32, 0.0, -1.0]
    """
    half = math.log1p(size / 2)
    above, below = rank - 1, size - rank
    if above <= below:
        return max(0.0, 1 - math.log1p(above) / half)
    return min(0.0, math.log1p(max(below, 0)) / half - 1)
