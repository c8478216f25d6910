"""S as a grid of coloured cells, in HTML that needs no script."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lexray.compare.align.similarity import Similarity

NUMBERS_UP_TO = 12
"""Columns of a grid with numbers in its cells; deeper models' appear under the pointer."""
GRID_STYLE = """<style>
.lexray-grids { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: start; }
.lexray-grid { border-collapse: collapse; margin: .8rem 0; }
.lexray-grid caption { text-align: left; font-weight: 600; padding: .3rem 0; white-space: nowrap; }
.lexray-grid th, .lexray-grid td { padding: .1rem .35rem; border: 0; font: 12px ui-monospace,
  monospace; text-align: right; }
.lexray-grid td.assigned { outline: 2px solid #d4603a; outline-offset: -2px; font-weight: 700; }
</style>"""


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
    share, chance = (f"{100 * x:.0f} %" for x in (similarity.share, similarity.chance))
    caption = html.escape(f"{title}: {share} on the diagonal, {chance} by chance")
    return (
        f'<table class="lexray-grid"><caption>{caption}</caption>'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    )


def _cell(value: float, depth: float, assigned: bool, numbers: bool) -> str:
    marked = ' class="assigned"' if assigned else ""
    shown = f">{value:.3f}" if numbers else f' title="{value:.4f}">'
    return f'<td{marked} style="background:rgba(43,123,186,{0.85 * depth:.2f})"{shown}</td>'
