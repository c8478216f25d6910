"""Mistral's `tekken.json`: bytes of tokens in the order of their merging, special tokens before.

As in https://github.com/mistralai/mistral-common (`tokens/tokenizers/tekken.py`): the first
`default_num_special_tokens` ids are special, ranks follow, up to `default_vocab_size`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from lexray.checkpoint.fields import Fields, text, whole
from lexray.checkpoint.plain import read_json
from lexray.errors import LexrayError
from lexray.vocabulary.gguf import CONTROL, NORMAL, GgufSource
from lexray.vocabulary.text import byte_letters

FIRST = ("<unk>", "<s>", "</s>")
"""The special tokens of files that do not list theirs; the others have no texts there."""
MOST = 1_000_000
"""Tokens; the files so far have 131,072."""


def tekken_source(path: Path) -> GgufSource:
    """The tokenizer in a `tekken.json`."""
    fields = Fields(read_json(path), str(path))
    config = fields.object("config")
    size, special = config.whole("default_vocab_size"), config.whole("default_num_special_tokens")
    if size is None or special is None or not 0 <= special < size <= MOST:
        raise LexrayError(f"{path} does not say how many tokens it has, and how many are special")
    ranks = [_bytes(entry, path) for entry in fields.listing("vocab")[: size - special]]
    return GgufSource(_Metadata(_special(fields, special), ranks), str(path))


def _bytes(entry: Any, path: Path) -> bytes:
    data = text(entry.get("token_bytes")) if isinstance(entry, dict) else None
    try:
        return b64decode(data or "", validate=True)
    except ValueError as error:
        raise LexrayError(f"{path}: a token's bytes cannot be read: {error}") from error


def _special(fields: Fields, count: int) -> list[str]:
    """Their texts by id; `<SPECIAL_17>` for one without, as mistral-common has it."""
    names = [f"<SPECIAL_{i}>" for i in range(count)]
    names[: len(FIRST)] = FIRST[:count]
    for entry in fields.listing("special_tokens"):
        rank = whole(entry.get("rank")) if isinstance(entry, dict) else None
        name = text(entry.get("token_str")) if isinstance(entry, dict) else None
        if rank is not None and name and 0 <= rank < count:
            names[rank] = name
    return names


class _Metadata(Mapping[str, Any]):
    """The same lists under GGUF's names; merges are found when somebody encodes."""

    def __init__(self, special: list[str], ranks: list[bytes]) -> None:
        self._ranks = ranks
        self._known: dict[str, Any] = {
            "model": "gpt2",
            "pre": "tekken",
            "tokens": [*special, *map(byte_letters, ranks)],
            "token_type": [CONTROL] * len(special) + [NORMAL] * len(ranks),
            "bos_token_id": special.index("<s>") if "<s>" in special else None,
            "eos_token_id": special.index("</s>") if "</s>" in special else None,
        }

    def __getitem__(self, key: str) -> Any:
        name = key.removeprefix("tokenizer.ggml.")
        return self._merges if name == "merges" else self._known[name]

    def __iter__(self) -> Iterator[str]:
        return (f"tokenizer.ggml.{name}" for name in (*self._known, "merges"))

    def __len__(self) -> int:
        return len(self._known) + 1

    @cached_property
    def _merges(self) -> list[str]:
        """Every way to make a token of two earlier ones, in the order of the tokens."""
        rank = {token: i for i, token in reversed([*enumerate(self._ranks)])}
        merges = []
        for i, token in enumerate(self._ranks):
            cuts = ((token[:n], token[n:]) for n in range(1, min(len(token), 256)))
            ways = [(a, b) for a, b in cuts if rank.get(a, i) < i and rank.get(b, i) < i]
            ways.sort(key=lambda way: (rank[way[0]], rank[way[1]]))
            merges += [f"{byte_letters(a)} {byte_letters(b)}" for a, b in ways]
        return merges
