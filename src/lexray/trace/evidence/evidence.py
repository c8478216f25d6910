"""`model["L26N777"].evidence()`: the strongest places in running text, and the agreement."""

from __future__ import annotations

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.trace.evidence.heads import head_evidence
from lexray.trace.evidence.result import Evidence
from lexray.trace.evidence.vectors import neuron_evidence, subhead_evidence


def evidence(
    model: Anatomy, address: str | Address, text: str | None = None, n: int = 10
) -> Evidence:
    """What a neuron, one of its vectors, a head, one of its matrices or a subhead does on a text.

    The text is lexray's own unless one is given. `n` places are shown.
    """
    at = address if isinstance(address, Address) else Address.parse(address)
    if n < 1:
        raise LexrayError(f"asked for the {n} strongest places; n must be at least 1")
    model[at]  # an address that is not there is refused here, with what is
    model = model.stack_at(at)
    if at.cross:
        raise LexrayError(
            f"there is no evidence of {at}: running text is one text, and a head of an "
            "encoder–decoder's cross-attention looks from a target at a source; "
            "model.trace(source, target=…).attention(cross=True) shows one pair"
        )
    if at.neuron is not None:
        return neuron_evidence(model, at, text, n)
    if at.subhead is not None:
        return subhead_evidence(model, at, text, n)
    if at.head is not None:
        return head_evidence(model, at, text, n)
    raise LexrayError(
        f"there is no evidence of {at}: it is for neurons (L12N345, L12N345.value), heads (L3H7, "
        "L3H7.VO, L3H7.QK), subheads (L3H7.V12) and features of a dictionary"
    )
