"""A small byte-level vocabulary with awkward tokens, for the zoo's embeddings of 37 rows."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.model.model import Model
from lexray.vocabulary.sources import JsonSource
from lexray.vocabulary.vocabulary import Vocabulary
from tests.families.zoo import build

TOKENS = [
    *("law", "Ġlaw", "ĠLaw", "LAW", "laws", "Ġwalk", "walking", "Ġwalked"),
    *("<script>", "<b>bold</b>", "Ġ&amp;", "Ċ", "Ġ", "ð", "city", "Ġcities"),
    *"abcdefghijklmnopqrstuvwxyz",
]
"""`Ġ` is a leading space, `Ċ` a newline, `ð` the byte 0xf0."""


def vocabulary(n: int = 37, extra: tuple[str, ...] = ()) -> Vocabulary:
    """The first n tokens, and more after them; longer lists are filled up with `x0`, `x1`, …"""
    names = [*TOKENS, *(f"x{i}" for i in range(max(0, n - len(TOKENS))))][:n] + list(extra)
    tokenizer = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    data = json.dumps(json.loads(tokenizer.to_str())).encode()
    return Vocabulary(JsonSource("awkward tokens", lambda: data, None))


def worded(name: str, n: int = 37, extra: tuple[str, ...] = (), **options: Any) -> Model:
    """One of the zoo's models with these words."""
    return Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(n, extra), **options).view(
        "raw"
    )
