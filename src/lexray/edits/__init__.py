"""What can be changed in a run, in the words in which it is read.

>>> from lexray.edits import ablate, add, patch
>>> model.trace("This movie was", edits=[ablate("L2H3"), add("L1", [" great"], 4)])
"""

from lexray.edits.parse import parse, parse_all, read_edits
from lexray.edits.values import (
    Edit,
    Edits,
    ablate,
    add,
    clamp,
    cut,
    patch,
    rank_one,
    replace,
    scale,
)

__all__ = [
    "Edit",
    "Edits",
    "ablate",
    "add",
    "clamp",
    "cut",
    "parse",
    "parse_all",
    "patch",
    "rank_one",
    "read_edits",
    "replace",
    "scale",
]


def __dir__() -> list[str]:
    return sorted(__all__)
