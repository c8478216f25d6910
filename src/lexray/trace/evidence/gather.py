"""Running a text piece by piece, and keeping what some parameters did at every position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import Mixture
from lexray.model.fold import at_least_float32
from lexray.progress import track
from lexray.result.readings import Token
from lexray.trace.evidence.result import Snippet
from lexray.trace.read.usual import cut
from lexray.trace.record.active import ExpertTrace
from lexray.trace.record.plan import What
from lexray.trace.recording import LayerTrace, Recording

AROUND = 8
"""So many tokens are shown on either side."""
STRONGEST = 20
"""So many of the strongest places are what a reading has to tell from the others."""

OF_NEURONS: tuple[What, ...] = ("mlp", "residual")
"""What a pass keeps for neurons; the last for experts, whose keys are multiplied here."""

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

    @cached_property
    def tokens(self) -> list[list[Token]]:
        """The pieces as they are shown: each token is spelled once."""
        return spell_pieces(self.model, self.pieces)

    def snippet(self, row: int, activation: float) -> Snippet:
        piece, at = self.where[row].tolist()
        return snippet(self.tokens[piece], at, activation)


def spell_pieces(model: Anatomy, pieces: Sequence[Sequence[int]]) -> list[list[Token]]:
    known = {i: model.space.token(i) for i in {i for ids in pieces for i in ids}}
    return [[known[i] for i in ids] for ids in pieces]


def snippet(tokens: Sequence[Token], at: int, activation: float) -> Snippet:
    """A place in a piece with what is around it."""
    before, after = tokens[max(0, at - AROUND) : at], tokens[at + 1 : at + 1 + AROUND]
    return Snippet(tuple(before), tokens[at], tuple(after), activation)


def run_pieces(
    model: Anatomy, text: str | None, layer: int, what: Sequence[str]
) -> tuple[list[list[int]], Iterable[Recording]]:
    """The text's pieces, and each one's pass, of which one layer is kept, one at a time; of an
    encoder–decoder's decoder each is run for itself as the source."""
    from lexray.trace.evidence.onward import run_onward  # imports transformers
    from lexray.trace.record.pair import begin_with_start

    if text is not None and not text.strip():
        raise LexrayError("the text is empty; evidence needs one in which something can be strong")
    pieces = [begin_with_start(model, ids) for ids in cut(model, text, tokens=None)]
    passes = run_onward(model, pieces, layer, what)
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


def expert_activity(
    layer: LayerTrace, expert: int | None, kind: str, chosen: Sequence[int]
) -> Float[Tensor, "p n"]:
    """What some neurons of one expert (None: the shared one) did, by their keys, gates or values.

    Of values, by how much they are added: 0 where no token reached the expert. Of keys and gates
    the products with what it read, which no pass keeps of experts: −∞ where it read nothing.
    """
    did, mixture = layer.experts, layer.trace.weights.layers[layer.index].ff
    assert did is not None
    assert isinstance(mixture, Mixture)
    weight, coefficients = _routed(did, expert)
    scales_input = mixture.spec.routing.on_input and expert is not None
    if kind == "value":
        added = coefficients[:, chosen] * mixture.spec.share
        return added if scales_input else added * weight[:, None]
    ff = mixture.shared if expert is None else mixture.experts[expert]
    assert ff is not None
    W, bias = (ff.W_in, ff.b_in) if kind == "key" else (ff.W_gate, ff.b_gate)
    assert W is not None
    W = at_least_float32(W[:, chosen])
    given = layer.shared_in if expert is None else layer.mlp_in
    read = given.to(W) * (weight[:, None].to(W) if scales_input else 1.0)
    pre = read @ W if bias is None else read @ W + bias[chosen].to(W)
    return pre.masked_fill((weight == 0)[:, None].to(W.device), -torch.inf)


def _routed(
    did: ExpertTrace, expert: int | None
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p d_mlp"]]:
    """An expert's weight at each position, and its coefficients before it; 0 where not chosen."""
    if expert is None:
        assert did.shared_coefficients is not None
        return did.shared_added, did.shared_coefficients
    reached = (did.chosen == expert).to(did.coefficients)
    weight = (reached * did.added.to(reached)).sum(1)
    return weight, torch.einsum("pk,pkd->pd", reached, did.coefficients)


def strongest(active: Float[Tensor, "p"]) -> Bool[Tensor, "p"]:
    """The places of the largest activations, among those where there was any."""
    marked = torch.zeros(len(active), dtype=torch.bool)
    marked[active.topk(min(STRONGEST, max(1, len(active) // 2))).indices] = True
    return marked & (active != 0) & (active > -torch.inf)
