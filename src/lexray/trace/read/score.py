"""How probable a whole word is after a sequence, however many tokens it has."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lexray.edits.values import Edit
from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.result.readings import Scored, Source, Token
from lexray.result.table import Result, Table
from lexray.trace.record.prompt import read_prompts
from lexray.trace.recording import Recording


@dataclass(frozen=True)
class WordScore(Result):
    """The log-probability of each token of a word, given what comes before it."""

    source: Source
    tokens: tuple[Scored, ...]

    @property
    def log_probability(self) -> float:
        """Of the whole word, in nats."""
        return sum(scored.score for scored in self.tokens)

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)

    def tables(self) -> list[Table]:
        rows = tuple((s.token.shown, s.score, math.exp(s.score)) for s in self.tokens)
        word = "".join(scored.token.shown for scored in self.tokens)
        together = f"the whole word {self.probability:.3g} (log {self.log_probability:.3f})"
        return [
            Table(
                ("token", "log-probability", "probability"),
                rows,
                title=f"How probable {word} is",
                note=f"{self.source} · {together}",
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "log_probability": self.log_probability,
            "tokens": [scored.to_dict() for scored in self.tokens],
        }


def score(trace: Recording, word: str | int | Token | Sequence[int]) -> WordScore:
    """Runs the sequence once more with the word behind it."""
    from lexray.trace.record.run import record  # imports transformers

    model = trace.model
    if not model.architecture.causal:
        raise LexrayError(
            f"{model.name} predicts masked tokens, not the next ones, so a word cannot be scored "
            "after a sequence; trace.lens(target=…) reads single tokens"
        )
    ids = model.vocabulary.encode(word) if isinstance(word, str) else token_ids(word)
    if not ids:
        raise LexrayError(f"the word {word!r} has no tokens")
    n = len(trace)
    prompts = read_prompts(model, [*trace.ids.tolist(), *ids])
    (longer,) = record(
        model,
        prompts.ids,
        what="logits",
        layers=[model.n_layers - 1],
        positions=range(n - 1, n + len(ids) - 1),
        edits=cast("tuple[Edit, ...]", trace.edits),
    )
    logs = at_least_float32(longer.logits).log_softmax(-1)
    scored = (Scored(model.space.token(i), float(row[i])) for i, row in zip(ids, logs, strict=True))
    return WordScore(model.space.source("score"), tuple(scored))


def token_ids(word: Any) -> list[int]:
    """Token ids, of one token or several."""
    if isinstance(word, Token):
        return [word.id]
    try:
        return [operator.index(i) for i in (word if isinstance(word, Iterable) else [word])]
    except TypeError as error:
        raise LexrayError(f"a word is a text, a token or token ids, not {word!r}") from error
