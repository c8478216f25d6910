"""What is served: some models and atlases, each under a name; nothing else can be reached."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.origin import Origin
from lexray.result.format import show_model
from lexray.web.expression import spell

if TYPE_CHECKING:  # DuckDB comes with an extra of its own
    from lexray.atlas.atlas import Atlas
else:
    Atlas = Any

Stamp = tuple[int, int] | None
TAKEN = frozenset({"static", "runs", "favicon.ico", "index.json"})
"""Names that pages of the app have."""


class NotServedError(LexrayError):
    """A name that nothing is served under."""


def spell_opening(origin: Origin) -> str:
    """How a model is opened, in Python."""
    given = [f"{key}={spell(value)}" for key, value in origin.options.items()]
    return f"lx.Model.from_pretrained({', '.join([spell(origin.source), *given])})"


def words_of(origin: Origin) -> list[str]:
    """The same on the command line."""
    words = [origin.source]
    for key, value in origin.options.items():
        words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    return words


@dataclass(eq=False)
class Served:
    """One model: opened when it is first needed, and used by one thread at a time."""

    slug: str
    origin: Origin
    atlas: Atlas | None = None
    """What was read once and is kept, if there is such a folder."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    lock_atlas: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _model: Model | None = field(default=None, repr=False)
    _views: dict[str, Atlas] = field(default_factory=dict, repr=False)
    """The atlas as each view sees it, opened once."""
    _stamp: Stamp = field(default=None, repr=False)

    @property
    def model(self) -> Model:
        if self._model is None:  # a page that looks at it does not wait for one that computes
            with self.lock:
                self._model = self._model or Model.reopen(self.origin)
        return self._model

    @cached_property
    def precision(self) -> str:
        """The dtype of its passes: found by a look at every tensor's, and so once."""
        return str(self.model.run_dtype).removeprefix("torch.")

    @property
    def stamp(self) -> Stamp:
        """When the atlas was last written to: what is read from it holds until then."""
        return None if self.atlas is None else self.atlas.store.stamp("manifest.json")

    def see_atlas(self, view: str) -> Atlas | None:
        """What is stored under a view; opened again when there is more of it."""
        if self.atlas is None:
            return None
        with self.lock_atlas:
            stamp = self.stamp
            if stamp != self._stamp:
                self.atlas, self._views, self._stamp = replace(self.atlas, view=""), {}, stamp
            if view not in self._views and view in self.atlas.manifest.views:
                self._views[view] = replace(self.atlas, view=view)
            return self._views.get(view)

    @property
    def title(self) -> str:
        return show_model(self.origin.source)


class Library:
    """Those that were named when the app was started."""

    def __init__(self, served: Sequence[Served]) -> None:
        if not served:
            raise LexrayError("nothing to serve; name a model, as in `lexray serve demo`")
        self.served = tuple(served)

    @classmethod
    def of(cls, origins: Sequence[Origin]) -> Library:
        """Each under a name of its own, as short as can be."""
        taken: set[str] = set(TAKEN)
        served: dict[str, Served] = {}
        for given in origins:
            atlas = find_atlas(given.source)
            origin = given if atlas is None else replace(given, source=atlas.manifest.source)
            if atlas is not None and origin.source in served:
                served[origin.source].atlas = atlas
                continue
            slug = _free(slug_of(origin.source), taken)
            taken.add(slug)
            key = origin.source if origin.source not in served else slug
            served[key] = Served(slug, origin, atlas)
        return cls(list(served.values()))

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
