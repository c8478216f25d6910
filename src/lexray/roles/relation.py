"""Relations between words: lists of pairs that come along, or a user's own."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lexray.errors import LexrayError
from lexray.files import open_text

ARROW = re.compile(r"\s*(?:→|->|=>)\s*")
K = 10
"""Among so many of the best tokens of a row a target has to be."""
FILES = (".csv", ".tsv", ".json")


@dataclass(frozen=True)
class Relation:
    """Pairs of words, such as countries and their capitals.

    >>> Relation("capital", (("France", "Paris"), ("Japan", "Tokyo")))
    """

    name: str
    pairs: tuple[tuple[str, str], ...]
    title: str = ""
    k: int = K

    def __post_init__(self) -> None:
        if len(self.pairs) < 2:
            raise LexrayError(f"the relation {self.name!r} needs at least two pairs of words")
        if self.k < 1:
            raise LexrayError(f"the relation {self.name!r} asks for the top {self.k}; at least 1")
        if empty := [pair for pair in self.pairs if not all(word.strip() for word in pair)]:
            raise LexrayError(f"the relation {self.name!r} has a pair without a word: {empty[0]}")

    def __str__(self) -> str:
        return self.title or self.name


Given = str | Path | Relation | Mapping[str, Any]
"""A relation's name, a file, pairs as typed, or a mapping from words to words."""


@cache
def load_shipped() -> dict[str, Relation]:
    """The relations that come along, by name."""
    text = files("lexray.roles").joinpath("relations.json").read_text(encoding="utf-8")
    return {relation.name: relation for relation in _from_json(json.loads(text), "relations.json")}


def relations_of(given: Given | Sequence[Given] | None) -> tuple[Relation, ...]:
    """All that were asked for; nothing asked for is everything that comes along.

    >>> relations_of(["capital", "France→Paris,Japan→Tokyo"])
    """
    if given is None:
        return tuple(load_shipped().values())
    asked = [given] if isinstance(given, str | Path | Relation | Mapping) else list(given)
    if not asked:
        raise LexrayError(f"no relation was asked for; there are {', '.join(load_shipped())}")
    relations = [relation for each in asked for relation in _find(each)]
    names = [relation.name for relation in relations]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LexrayError(f"two relations have the same name: {', '.join(twice)}")
    return tuple(relations)


def _find(given: Given) -> Iterable[Relation]:
    if isinstance(given, Relation):
        return [given]
    if isinstance(given, Mapping):
        return _from_json(given, "the given relation")
    text = str(given)
    if isinstance(given, str):
        if given in load_shipped():
            return [load_shipped()[given]]
        if by_title := [r for r in load_shipped().values() if r.title == given]:
            return by_title
        if ARROW.search(given):
            return [parse_pairs(given)]
    if text.lower().endswith(FILES):
        return read_relations(Path(text))
    raise LexrayError(
        f"there is no relation {text!r}; there are {', '.join(load_shipped())}; or a "
        f"{', '.join(FILES)} file of your own; or pairs: France→Paris,Japan→Tokyo"
    )


def parse_pairs(text: str) -> Relation:
    """Pairs as one types them: `France→Paris,Japan→Tokyo`; `->` and `=>` are arrows too."""
    parts = [part for part in text.split(",") if part.strip()]
    pairs = [ARROW.split(part.strip()) for part in parts]
    for part, pair in zip(parts, pairs, strict=True):
        if len(pair) != 2:
            raise LexrayError(f"{part.strip()!r} is no pair such as France→Paris")
    name = text.strip() if len(text) <= 40 else f"{text.strip()[:39]}…"
    return Relation(name, tuple((a, b) for a, b in pairs))


def read_relations(path: Path) -> list[Relation]:
    """The relations of a file.

    .csv and .tsv: a source and a target a line, and in a third column the relation's name, if
    there are several. .json: `[["France", "Paris"], …]`, `{"France": "Paris", …}`, or several of
    them by name; `{"pairs": …, "k": 1}` says among how many of the best a target has to be.
    """
    with open_text(path) as stream:
        try:
            if path.suffix.lower() == ".json":
                return _from_json(json.load(stream), path.stem)
            tabs = path.suffix.lower() == ".tsv"
            rows = list(csv.reader(stream, delimiter="\t" if tabs else ","))
        except (json.JSONDecodeError, csv.Error, UnicodeDecodeError, RecursionError) as error:
            raise LexrayError(f"{path} cannot be read as relations: {error}") from error
    return _from_rows(path, [row for row in rows if any(cell.strip() for cell in row)])


def _from_rows(path: Path, rows: list[list[str]]) -> list[Relation]:
    by_name: dict[str, list[tuple[str, str]]] = {}
    for n, row in enumerate(rows, 1):
        if len(row) not in (2, 3):
            raise LexrayError(
                f"{path}, line {n}: {len(row)} columns; a source, a target, and perhaps a name"
            )
        if n == 1 and [cell.strip().lower() for cell in row[:2]] == ["source", "target"]:
            continue
        by_name.setdefault(row[2].strip() if len(row) == 3 else path.stem, []).append(
            (row[0], row[1])
        )
    return [Relation(name, tuple(pairs)) for name, pairs in by_name.items()]


def _from_json(value: Any, name: str) -> list[Relation]:
    if isinstance(value, list):
        return [_one(name, value)]
    if not isinstance(value, Mapping) or not value:
        raise LexrayError(f"{name} holds no relations: neither pairs nor names with pairs")
    if "pairs" in value or all(isinstance(target, str) for target in value.values()):
        return [_one(name, value)]
    return [_one(str(key), inner) for key, inner in value.items()]


def _one(name: str, value: Any) -> Relation:
    k, title = K, ""
    if isinstance(value, Mapping) and "pairs" in value:
        k, title, value = value.get("k", K), str(value.get("title", "")), value["pairs"]
    listed = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(listed, list) or not isinstance(k, int):
        raise LexrayError(f"the relation {name!r} is no list of pairs of words")
    for pair in listed:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not _are_words(pair):
            raise LexrayError(f"the relation {name!r} has {pair!r} where two words should be")
    return Relation(name, tuple((str(a), str(b)) for a, b in listed), title, k)


def _are_words(pair: Sequence[Any]) -> bool:
    return all(isinstance(word, str | int) for word in pair)
