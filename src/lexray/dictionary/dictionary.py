"""A dictionary of features: a sparse autoencoder or a transcoder, beside the model it belongs to.

A feature reads with its encoder vector, its key, and writes its decoder vector, its value; both
are read as a neuron's are. Its address is `L12F345`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.dictionary.encode import Encoder
from lexray.dictionary.files import FeatureMatrix, StoredDictionary, open_files
from lexray.dictionary.space import FeatureSpace, UsualFeatures
from lexray.errors import LexrayError
from lexray.find.given import is_vector, rows_of
from lexray.find.hits import Searched
from lexray.find.lookup import By, Lookup, groups_of, lookup, lookup_vector
from lexray.find.nearest import Nearest, nearest_to
from lexray.model import fold
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.result.readings import NamedReadings, Reading, Readings
from lexray.space.kinds import Kind
from lexray.trace.evidence.result import Evidence
from lexray.trace.evidence.vectors import feature_evidence, sample
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace
from lexray.vocabulary.filters import Filter, FilterLike, read_filter

FEATURES_AT_ONCE = 1024
Part = Literal["key", "value"]
PARTS: dict[str, Part] = {"values": "value", "keys": "key"}


@dataclass(frozen=True)
class FeatureVector:
    """A feature's key (encoder) or value (decoder)."""

    dictionary: Dictionary
    index: int
    kind: Part

    @property
    def address(self) -> str:
        return f"L{self.dictionary.layer}F{self.index}.{self.kind}"

    @property
    def tensor(self) -> Float[Tensor, "d_model"]:
        return self.dictionary.rows(self.kind, self.index, self.index + 1)[0]

    @property
    def space(self) -> FeatureSpace:
        return self.dictionary.space

    def top(self, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """Its k largest and k smallest tokens."""
        filter = read_filter(filter)
        x = self.tensor[None]
        (reading,) = self.space.readings(x, self.kind, [self.address], k, filter)
        return reading

    def __repr__(self) -> str:
        return f"<{self.kind} {self.address} of {self.dictionary.name}: .top()>"


@dataclass(frozen=True)
class Feature:
    """One feature: it reads with its key and writes its value."""

    dictionary: Dictionary
    index: int

    @property
    def address(self) -> str:
        return f"L{self.dictionary.layer}F{self.index}"

    @property
    def key(self) -> FeatureVector:
        """The encoder's vector."""
        self.dictionary.matrix("key")
        return FeatureVector(self.dictionary, self.index, "key")

    @property
    def value(self) -> FeatureVector:
        """The decoder's vector."""
        return FeatureVector(self.dictionary, self.index, "value")

    def top(self, k: int = 30, *, filter: FilterLike = None) -> NamedReadings:
        """Key and value as tokens."""
        filter = read_filter(filter)
        there = [self.value] if self.dictionary.stored.encoder is None else [self.key, self.value]
        read = tuple(vector.top(k, filter=filter) for vector in there)
        return NamedReadings(self.dictionary.space.source(self.address, filter), read)

    def activations(self, trace: Trace) -> Float[Tensor, "p"]:
        """How active it is at each position of a trace."""
        return self.dictionary.activations(trace)[:, self.index]

    def evidence(self, text: str | None = None, n: int = 10) -> Evidence:
        """Where it is strongest in running text, and whether its key and value tell where; see
        `lexray.model.model.Model.evidence`."""
        dictionary, chosen = self.dictionary, [self.index, *self._others()]

        def active(layer: LayerTrace, some: Sequence[int]) -> Float[Tensor, "p n"]:
            x: Tensor = getattr(layer, dictionary.encoder.point)
            return dictionary.encoder.active(x)[:, list(some)]

        there: tuple[Part, ...] = ("key", "value") if dictionary.stored.encoder else ("value",)
        vectors: dict[Kind, Callable[[int], Tensor]] = {
            kind: partial(self._vector, kind) for kind in there
        }
        return feature_evidence(
            dictionary.model,
            self.address,
            dictionary.layer,
            dictionary.space,
            active,
            vectors,
            chosen,
            text,
            n,
        )

    def _others(self) -> list[int]:
        return sample(len(self.dictionary), self.index, self.address)

    def _vector(self, kind: Part, index: int) -> Float[Tensor, "d_model"]:
        return self.dictionary.rows(kind, index, index + 1)[0]

    def nearest(self, n: int = 20, *, among: Sequence[str] = ("features",)) -> Nearest:
        """What reads most like its value: other features, or the model's values, keys, …"""
        return self.dictionary.nearest(self.value, n, among=among)

    def __repr__(self) -> str:
        return f"<Feature {self.address} of {self.dictionary.name}: .top()>"


@dataclass(frozen=True)
class Features:
    """Some features' keys or values, as a search goes through them."""

    dictionary: Dictionary
    kind: Part
    start: int
    n: int

    @property
    def tensor(self) -> Float[Tensor, "n d_model"]:
        return self.dictionary.rows(self.kind, self.start, self.start + self.n)

    def blocks(self) -> Iterator[Float[Tensor, "n d_model"]]:
        """All of them: they are few enough."""
        yield self.tensor

    @property
    def space(self) -> FeatureSpace:
        return self.dictionary.space

    def address_of(self, i: int) -> str:
        return self[i].address

    def __getitem__(self, index: int) -> FeatureVector:
        return FeatureVector(self.dictionary, self.start + index, self.kind)


class Dictionary:
    """The features of one layer of a model: `dictionary["L8F345"].top(10)`."""

    def __init__(self, model: Anatomy, stored: StoredDictionary, layer: int) -> None:
        self.model, self.stored, self.layer = model, stored, layer
        self.encoder = Encoder(stored)
        self.name = str(stored.path)
        self._usual = UsualFeatures(self._blocks)

    @classmethod
    def open(cls, path: str | Path, model: Anatomy, *, layer: int | None = None) -> Dictionary:
        """From a SAELens folder (`cfg.json`, `sae_weights.safetensors`) or a safetensors file.

        `layer` is needed where neither the config nor the file's name says it.
        """
        stored = open_files(path, model.d_model)
        at = stored.layer if layer is None else layer
        if at is None:
            raise LexrayError(f"{path} does not say which layer it belongs to; say layer=…")
        model.layers[at]
        dictionary = cls(model, stored, at)
        dictionary.encoder.point  # noqa: B018  a place that no trace has is refused at once
        return dictionary

    def view(self, *name: Any, **changes: Any) -> Dictionary:
        """The same features, read differently; see `Model.view`."""
        other = Dictionary(self.model.view(*name, **changes), self.stored, self.layer)
        other._usual = self._usual
        return other

    def __len__(self) -> int:
        return self.stored.n

    def __getitem__(self, address: int | str | Address) -> Any:
        """A feature, by number or address: `[345]`, `["L12F345"]`; `["L12F345.value"]` a vector."""
        if isinstance(address, int):
            return self._feature(address)
        at = address if isinstance(address, Address) else Address.parse(address)
        if at.feature is None or at.layer != self.layer:
            raise LexrayError(
                f"{at} is no feature of {self.name}; those are L{self.layer}F0 to "
                f"L{self.layer}F{len(self) - 1}"
            )
        feature = self._feature(at.feature)
        return feature if at.vector is None else getattr(feature, at.vector)

    def _feature(self, index: int) -> Feature:
        if not 0 <= index < len(self):
            raise LexrayError(f"there is no feature {index}: {self.name} has 0–{len(self) - 1}")
        return Feature(self, index)

    # ------------------------------------------------------------------ its vectors

    @cached_property
    def space(self) -> FeatureSpace:
        """Where its features are read as words, under the model's view."""
        return FeatureSpace(self.model, self.layer, self._usual)

    def matrix(self, kind: Part) -> FeatureMatrix:
        """The encoder or the decoder."""
        matrix = self.stored.encoder if kind == "key" else self.stored.decoder
        if matrix is None:
            raise LexrayError(f"{self.name} has no encoder: its features have values only")
        return matrix

    def rows(self, kind: Part, start: int, stop: int) -> Float[Tensor, "some d_model"]:
        """Some features' keys or values; only these are read.

        Where the encoder reads what a norm gives, the norm's gain is folded in, as in keys.
        """
        rows = self.model.place(self.matrix(kind).rows(start, stop))
        if kind == "value" or not (self.encoder.gained and self.model.options.folded):
            return rows
        norm = self.model.architecture.blocks[self.layer].ff.pre_norm
        return fold.reader(rows.T, norm, self.model.checkpoint).to(rows.device).T

    def _blocks(self, kind: Part) -> Iterator[Float[Tensor, "_ d_model"]]:
        for start in range(0, len(self), FEATURES_AT_ONCE):
            yield self.rows(kind, start, min(start + FEATURES_AT_ONCE, len(self)))

    def groups(self, kind: Part) -> tuple[Searched, ...]:
        """All keys or values, some at a time."""
        self.matrix(kind)
        return tuple(
            Features(self, kind, start, min(FEATURES_AT_ONCE, len(self) - start))
            for start in range(0, len(self), FEATURES_AT_ONCE)
        )

    def top(
        self,
        k: int = 10,
        *,
        of: Part = "value",
        features: Sequence[int] | None = None,
        filter: FilterLike = None,
    ) -> Readings:
        """Many features' values (or keys), a line each; all of them unless `features` are named."""
        filter = read_filter(filter)
        chosen = range(len(self)) if features is None else features
        read = partial(self._read, of, k, filter)
        lines = tuple(track(map(read, chosen), len(chosen), f"reading {len(chosen)} features"))
        title = f"{self.name}: {of}s of {len(chosen)} features"
        return Readings(self.space.source(f"L{self.layer}", filter), lines, title)

    def _read(self, of: Part, k: int, filter: Filter | None, index: int) -> Reading:
        vector: FeatureVector = getattr(self._feature(index), of)
        return vector.top(k, filter=filter)

    # ------------------------------------------------------------------ search and activity

    def lookup(
        self, words: Any, among: str | Sequence[str] = "values", *, by: By = "standard"
    ) -> Lookup:
        """Which features write some words, respond to them (among keys), or are like a vector."""
        groups = self.choose_groups([among] if isinstance(among, str) else among)
        if is_vector(words):
            rows, _ = rows_of(self.model, words)
            return lookup_vector(self.model, rows[0], among, by=by, groups=groups)
        return lookup(self.model, words, among, by=by, groups=groups)

    def choose_groups(self, among: Sequence[str]) -> tuple[Searched, ...]:
        """The features' values, keys, or both."""
        for name in among:
            if name not in PARTS:
                raise LexrayError(f"features have no {name!r}; there are {', '.join(PARTS)}")
        return tuple(group for name in among for group in self.groups(PARTS[name]))

    def nearest(
        self,
        feature: int | str | FeatureVector,
        n: int = 20,
        *,
        among: Sequence[str] = ("features",),
    ) -> Nearest:
        """What reads most like a feature: other features, or the model's values, keys, Q, …"""
        own = feature if isinstance(feature, FeatureVector) else self[feature]
        target = own.value if isinstance(own, Feature) else own
        groups = [*self.groups(target.kind)] if "features" in among else []
        names = [name for name in among if name != "features"]
        groups += groups_of(self.model, names) if names else []
        return nearest_to(self.model, target, groups, among, n, 10, target.address)

    def activations(self, trace: Trace) -> Float[Tensor, "p n_features"]:
        """Every feature's activation at each position of a trace."""
        return self.encoder.active(getattr(trace[self.layer], self.encoder.point))

    def __repr__(self) -> str:
        return (
            f"<Dictionary {self.name}: {len(self)} features of layer {self.layer} "
            f"of {self.model.name}, {self.encoder.point}: [0].top()>"
        )
