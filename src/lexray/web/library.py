"""What is served: some models and atlases, each under a name; nothing else can be reached."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.format import show_model
from lexray.web.expression import spell

if TYPE_CHECKING:  # DuckDB comes with an extra of its own
    from lexray.atlas.atlas import Atlas
else:
    Atlas = Any

TAKEN = frozenset({"static", "runs", "favicon.ico"})
"""Names that pages of the app have."""
USUAL = (None, False, "cpu")
"""Options that say nothing."""
IMPORT = "import lexray as lx\n"


class NotServedError(LexrayError):
    """A name that nothing is served under."""


@dataclass(frozen=True)
class Opening:
    """How a model is opened: by Python and on the command line alike."""

    source: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, source: str, options: Mapping[str, Any]) -> Opening:
        """With those of the options that say something; a dtype by its name."""
        said = {key: value for key, value in options.items() if value not in USUAL}
        if said.get("dtype") is not None and not _is_dtype(said["dtype"]):
            raise LexrayError(f"unknown dtype {said['dtype']!r}; try float32, bfloat16 or float16")
        return cls(source, tuple(said.items()))

    @property
    def python(self) -> str:
        """As it is called; a dtype needs torch."""
        given = [spell(self.source)]
        for key, value in self.options:
            given.append(f"{key}=torch.{value}" if key == "dtype" else f"{key}={spell(value)}")
        return f"lx.Model.from_pretrained({', '.join(given)})"

    @property
    def imports(self) -> str:
        """What has to be imported for that."""
        return "import torch\n\nimport lexray as lx\n" if "dtype" in dict(self.options) else IMPORT

    @property
    def words(self) -> list[str]:
        """What stands for it on the command line."""
        found = [self.source]
        for key, value in self.options:
            found += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        return found

    def open(self) -> Model:
        options = dict(self.options)
        if "dtype" in options:
            options["dtype"] = getattr(torch, options["dtype"])
        return Model.from_pretrained(self.source, **options)


def _is_dtype(name: str) -> bool:
    kind = getattr(torch, name, None)
    return isinstance(kind, torch.dtype) and kind.is_floating_point and kind.itemsize > 1


@dataclass(eq=False)
class Served:
    """One model: opened when it is first needed, and used by one thread at a time."""

    slug: str
    opening: Opening
    atlas: Atlas | None = None
    """What was read once and is kept, if there is such a folder."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _model: Model | None = field(default=None, repr=False)

    @property
    def model(self) -> Model:
        if self._model is None:  # a page that looks at it does not wait for one that computes
            with self.lock:
                self._model = self._model or self.opening.open()
        return self._model

    @property
    def title(self) -> str:
        return show_model(self.opening.source)


class Library:
    """Those that were named when the app was started."""

    def __init__(self, served: Sequence[Served]) -> None:
        if not served:
            raise LexrayError("nothing to serve; name a model, as in `lexray serve demo`")
        self.served = tuple(served)

    @classmethod
    def of(cls, openings: Sequence[Opening]) -> Library:
        """Each under a name of its own, as short as can be."""
        taken: set[str] = set(TAKEN)
        found: dict[str, Served] = {}
        for given in openings:
            atlas = find_atlas(given.source)
            opening = given if atlas is None else replace(given, source=atlas.manifest.source)
            if atlas is not None and opening.source in found:
                found[opening.source].atlas = atlas
                continue
            slug = _free(slug_of(opening.source), taken)
            taken.add(slug)
            key = opening.source if opening.source not in found else slug
            found[key] = Served(slug, opening, atlas)
        return cls(list(found.values()))

    def __getitem__(self, slug: str) -> Served:
        for each in self.served:
            if each.slug == slug:
                return each
        there = ", ".join(each.slug for each in self.served)
        raise NotServedError(f"nothing is served as {slug!r}; there is {there}")

    def __iter__(self) -> Iterator[Served]:
        return iter(self.served)

    def __len__(self) -> int:
        return len(self.served)


def find_atlas(source: str) -> Atlas | None:
    """The atlas in a folder, if it holds one; a model's folder has no manifest."""
    if not (Path(source) / "manifest.json").is_file():
        return None
    try:
        from lexray.atlas.atlas import Atlas
    except ModuleNotFoundError as error:
        raise LexrayError(
            f"an atlas needs {error.name}; install it with `pip install 'lexray[atlas]'`"
        ) from error
    return Atlas(source)


def slug_of(source: str) -> str:
    """A model's name as it stands in an address: letters, digits, dots and dashes.

    >>> slug_of("openai-community/gpt2"), slug_of("/data/My Model/")
    ('gpt2', 'My-Model')
    """
    last = show_model(source).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:60] or "model"


def _free(slug: str, taken: set[str]) -> str:
    if slug not in taken:
        return slug
    return next(f"{slug}-{n}" for n in range(2, len(taken) + 3) if f"{slug}-{n}" not in taken)


def view_of(model: Model, view: str, offset: int) -> Model:
    """The model as a page wants it read."""
    named = model.view("raw") if view == "raw" else model
    return named.view(offset=offset) if offset else named
