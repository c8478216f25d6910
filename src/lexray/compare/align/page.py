"""S as a grid of coloured cells, in HTML that needs no script."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.compare.align.similarity import Similarity
from lexray.result.format import show_percent
from lexray.result.page import escape

NUMBERS_UP_TO = 12
"""Columns of a grid with numbers in its cells; deeper models' appear under the pointer."""
DEEP = 0.6
"""From here on a cell is dark enough for light text."""


def grids(named: Sequence[tuple[str, Similarity]]) -> str:
    """Grids beside one another."""
    inner = "".join(grid(title, similarity) for title, similarity in named)
    return f'<div class="lexray-grids">{inner}</div>'


def grid(title: str, similarity: Similarity) -> str:
    """Darker is more alike, from the least to the most; assigned cells are framed."""
    S, assigned = similarity.S, set(similarity.assignment)
    low, high = float(S.min()), float(S.max())
    numbers = S.shape[1] <= NUMBERS_UP_TO
    head = "".join(f"<th>{f'L{j}' if numbers else j}</th>" for j in range(S.shape[1]))
    body = []
    for i, row in enumerate(S.tolist()):
        cells = "".join(
            _cell(x, (x - low) / ((high - low) or 1.0), (i, j) in assigned, numbers)
            for j, x in enumerate(row)
        )
        body.append(f"<tr><th>L{i}</th>{cells}</tr>")
    share, chance = (show_percent(x, 0) for x in (similarity.share, similarity.chance))
    caption = escape(f"{title}: {share} on the diagonal, {chance} by chance")
    return (
        f'<table class="lexray-grid"><caption>{caption}</caption>'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _cell(value: float, depth: float, assigned: bool, numbers: bool) -> str:
    marked = ' class="assigned"' if assigned else ""
    ink = ";color:var(--lx-on-hot)" if depth > DEEP else ""
    shown = f">{value:.3f}" if numbers else f' title="{value:.4f}">'
    return f'<td{marked} style="--heat:{100 * depth:.0f}%{ink}"{shown}</td>'
