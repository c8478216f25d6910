"""Running a text piece by piece, and keeping what some parameters did at every position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.result.readings import Token
from lexray.trace.evidence.result import Snippet
from lexray.trace.read.usual import cut
from lexray.trace.recording import LayerTrace, Recording

AROUND = 8
"""So many tokens are shown on either side."""
STRONGEST = 20
"""So many of the strongest places are what a reading has to tell from the others."""

Activity = Callable[[LayerTrace], Float[Tensor, "p n"]]
"""What the parameter and its peers did at each position; the parameter is the first."""


@dataclass(frozen=True, eq=False)
class Ran:
    """A text that was run, position after position; the first of each piece is left out, for
    attention rests there."""

    model: Anatomy
    pieces: Sequence[Sequence[int]]
    where: Int[Tensor, "p 2"]
    """The piece and the position in it."""
    active: Float[Tensor, "p n"]

    @property
    def here(self) -> Int[Tensor, "p"]:
        """The tokens that they stand on."""
        return torch.tensor([self.pieces[piece][at] for piece, at in self.where.tolist()])

    @property
    def after(self) -> Int[Tensor, "p"]:
        """The tokens that follow; −1 at the end of a piece."""
        return torch.tensor(
            [
                self.pieces[piece][at + 1] if at + 1 < len(self.pieces[piece]) else -1
                for piece, at in self.where.tolist()
            ]
        )

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.pieces))

    def snippet(self, row: int, activation: float) -> Snippet:
        piece, at = self.where[row].tolist()
        return snippet(self.model, self.pieces[piece], at, activation)


def snippet(model: Anatomy, ids: Sequence[int], at: int, activation: float) -> Snippet:
    """A place with what is around it."""

    def tokens(some: Sequence[int]) -> tuple[Token, ...]:
        return tuple(map(model.space.token, some))

    return Snippet(
        tokens(ids[max(0, at - AROUND) : at]),
        model.space.token(ids[at]),
        tokens(ids[at + 1 : at + 1 + AROUND]),
        activation,
    )


def run_pieces(
    model: Anatomy, text: str | None, layer: int, what: Sequence[str]
) -> tuple[list[list[int]], Iterable[Recording]]:
    """The text's pieces, and each one's pass, of which one layer is kept, one at a time."""
    from lexray.trace.record.run import record  # imports transformers

    if text is not None and not text.strip():
        raise LexrayError("the text is empty; evidence needs one in which something can be strong")
    pieces = cut(model, text, tokens=None)
    passes = (record(model, [ids], layers=[layer], what=what)[0] for ids in pieces)
    return pieces, track(passes, len(pieces), f"running {sum(map(len, pieces)):,} tokens")


def gather(
    model: Anatomy, text: str | None, layer: int, what: Sequence[str], active: Activity
) -> Ran:
    """What was active where."""
    pieces, passes = run_pieces(model, text, layer, what)
    where, parts = [], []
    for piece, recording in enumerate(passes):
        strengths = active(recording[layer]).float().cpu()[1:]
        where += [(piece, 1 + at) for at in range(len(strengths))]
        parts.append(strengths)
    return Ran(model, pieces, torch.tensor(where), torch.cat(parts))


def expert_activity(layer: LayerTrace, expert: int | None) -> Float[Tensor, "p d_mlp"]:
    """The coefficients of one expert's values (None: the shared one's); 0 where it did nothing."""
    did = layer.experts
    assert did is not None
    if expert is None:
        assert did.shared_coefficients is not None
        share = 1.0 if did.shared_weight is None else did.shared_weight[:, None]
        return did.shared_coefficients * share
    chosen = (did.chosen == expert).to(did.weights) * did.weights
    return torch.einsum("pk,pkd->pd", chosen.to(did.coefficients), did.coefficients)


def strongest(active: Float[Tensor, "p"]) -> Bool[Tensor, "p"]:
    """The places of the largest activations."""
    marked = torch.zeros(len(active), dtype=torch.bool)
    marked[active.topk(min(STRONGEST, max(1, len(active) // 2))).indices] = True
    return marked
