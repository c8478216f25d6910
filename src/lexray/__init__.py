"""lexray: an X-ray for language models. It reads weights and forward passes as words.

>>> import lexray as lx
>>> model = lx.Model.from_pretrained("gpt2-medium")
>>> model["L19H4"].W_V
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.address import Address
    from lexray.compare.align import align
    from lexray.compare.diff import diff
    from lexray.compare.partners import partners
    from lexray.compare.stitch import stitch
    from lexray.families import family
    from lexray.model import Model
    from lexray.view import View
    from lexray.vocabulary import Vocabulary

_WHERE = {
    "Address": "lexray.address",
    "Model": "lexray.model",
    "View": "lexray.view",
    "Vocabulary": "lexray.vocabulary",
    "align": "lexray.compare.align",
    "diff": "lexray.compare.diff",
    "family": "lexray.families",
    "partners": "lexray.compare.partners",
    "stitch": "lexray.compare.stitch",
}

__version__ = "0.1.0"
__all__ = [
    "Address",
    "LexrayError",
    "Model",
    "View",
    "Vocabulary",
    "align",
    "diff",
    "family",
    "partners",
    "stitch",
]


def __getattr__(name: str) -> Any:
    """Imports torch and all that needs it only when a name is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module 'lexray' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
