"""An attention head: its matrices, its subheads, and its two circuits."""

from __future__ import annotations

from lexray.address import Subhead
from lexray.model.circuits import QK, VO
from lexray.model.head_matrices import HeadMatrices
from lexray.model.vectors import VectorGroup


class Head(HeadMatrices):
    """One query head, with the keys and values of its group."""

    calls = ".vo.top(), .qk.top(), .describe()"

    @property
    def vo(self) -> VO:
        """W_V W_O as token pairs: what attending to a token writes."""
        return VO(self)

    @property
    def qk(self) -> QK:
        """W_Q W_Kᵀ as token pairs: which tokens look for which."""
        return QK(self)

    def subheads(self, side: Subhead) -> VectorGroup:
        """The columns of W_Q, W_K or W_V, or the rows of W_O: one rank-1 term of the head each.

        >>> model["L3H2"].subheads("V")[12].top()
        """
        return VectorGroup(str(self.address), [self.group(side)])

    @property
    def query_subheads(self) -> VectorGroup:
        """The columns of W_Q."""
        return self.subheads("Q")

    @property
    def key_subheads(self) -> VectorGroup:
        """The columns of W_K."""
        return self.subheads("K")

    @property
    def value_subheads(self) -> VectorGroup:
        """The columns of W_V."""
        return self.subheads("V")

    @property
    def output_subheads(self) -> VectorGroup:
        """The rows of W_O."""
        return self.subheads("O")
