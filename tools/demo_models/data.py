"""Reviews, the shared vocabulary, and batches of tokens.

Source: the Large Movie Review Dataset (2011), one JSON object with `label` and `text`
per line. The test reviews are read by the evaluation only.
"""

import html
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from demo_models.recipe import (
    BATCH,
    CONTEXT,
    END_OF_TEXT,
    HELD_OUT_REVIEWS,
    SPLIT_SEED,
    VOCABULARY_SIZE,
)
from lexray.files import read_json_lines

Tokens = NDArray[np.uint16]


@dataclass(frozen=True)
class Review:
    """One review as the models see it; label 1 is positive."""

    label: int
    text: str


def read_reviews(path: Path) -> list[Review]:
    """All reviews of a file, with HTML line breaks and entities turned into plain text."""
    return [Review(row["label"], plain_text(row["text"])) for _, row in read_json_lines(path)]


def plain_text(text: str) -> str:
    """A review without its markup."""
    return html.unescape(re.sub(r"<br\s*/?>", "\n", text)).strip()


def split_training(reviews: list[Review]) -> tuple[list[Review], list[Review]]:
    """The training reviews as (used for training, held out for the loss curve)."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(reviews))
    held_out = set(order[:HELD_OUT_REVIEWS].tolist())
    kept = [review for i, review in enumerate(reviews) if i not in held_out]
    return kept, [reviews[i] for i in sorted(held_out)]


def train_tokenizer(reviews: list[Review]) -> Tokenizer:
    """A GPT-2 style byte-level BPE vocabulary from these reviews."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((review.text for review in reviews), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, reviews: list[Review]) -> list[Tokens]:
    """The tokens of each review, without any end-of-text token."""
    encoded = tokenizer.encode_batch([review.text for review in reviews])
    return [np.array(one.ids, dtype=np.uint16) for one in encoded]


def join(documents: list[Tokens], end_of_text: int) -> Tokens:
    """One stream: an end-of-text token, then each document followed by one."""
    end = np.array([end_of_text], dtype=np.uint16)
    return np.concatenate([end, *(part for document in documents for part in (document, end))])


class Batches:
    """Batches of `CONTEXT` + 1 tokens as a function of the step, so that a run can resume anywhere.

    Each epoch shuffles the reviews, joins them, cuts the stream into blocks and shuffles those,
    all from (seed, epoch). A block's last token is the next one's first: as input there, as
    target here.
    """

    def __init__(self, documents: list[Tokens], end_of_text: int, seed: int) -> None:
        self.documents = documents
        self.end_of_text = end_of_text
        self.seed = seed
        tokens = 1 + sum(len(document) + 1 for document in documents)
        self.per_epoch = (tokens - 1) // CONTEXT // BATCH
        self._epoch = -1
        self._blocks = np.empty((0, CONTEXT + 1), dtype=np.uint16)

    def __getitem__(self, step: int) -> torch.Tensor:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._blocks = self._shuffled(epoch)
            self._epoch = epoch
        rows = self._blocks[index * BATCH : (index + 1) * BATCH]
        return torch.from_numpy(rows.astype(np.int64))

    def _shuffled(self, epoch: int) -> Tokens:
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.documents))
        blocks = cut(join([self.documents[i] for i in order], self.end_of_text))
        return blocks[rng.permutation(len(blocks))]


def cut(stream: Tokens) -> Tokens:
    """The stream as overlapping blocks of `CONTEXT` + 1 tokens; an incomplete last one is left."""
    count = (len(stream) - 1) // CONTEXT
    starts = np.arange(count)[:, None] * CONTEXT
    return stream[starts + np.arange(CONTEXT + 1)]
