"""Where heads would look, from weights alone: random tokens, each as the first block leaves it.

Queries and keys are those that a head makes of lone tokens (the effective embedding, or for the
first layer the embedding) at their positions: turned, for rotary models; with the learned position
added, where there is one; with ALiBi's slopes. Nothing that attention has moved is in them, so what
they show is a head's own taste: for a place, for the first token, for its own token.

The text is random tokens and the same again, so that a token's double and what followed it have
known places; a trace of the same text measures what the heads really do there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.families import Attention
from lexray.model.anatomy import Anatomy
from lexray.model.head import Head
from lexray.model.head_matrices import visible
from lexray.space.effective import effective_rows, reader_norm

Made = TypeVar("Made")

LENGTH = 24
"""Random tokens before they are repeated."""
TEXTS = 4
OFFSETS = 9
"""0 is the token itself, 8 the one eight places before."""


@dataclass(frozen=True)
class Repeated:
    """Texts of random tokens that are repeated once."""

    ids: Int[Tensor, "texts n"]
    length: int
    """After how many tokens they repeat."""

    @property
    def n(self) -> int:
        return self.ids.shape[1]

    def cells(self, offset: int) -> Bool[Tensor, "n n"]:
        """Query and key positions at a distance; for doubles and their followers, of the second
        half alone."""
        at = torch.arange(self.n)
        near = (at[:, None] - at[None]) == offset
        return near & (at[:, None] >= self.length) if offset >= self.length - 1 else near


def repeated_tokens(model: Anatomy, seed: int = 0, *, texts: int = TEXTS) -> Repeated:
    """Random tokens out of those that the standard view lists, repeated once."""
    listed = model.space.list_ids(None)
    if listed is None:
        listed = torch.arange(model.space.n_rows)
    special = [int(i) for i in listed if model.vocabulary.is_special(int(i))]
    usable = listed[~torch.isin(listed, torch.tensor(special, dtype=listed.dtype))]
    longest = model.architecture.n_ctx or 2 * LENGTH
    if (W_pos := model.W_pos) is not None:
        longest = min(longest, len(W_pos))
    longest -= model.architecture.encoder is not None  # a decoder begins with a token of its own
    length = max(2, min(LENGTH, longest // 2, max(2, len(usable))))
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack(
        [usable[torch.randperm(len(usable), generator=generator)[:length]] for _ in range(texts)]
    )
    return Repeated(torch.cat([drawn, drawn], 1), drawn.shape[1])


def states_of(model: Anatomy, ids: Int[Tensor, "n"], *, first: bool) -> Float[Tensor, "n d_model"]:
    """What the first layer, or any later one, reads of lone tokens at positions 0, 1, …: normed."""
    a = model.architecture
    if a.positions is None and a.sinusoids is None:
        return lone_of(model, ids, first=first)
    from lexray.trace.record.lone import placed_states  # imports transformers

    x = placed_states(model, ids, entering=first)
    norm = reader_norm(model, first)
    return x if norm is None else norm.bare(x)


def lone_of(model: Anatomy, ids: Int[Tensor, "n"], *, first: bool) -> Float[Tensor, "n d_model"]:
    """What they read of tokens at no place in particular."""
    rows, _ = effective_rows(model, first=first)
    return (model.W_E.cpu() if rows is None else rows)[ids].float()


def pattern(
    head: Head,
    x: Float[Tensor, "n d_model"],
    y: Float[Tensor, "n d_source"] | None = None,
    *,
    causal: bool,
) -> Float[Tensor, "n n"]:
    """A head's attention weights on such states, `y` of what it looks at, if that is another text;
    `head` of a model whose norms are folded. Where one softmax weighs a target and its source
    (T5Gemma 2), among the ones or the others alone."""
    spec, at = head.spec, torch.arange(len(x))
    y = x if y is None else y
    q, k = head.queries(x.to(head.W_Q)).double(), head.keys(y.to(head.W_K)).double()
    if spec.rotary is not None:
        q = spec.rotary.turn(q[:, None], at)[:, 0]
        k = k if spec.crosses else spec.rotary.turn(k[:, None], at)[:, 0]
    if (gains := head.turned_gains) is not None:
        q = q * gains.double()
    distance = (at[None] - at[:, None]).double()
    scores = spec.scale * (q @ k.T).cpu()
    if spec.temperature is not None:
        scores = scores * spec.temperature(at)[:, None]
    scores = scores + head.alibi_slope * distance
    if spec.relative is not None:
        scores = scores + head.distance_scores(q, k, at).cpu()
    if spec.cap is not None:
        scores = spec.cap * (scores / spec.cap).tanh()
    scores = scores.masked_fill(~visible(spec, at, at, causal), -torch.inf)
    if (sink := head.sink) is None:
        return scores.softmax(1)
    return torch.cat([scores, scores.new_full((len(x), 1), sink)], 1).softmax(1)[:, :-1]


@dataclass(frozen=True)
class MeanLooks:
    """Where a head looks in repeated text: mean weights."""

    offsets: Float[Tensor, "offsets"]
    """On the token 0, 1, … places before."""
    errors: Float[Tensor, "offsets"]
    """The standard errors of these means over all places and texts."""
    first: float
    double: float
    """On the same token's first occurrence."""
    follower: float
    """On what followed the first occurrence: prefix matching, what induction heads do."""

    @property
    def previous(self) -> float:
        return float(self.offsets[1])


