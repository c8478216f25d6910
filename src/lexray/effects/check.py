"""Does a reading predict the effect? The tokens that it promises, against those that really move.

A neuron promises what its value promotes (with the sign of its coefficient); a head, what its VO
matrix writes for the token that it looks at most. Each is removed (or doubled) at the places of a
text where it is strongest, and the tokens are taken whose probability falls (or rises) most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.edits.values import Edit, ablate, scale
from lexray.effects.aim import run_prompt
from lexray.errors import LexrayError
from lexray.find.promise import score_written
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import Neuron
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.progress import track
from lexray.result.check import Check, Checked
from lexray.result.readings import Token
from lexray.space.area import area
from lexray.space.space import space_of
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.record.prompt import encode, longest
from lexray.trace.recording import Recording

How = Literal["remove", "amplify"]
Part = Neuron | Head
WINDOW, WINDOWS = 48, 16
"""Tokens in a piece of a text, and how many pieces are run."""


def check(
    model: Anatomy,
    addresses: Sequence[str],
    prompts: str | Sequence[str],
    *,
    k: int = 20,
    how: str = "remove",
    places: int = 4,
    others: int = 8,
    seed: int = 0,
) -> Check:
    """A line for each parameter, and `others` of its layers; see `Model.check`."""
    if how not in get_args(How):
        raise LexrayError(f"a parameter is checked by remove or amplify, not by {how!r}")
    if min(k, places) < 1 or others < 0:
        raise LexrayError("k and places are at least 1, others at least 0")
    if not model.architecture.causal:
        raise LexrayError(f"{model.name} is no causal language model: nothing follows in it")
    parts = [_part(model, address) for address in addresses]
    if not parts:
        raise LexrayError("name at least one neuron or head to check")
    pieces = _pieces(model, prompts)
    rows: list[tuple[Part, bool]] = [(part, False) for part in parts]
    drawn = torch.Generator().manual_seed(seed)
    rows += [(p, True) for part in parts for p in _others(part, others, parts, drawn)]
    done: list[tuple[bool, Checked]] = []
    for layer in sorted({part.address.layer for part, _ in rows}):
        bench = Bench(model, layer, pieces, k, how == "remove", places)
        here = [(part, other) for part, other in rows if part.address.layer == layer]
        for part, other in track(here, len(here), f"checking layer {layer}"):
            if not other or bench.finds(part):
                done.append((other, bench.check(part, drawn)))
    order = {str(part.address): i for i, part in enumerate(parts)}
    own = sorted((c for other, c in done if not other), key=lambda c: order[c.address])
    tokens = sum(map(len, pieces))
    return Check(
        model.space.source("check"),
        how,
        k,
        tuple(own),
        tuple(c for other, c in done if other),
        f"{tokens} tokens · other readings: those of other parameters of the layer",
    )


def _part(model: Anatomy, address: str) -> Part:
    part = model[address]
    if not isinstance(part, Neuron | Head):
        raise LexrayError(f"{address} cannot be checked; neurons (L26N777) and heads (L25H1) can")
    if part.address.encoder:
        raise LexrayError(
            f"{address} writes into the encoder, whose stream is not read as tokens: a reading "
            "promises nothing of the answer; parts of the decoder and of cross-attention (L3X2) do"
        )
    return part


def _others(part: Part, n: int, taken: Sequence[Part], drawn: torch.Generator) -> Iterator[Part]:
    """Other parameters of the layer."""
    names = {str(p.address) for p in taken}
    total = part.ff.d_mlp if isinstance(part, Neuron) else len(part.spec.q.starts)
    count = 0
    for i in torch.randperm(total, generator=drawn).tolist():
        if count == n:
            return
        other = part.ff.neurons[i] if isinstance(part, Neuron) else _sibling(part, i)
        if str(other.address) not in names:
            names.add(str(other.address))
            count += 1
            yield other


def _sibling(head: Head, index: int) -> Head:
    """Another head of the same attention."""
    return Head(head.weights, head.layer, index, cross=head.spec.crosses)


def _pieces(model: Anatomy, prompts: str | Sequence[str]) -> list[list[int]]:
    """Prompts as they are; a text in pieces, spread over the whole of it."""
    if not isinstance(prompts, str):
        encoded = [encode(model, prompt, True) for prompt in prompts]
        pieces = [ids for ids in encoded if len(ids) > 1]
    else:
        ids = encode(model, prompts, True)
        size = min(WINDOW, longest(model) or WINDOW)
        pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
        pieces = [piece for piece in pieces if len(piece) > 1]
        pieces = pieces[:: max(1, len(pieces) // WINDOWS)][:WINDOWS]
    if not pieces:
        raise LexrayError("a check needs a text or prompts of at least two tokens")
    return pieces


@dataclass(frozen=True, eq=False)
class Spot:
    """Where a parameter was strong: which run, at which position, how much, looking at what."""

    run: int
    position: int
    strength: float
    looked_at: int | None = None


@dataclass
class Bench:
    """A layer of a model, and the runs in which its parameters are changed."""

    model: Anatomy
    layer: int
    pieces: list[list[int]]
    k: int
    removing: bool
    places: int

    def __post_init__(self) -> None:
        from lexray.trace.record.pair import record_text  # imports transformers

        what = ("residual", "attention", "heads", "mlp", "logits")
        kept = None if self.model.architecture.encoder is not None else [self.layer]
        self.runs = [record_text(self.model, ids, layers=kept, what=what) for ids in self.pieces]
        self.known = self.model.vocabulary.mask(self.model.space.n_rows)

    def finds(self, part: Part) -> bool:
        """Whether it is active anywhere in the texts."""
        return bool(self._spots(part))

    def check(self, part: Part, drawn: torch.Generator) -> Checked:
        spots = self._spots(part)
        if not spots:
            raise LexrayError(
                f"{part.address} is nowhere active in these texts (an expert: the router never "
                "chose it); give a longer text, or prompts in which it is"
            )
        other = next(iter(_others(part, 1, [part], drawn)), part)
        areas, controls, overlaps = [], [], []
        promised = moved = torch.zeros(len(self.known))
        for spot in spots:
            change = self._change(part, spot)
            scores, rival = (self._promise(p, spot) for p in (part, other))
            wanted = torch.zeros(len(change), dtype=torch.bool)
            top = change.topk(min(self.k, len(change) // 2)).indices
            wanted[top] = True
            areas.append(area(scores[self.known], wanted[self.known]))
            controls.append(area(rival[self.known], wanted[self.known]))
            best = scores.masked_fill(~self.known, -torch.inf).topk(len(top)).indices
            overlaps.append(float(wanted[best].float().mean()))
            promised, moved = promised + scores / scores.std(), moved + change
        return Checked(
            str(part.address),
            _mean(areas),
            _mean(overlaps),
            _mean(controls),
            len(spots),
            _mean([spot.strength for spot in spots]),
            self._tokens(promised),
            self._tokens(moved),
        )

    def _tokens(self, scores: Float[Tensor, "e"]) -> tuple[Token, ...]:
        best = scores.masked_fill(~self.known, -torch.inf).topk(min(10, len(scores))).indices
        return tuple(self.model.space.token(i) for i in best.tolist())

    def _spots(self, part: Part) -> list[Spot]:
        """The places where it was strongest, one in each run, not at the first position."""
        spots = []
        for n, run in enumerate(self.runs):
            if isinstance(part, Head):
                spots.append(self._look(part, n, run))
                continue
            x = self._coefficients(part, run)[1:]
            if bool(x.any()):
                p = int(x.abs().argmax()) + 1
                spots.append(Spot(n, p, float(x[p - 1])))
        return sorted(spots, key=lambda spot: -abs(spot.strength))[: self.places]

    def _coefficients(self, neuron: Neuron, run: Recording) -> Float[Tensor, "n"]:
        """A neuron's at all positions; of an expert 0 where it was not chosen."""
        address, i = neuron.address, neuron.index
        name = "shared_coefficients" if address.shared else "coefficients"
        x = run.parts[self.layer, name].float()
        if address.expert is None:
            return x[:, i]
        chosen = run.parts[self.layer, "chosen"] == address.expert
        return (x[..., i] * run.parts[self.layer, "weights"].float() * chosen).sum(1)

    def _look(self, head: Head, n: int, run: Recording) -> Spot:
        """Where a head wrote most, and what it looked at there besides the first position."""
        layer, crosses = run[self.layer], head.spec.crosses
        z = (layer.cross.z if crosses else layer.z)[:, head.index].float()
        written = z @ at_least_float32(self.model.view("raw").head(head.address).W_O).to(z)
        p = int(written[1:].norm(dim=1).argmax()) + 1
        pattern = layer.cross.pattern if crosses else layer.pattern
        weights = pattern[head.index, p].float().clone()
        weights[0] = 0
        ids = run.source.ids if crosses and run.source is not None else run.ids
        return Spot(n, p, float(written[p].norm()), int(ids[int(weights.argmax())]))

    def _promise(self, part: Part, spot: Spot) -> Float[Tensor, "e"]:
        """The score of every token in the parameter's reading."""
        if isinstance(part, Neuron):
            space = space_of(self.model, self.layer)
            x = self.model.neuron(part.address).value.tensor[None]
            sign = 1.0 if spot.strength >= 0 else -1.0
            return sign * space.whole("value").project(space.shift(x, "value"))[0].float().cpu()
        head = self.model.head(part.address)
        assert spot.looked_at is not None
        return score_written(head, spot.looked_at)

    def _change(self, part: Part, spot: Spot) -> Float[Tensor, "e"]:
        """How much more probable each token was with the parameter: or with twice of it."""
        from lexray.trace.apply.rerun import Rerun  # imports transformers

        run, address = self.runs[spot.run], str(part.address)
        edit: Edit = (
            ablate(address, positions=spot.position)
            if self.removing
            else scale(address, 2, positions=spot.position)
        )
        changes = ReadyEdits.check(self.model, [edit], run_prompt(run))
        actions = changes.for_run(run)
        (after,) = Rerun(run).logits([actions], spot.position, first=self.layer).cpu()
        before = run.logits[spot.position].cpu()
        moved: Any = before.float().softmax(-1) - after.float().softmax(-1)
        change: Tensor = (moved if self.removing else -moved)[: len(self.known)]
        return change


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")
