"""How a model is read: one frozen `View`, made in one place, carried by every result."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from lexray.errors import LexrayError

Reading = Literal["output", "input", "effective"]
ViewName = Literal["standard", "raw"]
Head = Literal["decoder", "jacobian"]
ALLOWED = {
    "inverse": ("transpose", "pinv"),
    "reading": ("output", "input", "effective"),
    "head": ("decoder", "jacobian"),
}
SIDES = {
    "output": "output embedding on the reading side",
    "input": "input embedding on the reading side",
    "effective": "effective embedding on the reading side",
}


@dataclass(frozen=True)
class View:
    """The options of reading. As they stand they are the papers' own way, `raw`; a model is read
    by `STANDARD` unless another view is asked for.

    >>> model.view("raw")["L3H2"].W_Q            # as stored
    >>> model.view("raw", folded=True)["L3H2"].W_Q      # with the norm's gain and centring in it
    """

    folded: bool = False
    """Norms folded into the readers and into E (faithful), or left out (raw: the paper's way)."""
    inverse: Literal["transpose", "pinv"] = "transpose"
    """E′, the right inverse that stands for reading: Eᵀ, or the pseudo-inverse E⁺."""
    centred: bool = False
    """The mean embedding is subtracted from E."""
    calibrated: bool = False
    """Scores are divided by their typical size for that token and kind of parameter."""
    standardised: bool = False
    """Scores less their mean, over their spread, for that token and kind of parameter."""
    reading: Reading = "output"
    """What stands on the reading side (keys, queries, rows of VO): the output embedding, which
    tells what a reader expects, or what it sees: the input embedding as it is stored, or the
    effective one, what the first block makes of a token, normed as the reader's input is."""
    trained: bool = False
    """Tokens that training never touched are set aside; `model.untrained()` names them."""
    offset: int = 0
    """Key position − query position, for the QK matrices of rotary models."""
    head: Head = "decoder"
    """Of encoders whose prediction head is not linear (BERT): through the decoder E alone, or
    through the head's own Jacobian at typical inputs and E."""

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise LexrayError(
                    f"View has no {name}={getattr(self, name)!r}; try one of {', '.join(allowed)}"
                )

    def __str__(self) -> str:
        """How it differs from the standard or the paper's reading: "raw, offset -1", …"""
        standard = self.folded and self.standardised and self.trained
        base = STANDARD if standard else RAW
        parts = ["standard" if standard else "folded" if self.folded else "raw"]
        if self.inverse != "transpose":
            parts.append("E′ = E⁺")
        scores = ("centred", "calibrated", "standardised")
        parts += [name for name in scores if getattr(self, name) != getattr(base, name)]
        if self.reading != base.reading:
            parts.append(SIDES[self.reading])
        if self.trained != base.trained:
            parts.append("trained tokens")
        if self.head != "decoder":
            parts.append("through the head's Jacobian")
        if self.offset:
            parts.append(f"offset {self.offset}")
        return ", ".join(parts)

    @staticmethod
    def options() -> list[str]:
        return [field.name for field in fields(View)]

    @staticmethod
    def named(name: str) -> View:
        """The view of that name."""
        if name not in VIEWS:
            raise LexrayError(f"there is no view {name!r}; there are {', '.join(VIEWS)}")
        return VIEWS[name]

    @property
    def expects(self) -> View:
        """The same view, through the output embedding: what a reader expects to come."""
        return replace(self, reading="output")

    @property
    def papers(self) -> View:
        """The papers' way in place of the default, for what re-creates a paper."""
        return replace(RAW, offset=self.offset) if replace(self, offset=0) == STANDARD else self

    @property
    def sees_and_expects(self) -> bool:
        """Whether readers have two readings here: of the token they see, of the one to come."""
        return self.reading == "effective"


RAW = View()
"""The papers' way: E as it is stored on both sides, norms left out."""
STANDARD = View(folded=True, standardised=True, reading="effective", trained=True)
"""The default, chosen by what the parameters do (`lexray ground`, docs/readings.md)."""
VIEWS: dict[str, View] = {"standard": STANDARD, "raw": RAW}
