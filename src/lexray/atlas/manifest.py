"""The manifest of an atlas: of which model it is, how it was read, what is planned and done.

It comes from a folder that may be anybody's: every field is checked for its type and its bounds,
and no name of a file is taken that this lexray would not have given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any

from lexray import __version__
from lexray.atlas.make import Written
from lexray.atlas.options import AtlasOptions
from lexray.atlas.plan import Chunk, order_of
from lexray.atlas.schema import SCHEMA
from lexray.atlas.store import Store
from lexray.errors import LexrayError
from lexray.model.kept import each_bytes
from lexray.model.model import Model
from lexray.studies.shared.resume import weights_sample

MANIFEST = "manifest.json"
MOST_BYTES = 2**28
WHOLE = 2**33
"""Bytes of weights up to which all of them are looked at."""
SIZES = ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head", "d_mlp", "d_vocab")


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    model: str
    source: str
    """As the model was called when it was opened."""
    revision: str | None
    family: str
    fingerprint: str
    """Of the weights and the vocabulary."""
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    planned: frozenset[Chunk] = frozenset()
    files: Mapping[str, Written] = field(default_factory=dict)
    lexray: str = __version__
    schema: int = SCHEMA

    @classmethod
    def begin(cls, model: Model, options: AtlasOptions, source: str) -> Manifest:
        """For a new atlas."""
        return cls(
            model.name,
            source or model.name,
            model.checkpoint.revision,
            model.family.name,
            fingerprint(model),
            {name: int(getattr(model, name)) for name in SIZES},
            options.content(),
        )

    @classmethod
    def read(cls, store: Store) -> Manifest | None:
        """The one that is there, if there is one."""
        data = store.read(MANIFEST)
        return None if data is None else _parse(data, f"{store.where}: {MANIFEST}")

    def write(self, store: Store) -> None:
        store.write(MANIFEST, self.to_json().encode())

    def to_json(self) -> str:
        """Always the same for the same atlas."""
        said = {
            "lexray": self.lexray,
            "schema": self.schema,
            "model": self.model,
            "source": self.source,
            "revision": self.revision,
            "family": self.family,
            "fingerprint": self.fingerprint,
            "sizes": dict(self.sizes),
            "options": dict(self.options),
            "views": self.views,
            "planned": [chunk.name for chunk in sorted(self.planned, key=order_of)],
            "files": {name: _facts(self.files[name]) for name in sorted(self.files)},
        }
        return json.dumps(said, ensure_ascii=False, indent=1) + "\n"

    @property
    def views(self) -> list[str]:
        return sorted({chunk.view for chunk in self.planned if chunk.job != "tokens"})

    def join(self, other: Manifest, where: str) -> Manifest:
        """What is there (`self`) with what is to be written; raises where that is another's.

        Evidence may come later: a text is only another's if there was one.
        """
        here = dict(other.options)
        here["text"] = here["text"] or self.options["text"]
        joined = {**self.options, "text": self.options["text"] or here["text"]}
        other = replace(other, options=here)
        names = ("lexray", "schema", "model", "revision", "family", "fingerprint", "options")
        mine = replace(self, options=joined)
        differ = [name for name in names if getattr(mine, name) != getattr(other, name)]
        if not differ:
            return mine
        said = "; ".join(
            f"{name} {_say(getattr(self, name))} there, {_say(getattr(other, name))} here"
            for name in differ
        )
        raise LexrayError(
            f"{where} is another atlas ({said}); go on with the same model and options, or choose "
            "another folder"
        )

    def with_files(self, files: Mapping[str, Written]) -> Manifest:
        return replace(self, files=dict(files))


def _facts(written: Written) -> dict[str, Any]:
    facts = asdict(written)
    del facts["name"]
    return facts


def _say(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "…"


def fingerprint(model: Model) -> str:
    """A digest of the weights and the vocabulary, wherever they lie.

    Of weights that are not here, or of more than 8 GB, some numbers of every layer.
    """
    checkpoint = model.checkpoint
    names = sorted(checkpoint.names())
    digest = sha256(f"{model.family.name} {model.dtype}".encode())
    for name in names:
        digest.update(f"{name} {checkpoint.info(name)}".encode())
    digest.update(sample(model).encode())
    if not checkpoint.remote and sum(map(checkpoint.size, names)) <= WHOLE:
        for data in each_bytes(checkpoint, names):
            digest.update(data)
    return digest.hexdigest()


def sample(model: Model) -> str:
    """A quick look at the weights: whether somebody else has opened the same."""
    return weights_sample(model.view("raw")).hex()


def _parse(data: bytes, where: str) -> Manifest:
    try:
        if len(data) > MOST_BYTES:
            raise ValueError("it is too long")
        said = json.loads(data)
        schema = _count(said, "schema")
        if schema != SCHEMA:
            raise LexrayError(
                f"{where} has the schema {schema}, and this lexray ({__version__}) reads {SCHEMA}; "
                "write the atlas again"
            )
        return Manifest(
            **{name: _text(said, name) for name in ("model", "source", "family", "fingerprint")},
            revision=None if said["revision"] is None else _text(said, "revision"),
            sizes={name: _count(said["sizes"], name) for name in SIZES},
            options=_options(said["options"]),
            planned=frozenset(Chunk.parse(name) for name in _list(said, "planned")),
            files={name: _file(name, facts) for name, facts in _dict(said, "files").items()},
            lexray=_text(said, "lexray"),
            schema=SCHEMA,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LexrayError(f"{where} is no manifest of an atlas: {error}") from error


def _text(said: Any, name: str) -> str:
    value = said[name]
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError(f"its {name} is no text")
    return value


def _count(said: Any, name: str) -> int:
    value = said[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ValueError(f"its {name} is no number")
    return value


def _list(said: Any, name: str) -> list[Any]:
    if not isinstance(said[name], list):
        raise ValueError(f"its {name} is no list")
    return list(said[name])


def _dict(said: Any, name: str) -> dict[str, Any]:
    if not isinstance(said[name], dict):
        raise ValueError(f"its {name} is no mapping")
    return dict(said[name])


def _options(said: Any) -> dict[str, Any]:
    options: dict[str, Any] = {name: _count(said, name) for name in ("k", "directions", "links")}
    options["text"] = None if said["text"] is None else _text(said, "text")
    return options


def _file(name: str, facts: Any) -> Written:
    table, _, rest = name.partition("/")
    last = {"directions": "matrices", "pairs": "matrices", "heads": "roles"}
    last["agreement"] = "evidence"
    Chunk.parse(f"{last.get(table, table)}/{rest}")  # a name that none of ours has is refused
    return Written(name, _count(facts, "rows"), _count(facts, "size"), _text(facts, "sha256"))
