"""lexray: an X-ray for language models. It reads weights and forward passes as words.

>>> import lexray as lx
>>> model = lx.Model.from_pretrained("demo")
>>> model["L2H1"].vo.top(10)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray import edits
    from lexray.address import Address
    from lexray.atlas.atlas import Atlas
    from lexray.compare.align.align import align
    from lexray.compare.align.partners import partners
    from lexray.compare.diff.diff import diff
    from lexray.compare.stitch.stitch import stitch
    from lexray.dictionary.dictionary import Dictionary
    from lexray.effects.knockout import knockout
    from lexray.effects.patching import patching
    from lexray.families import family
    from lexray.find.overview import overview
    from lexray.find.token import find_tokens, read_token
    from lexray.model.model import Model
    from lexray.result import plots
    from lexray.result.load import load
    from lexray.trace.trace import Trace
    from lexray.view import View
    from lexray.vocabulary import filters
    from lexray.vocabulary.vocabulary import Vocabulary

_WHERE = {
    "Address": "lexray.address",
    "Atlas": "lexray.atlas.atlas",
    "Dictionary": "lexray.dictionary.dictionary",
    "Model": "lexray.model.model",
    "Trace": "lexray.trace.trace",
    "View": "lexray.view",
    "Vocabulary": "lexray.vocabulary.vocabulary",
    "align": "lexray.compare.align.align",
    "diff": "lexray.compare.diff.diff",
    "family": "lexray.families",
    "find_tokens": "lexray.find.token",
    "knockout": "lexray.effects.knockout",
    "load": "lexray.result.load",
    "overview": "lexray.find.overview",
    "partners": "lexray.compare.align.partners",
    "patching": "lexray.effects.patching",
    "read_token": "lexray.find.token",
    "stitch": "lexray.compare.stitch.stitch",
}
_MODULES = {
    "edits": "lexray.edits",
    "filters": "lexray.vocabulary.filters",
    "plots": "lexray.result.plots",
}
"""Whole modules that people call by these names."""

__version__ = "0.1.0"
__all__ = [
    "Address",
    "Atlas",
    "Dictionary",
    "LexrayError",
    "Model",
    "Trace",
    "View",
    "Vocabulary",
    "align",
    "diff",
    "edits",
    "family",
    "filters",
    "find_tokens",
    "knockout",
    "load",
    "overview",
    "partners",
    "patching",
    "plots",
    "read_token",
    "stitch",
]


def __getattr__(name: str) -> Any:
    """Imports torch and all that needs it only when a name is first used."""
    value: Any
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
    else:
        raise AttributeError(f"module 'lexray' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
