"""Alignments as pictures: a heat map for each group, embedding space above, feature space below."""

from __future__ import annotations

from lexray.compare.align.alignment import Alignment
from lexray.compare.align.similarity import Similarity
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Heat, Panel, Panels
from lexray.result.format import show_percent
from lexray.space.kinds import Kind

NAMES: dict[Kind, str] = {"key": "FF keys", "gate": "FF gates", "value": "FF values"}


def heat_maps(alignment: Alignment) -> Panels:
    """S of every group, as in Fig. 3 of the paper; assigned cells are marked by a dot."""
    groups = alignment.groups
    spaces = list(zip(*(group.spaces for group in groups), strict=True))
    panels = tuple(
        _panel(alignment, NAMES.get(group.kind, f"W_{group.kind}"), similarity)
        for row in spaces
        for group, similarity in zip(groups, row, strict=True)
    )
    title = f"Which layer does what: {alignment.a.model} and {alignment.b.model}"
    said = f"{alignment.note} · each panel from its least to its largest · dots: assigned"
    return Panels(title, said, panels, across=len(groups))


def _panel(alignment: Alignment, name: str, similarity: Similarity) -> Panel:
    share = show_percent(similarity.share, 0)
    return Panel(
        f"{name}, {similarity.space} space: {share}",
        (Heat(similarity.S.tolist(), similarity.assignment),),
        Axis(f"layer of {alignment.b.model}", whole=True),
        Axis(f"layer of {alignment.a.model}", whole=True, down=True),
    )
