"""What the models have to beat: word counts, for the next token and for the sentiment."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from demo_models.data import Review, Tokens

Floats = NDArray[np.float64]

DISCOUNTS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
STRENGTHS = (0.3, 1.0, 3.0, 10.0)


class Unigram:
    """The log-probability of a token whatever stands before it; every count is raised by one."""

    def __init__(self, stream: Tokens, size: int) -> None:
        counts = np.bincount(stream, minlength=size) + 1.0
        self.log_p: Floats = np.log(counts / counts.sum())

    def score(self, tokens: Tokens) -> Floats:
        """Log-probabilities of `tokens[..., 1:]`."""
        return self.log_p[tokens[..., 1:]]


@dataclass(frozen=True)
class Bigram:
    """Interpolated Kneser–Ney: a discounted count of the pair, the rest by how many tokens a token
    follows."""

    counts: NDArray[np.int64]
    discount: float

    @classmethod
    def fit(cls, stream: Tokens, held_out: Tokens, size: int) -> "Bigram":
        """Count the pairs of `stream`; the discount is the best one on `held_out`."""
        pairs = stream[:-1].astype(np.int64) * size + stream[1:]
        counts = np.bincount(pairs, minlength=size * size).reshape(size, size)
        return max(
            (cls(counts, discount) for discount in DISCOUNTS),
            key=lambda one: float(one.score(held_out).mean()),
        )

    def score(self, tokens: Tokens) -> Floats:
        """Log-probabilities of `tokens[..., 1:]`, each after the token before it."""
        before, after = tokens[..., :-1], tokens[..., 1:]
        followed = (self.counts > 0).sum(0) + 1.0
        continuation = followed / followed.sum()
        types = (self.counts > 0).sum(1)
        totals = self.counts.sum(1)
        seen = np.maximum(self.counts[before, after] - self.discount, 0.0)
        spare = self.discount * types[before] * continuation[after]
        known = (seen + spare) / np.maximum(totals[before], 1)
        return np.log(np.where(totals[before] > 0, known, continuation[after]))


def bag_of_words_accuracy(train: list[Review], held_out: list[Review], test: list[Review]) -> float:
    """Test accuracy of a logistic regression on tf-idf words, its strength chosen on `held_out`."""
    words = TfidfVectorizer(min_df=2, sublinear_tf=True)
    x_train = words.fit_transform([review.text for review in train])
    x_held_out, x_test = (words.transform([r.text for r in part]) for part in (held_out, test))
    y_train, y_held_out, y_test = ([r.label for r in part] for part in (train, held_out, test))
    fitted = [LogisticRegression(C=c, max_iter=1000).fit(x_train, y_train) for c in STRENGTHS]
    best = max(fitted, key=lambda model: float(model.score(x_held_out, y_held_out)))
    return float(best.score(x_test, y_test))