def looks(patterns: Float[Tensor, "texts n n"], text: Repeated) -> MeanLooks:
    """The mean over texts and positions; the first few positions have little choice."""
    each = patterns.double()
    late = _late(text)

    def on(offset: int) -> Float[Tensor, "weights"]:
        weights = each[:, text.cells(offset) & late[:, None]].flatten()
        return weights if len(weights) else each.new_zeros(1)

    near = [on(d) for d in range(OFFSETS)]
    return MeanLooks(
        torch.stack([weights.mean() for weights in near]),
        torch.stack([weights.std(correction=0) / len(weights) ** 0.5 for weights in near]),
        first_look(each, text),
        float(on(text.length).mean()),
        float(on(text.length - 1).mean()),
    )


def first_look(patterns: Float[Tensor, "texts n keys"], text: Repeated) -> float:
    """The mean weight on the first that can be looked at."""
    return float(patterns[:, _late(text), 0].mean())


def _late(text: Repeated) -> Bool[Tensor, "n"]:
    return torch.arange(text.n) >= min(OFFSETS, text.length)


def by_chance(text: Repeated, spec: Attention, *, causal: bool) -> MeanLooks:
    """What equal weights on all that can be seen would give."""
    at = torch.arange(text.n)
    equal = visible(spec, at, at, causal).double()
    return looks((equal / equal.sum(1, keepdim=True))[None], text)


Ends = Literal["Q", "K"]


class LoneStates(Generic[Made]):
    """What heads read of lone tokens, by stack and by whether the first layer reads it: made when
    it is first asked for. Keys of cross-attention read what the encoder makes of them."""

    def __init__(self, model: Anatomy, make: Callable[[Anatomy, bool], Made]) -> None:
        self.stacks = {stack.decoder is not None: stack for stack in model.stacks}
        self.make, self._made = make, dict[tuple[bool, bool], Made]()

    def __call__(self, head: Head, end: Ends) -> Made:
        of_source = head.spec.crosses and end == "K"
        key = head.address.encoder or of_source, head.layer == 0 and not of_source
        if key not in self._made:
            self._made[key] = self.make(self.stacks[key[0]], key[1])
        return self._made[key]


def is_causal(head: Head) -> bool:
    """Whether it sees only what comes before: not in an encoder, and not of a source."""
    return head.weights.architecture.causal and not head.spec.crosses


def all_looks(model: Anatomy, text: Repeated) -> list[MeanLooks]:
    """Of every head, from weights alone; of a source that says the same as the target."""
    states = LoneStates(
        model, lambda stack, first: [states_of(stack, ids, first=first) for ids in text.ids]
    )
    by_head = []
    for head in model.view(folded=True).every_head:
        ends = zip(states(head, "Q"), states(head, "K"), strict=True)
        patterns = torch.stack([pattern(head, x, y, causal=is_causal(head)) for x, y in ends])
        by_head.append(looks(patterns, text))
    return by_head
