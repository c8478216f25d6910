"""How a model is read: one frozen `View`, made in one place, carried by every result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from lexray.errors import LexrayError


@dataclass(frozen=True)
class View:
    """The options of reading.

    >>> model.view(folded=True)["L3H2"].W_Q      # with the norm's gain and centring folded in
    """

    folded: bool = False
    """Norms folded into the readers and into E (faithful), or left out (raw: the paper's way)."""
    inverse: Literal["transpose", "pinv"] = "transpose"
    """E′, the right inverse that stands for reading: Eᵀ, or the pseudo-inverse E⁺."""
    centred: bool = False
    """The mean embedding is subtracted from E."""
    calibrated: bool = False
    """Scores are divided by their typical size for that token and kind of parameter."""
    reading: Literal["output", "input"] = "output"
    """Which embedding stands on the reading side (keys, queries, rows of VO) of untied models."""
    offset: int = 0
    """Key position − query position, for the QK matrices of rotary models."""

    def __post_init__(self) -> None:
        for name, allowed in (("inverse", ("transpose", "pinv")), ("reading", ("output", "input"))):
            if getattr(self, name) not in allowed:
                raise LexrayError(
                    f"View has no {name}={getattr(self, name)!r}; try one of {', '.join(allowed)}"
                )

    def __str__(self) -> str:
        """What differs from the paper's reading: "raw", "folded, offset -1", …"""
        parts = ["folded" if self.folded else "raw"]
        if self.inverse != "transpose":
            parts.append("E′ = E⁺")
        parts += [name for name in ("centred", "calibrated") if getattr(self, name)]
        if self.reading != "output":
            parts.append("input embedding on the reading side")
        if self.offset:
            parts.append(f"offset {self.offset}")
        return ", ".join(parts)

    @staticmethod
    def options() -> list[str]:
        return [field.name for field in fields(View)]
