"""What did a fine-tune change? Every parameter of tuned − base, as words (ES §4.3).

The comparison runs twice over the models. First it measures: layer by layer, group by group, by
how much each vector moved. Then it reads the farthest moved: the top tokens of the difference
and of its negation; of a head's circuits the top pairs. The most telling come first, where

    telling = √(share · s) · c · (0.05 + legibility · words)

with share = ‖Δ‖ over the usual length of such vectors in that layer (at most 1), s = that share
over the median of all vectors of the group that moved, c = how many standard deviations the best
token (of either end) stands out from the whole vocabulary, over √(2 ln e), which is what the best
of e random scores reaches; for pairs the square root of the same, as a pair has two ends. Words is
the share of words among the first ten tokens, legibility how alike these are, of the end that reads
better. So what is large for its group and can be read comes before what is only large, or points at
bytes and pieces of words.

What the rows of an embedding did in common (`W_U`, or `W_E` where it is both) is one change, and is
taken out of those of single tokens: training pushes the output rows of whatever does not come away
from what predicts. How far each row went along that direction says which tokens the tuned model
predicts more, and which less, whatever stands before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from lexray.compare.diff.ledger import Ledger
from lexray.compare.diff.lexicon import Lexicon, Sentiment, count_words, suits
from lexray.compare.diff.measure import measure, note_strangers
from lexray.compare.diff.pair import Two
from lexray.compare.diff.read import Reader
from lexray.compare.diff.result import Diff
from lexray.compare.diff.stacks import CIRCUITS, choose_groups
from lexray.compare.diff.unread import note_unread
from lexray.compare.open import Given, open_other
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.vocabulary.filters import Filter, FilterLike, read_filter

MOST_MOVED = 50
"""How many vectors of each group are read, at least; the count of sentiment words looks at them."""
HEADS = 8
"""How many heads are read, at least: their token pairs take longer."""


def diff(
    base: Given,
    tuned: Given,
    *,
    n: int = 50,
    k: int = 10,
    each: int = 3,
    groups: Sequence[str] = (),
    filter: FilterLike = None,
    through: Literal["base", "tuned"] = "base",
    lexicon: Lexicon | Literal["auto"] | None = "auto",
    seed: int = 0,
) -> Diff:
    """How `tuned` differs from `base`: how far every group moved, and towards which words.

    >>> lx.diff("demo", "demo-sentiment", groups=["values"])
    >>> lx.diff(base.view("raw"), tuned, groups=["V", "O"])     # or a LoRA adapter's folder

    - The `n` most telling changes are listed, and `each` of every group, with k tokens each.
    - The base's view holds for both models, and its embedding reads the differences;
      `through="tuned"` takes the tuned model's instead.
    - A LoRA adapter is put on `base` itself, and only what it touches is read.
    - `lexicon` adds the count of ES App. D: how many of the words are words of praise and blame.
      By itself it is made for models that tell "positive" from "negative"; None leaves it out.
    """
    filter = read_filter(filter)
    if n < 1 or k < 1 or each < 0:
        raise LexrayError(f"asked for {n} changes with {k} tokens; both must be at least 1")
    if through not in ("base", "tuned"):
        raise LexrayError(f"changes are read through the base or the tuned model, not {through!r}")
    wanted = choose_groups(tuple(groups))
    first = base if isinstance(base, Model) else Model.from_pretrained(base)
    two = Two(first, open_other(first, tuned, on_first=True))
    automatic = lexicon == "auto"
    if lexicon == "auto":
        lexicon = Lexicon.shipped() if suits(two.tuned.config) else None
    ledger = Ledger(max(n, MOST_MOVED), max(each, n // 4, HEADS))
    measure(two, ledger, wanted)
    reader = two.base if through == "base" else two.tuned
    changes = Reader(two, ledger, reader, k, filter).changes(n, each)
    sentiment = None
    if lexicon is not None:
        try:
            sentiment = _sentiment(ledger, reader, lexicon, filter, seed)
        except LexrayError as error:
            if not automatic:
                raise
            two.note(f"words of praise and blame are not counted: {error}")
    sizes = ledger.sizes()
    note_strangers(two, ledger)
    note_unread(two)
    return Diff(
        replace(reader.space.source("", filter), model=reader.name),
        two.base.name,
        two.tuned.name,
        tuple(changes),
        sizes,
        tuple(two.notes),
        through,
        sum(size.moved for size in sizes if size.group not in CIRCUITS),
        sum(size.vectors for size in sizes if size.group not in CIRCUITS),
        sentiment,
    )


def _sentiment(
    ledger: Ledger, reader: Model, lexicon: Lexicon, filter: Filter | None, seed: int
) -> Sentiment:
    """ES App. D's count over the most moved vectors of each group."""
    stacks = {}
    for group in ("keys", "gates", "values", "Q", "K", "V", "O"):
        candidates = [c for c in ledger.candidates(group) if c.vector is not None][:MOST_MOVED]
        if candidates:
            moved = torch.stack([c.vector for c in candidates if c.vector is not None])
            before = torch.stack([c.old for c in candidates if c.old is not None])
            stacks[group] = (candidates[0].kind, moved, before)
    return count_words(reader, lexicon, stacks, filter=filter, seed=seed)
