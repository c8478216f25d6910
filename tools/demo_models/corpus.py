"""The tokenised training reviews, made once and kept in the work folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from demo_models.data import Tokens, encode, read_reviews, split_training, train_tokenizer
from demo_models.recipe import END_OF_TEXT


@dataclass(frozen=True)
class Corpus:
    """The vocabulary and the training reviews in it."""

    tokenizer: Tokenizer
    train: list[Tokens]
    held_out: list[Tokens]

    @property
    def end_of_text(self) -> int:
        """The id of the token between reviews."""
        return int(self.tokenizer.token_to_id(END_OF_TEXT))


def load_corpus(data: Path, work: Path) -> Corpus:
    """The corpus from `work`, made from `data` first where it is not there yet."""
    work.mkdir(parents=True, exist_ok=True)
    vocabulary, tokens = work / "tokenizer.json", work / "corpus.npz"
    if not vocabulary.exists() or not tokens.exists():
        train, held_out = split_training(read_reviews(data / "imdb-train.jsonl.gz"))
        tokenizer = train_tokenizer(train)
        tokenizer.save(str(vocabulary))
        _save(tokens, train=encode(tokenizer, train), held_out=encode(tokenizer, held_out))
    with np.load(tokens) as arrays:
        train_tokens, held_out_tokens = (
            np.split(arrays[name], arrays[f"{name}_ends"][:-1]) for name in ("train", "held_out")
        )
    return Corpus(Tokenizer.from_file(str(vocabulary)), train_tokens, held_out_tokens)


def _save(path: Path, **splits: list[Tokens]) -> None:
    """Write lists of documents as one array of tokens and one of ends each."""
    arrays: dict[str, np.ndarray] = {}
    for name, documents in splits.items():
        arrays[name] = np.concatenate(documents)
        arrays[f"{name}_ends"] = np.cumsum([len(document) for document in documents])
    np.savez_compressed(path, allow_pickle=False, **arrays)
