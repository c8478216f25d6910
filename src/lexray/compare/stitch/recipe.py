"""How states are carried from one model to the other, as a value and as it is written."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, get_args, get_type_hints

from lexray.compare.stitch.kernels import KernelName
from lexray.errors import LexrayError

Match = Literal["none", "scale", "token", "moments"]
Frequencies = Literal["none", "predicted", "counted"]
Way = Literal["vocabulary", KernelName]
FITTED: Way = "vocabulary"
OF_EMBEDDINGS = ("ridge", "centred", "folded", "embedding", "b_positions")
"""What says how embeddings are related, or mends what they do not give."""


@dataclass(frozen=True)
class Recipe:
    """How states are carried from A to B: `vocabulary` is a map fitted on every token's states.

    The others are made from the embeddings; `Recipe("pinv")` is as the paper says.
    """

    kernel: Way = FITTED
    ridge: float = 0.0
    centred: bool = False
    """Subtract the mean embedding before relating the two."""
    folded: bool = False
    """Final norms' gains belong to the embeddings."""
    embedding: Literal["output", "input"] = "output"
    a_norm: bool = False
    """Apply A's final norm before the kernel, as the authors' code does."""
    b_positions: bool = False
    """Add B's position embeddings after the kernel, as the authors' code does."""
    final_norm: Literal["config", "identity", "keep"] = "config"
    """B's final norm: as its config says, left out, or kept."""
    match: Match = "none"
    """Give carried states the size that B's own have there: by one factor, each token by itself,
    or by one factor and B's mean. Measured on texts without labels."""
    frequencies: Frequencies = "none"
    """How much each token counts for the map on the vocabulary: all alike, or by the root of how
    frequent it is, as A predicts or as counted in texts without labels."""

    def __post_init__(self) -> None:
        fitted = self.kernel == FITTED
        default = {f.name: f.default for f in fields(self)}
        foreign = OF_EMBEDDINGS if fitted else ("frequencies",)
        for name in foreign:
            if getattr(self, name) != default[name]:
                raise LexrayError(
                    f"{name}={getattr(self, name)} "
                    + (
                        "is for kernels of embeddings, and the map on the vocabulary relates "
                        'hidden states; kernel="pinv" is the paper\'s'
                        if fitted
                        else f'is for kernel="{FITTED}", not for {self.kernel}'
                    )
                )

    @property
    def needs_texts(self) -> bool:
        return self.match != "none" or self.frequencies == "counted"

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """A kernel and what is changed of the rest: "pinv+a_norm+match=scale"."""
        name, *changes = text.split("+")
        values: dict[str, Any] = {"kernel": name.replace("-", "_")}
        for change in changes:
            key, given, value = change.partition("=")
            values[key.replace("-", "_")] = value if given else True
        return cls.of(values, text)

    @classmethod
    def of(cls, values: dict[str, Any], shown: str) -> Recipe:
        """From a dict of unknown origin: every entry is checked."""
        hints = get_type_hints(cls)
        for key, value in values.items():
            choices = get_args(hints.get(key))
            if key == "ridge" and type(value) in (str, int, float):
                value = values[key] = _ridge(value, shown)
            right = value in choices if choices else isinstance(value, hints.get(key, ()))
            if not right:
                known = ", ".join(
                    f"{k}={'|'.join(get_args(h)) or h.__name__}" for k, h in hints.items()
                )
                raise LexrayError(f"{shown!r} is no way to stitch: {key}={value}; known: {known}")
        return cls(**values)

    def __str__(self) -> str:
        default = Recipe()
        changed = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name != "kernel" and getattr(self, f.name) != getattr(default, f.name)
        }
        return "+".join(
            [self.kernel, *(k if v is True else f"{k}={v}" for k, v in changed.items())]
        )


def _ridge(value: str | float, shown: str) -> float:
    try:
        ridge = float(value)
    except ValueError as error:
        raise LexrayError(f"{shown!r} is no way to stitch: {value!r} is no number") from error
    if not 0 <= ridge < inf:
        raise LexrayError(f"{shown!r} is no way to stitch: a ridge is a number of at least 0")
    return ridge
