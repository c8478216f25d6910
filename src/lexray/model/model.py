"""A model: a checkpoint, what its tensors mean, its vocabulary, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.aside import SetAside, set_aside
from lexray.find.given import is_vector, kind_named, read_given, rows_of
from lexray.find.heads import HeadLookup, Heads
from lexray.find.lookup import By, Lookup, lookup, lookup_vector
from lexray.find.nearest import Nearest, nearest
from lexray.find.related import Related, related
from lexray.model.info import Info, info
from lexray.model.runs import Runs
from lexray.result.links import Links
from lexray.result.readings import Reading, Readings
from lexray.roles.card import Card, describe
from lexray.roles.catalogue import Catalogue, catalogue
from lexray.roles.composition import Composition, composition
from lexray.roles.neurons import NeuronRelations, neuron_relations
from lexray.roles.path import Path as WordPath
from lexray.roles.path import path
from lexray.roles.relation import Given
from lexray.roles.relations import relations
from lexray.roles.scores import Relations
from lexray.roles.wires import wires
from lexray.roles.wiring import readers, writers
from lexray.vocabulary.filters import FilterLike


class Model(Runs):
    """A language model whose parameters are read when they are asked for.

    >>> model = lx.Model.from_pretrained("demo")
    >>> model["L2H1"].W_V.shape                  # reads one head's slice, nothing else
    torch.Size([160, 32])
    >>> model.layers[3].ff.neurons[17].W_out     # the same as model["L3N17"].W_out
    """

    @property
    def heads(self) -> Heads:
        """All heads, and a search among them.

        >>> model.heads.top(5, rows=[" he", " his"], cols=[" she", " her"])
        """
        return Heads(self)

    @overload
    def lookup(self, words: Any, among: Literal["heads"]) -> HeadLookup: ...

    @overload
    def lookup(
        self,
        words: Any,
        among: str | Sequence[str] = "values",
        *,
        by: By = "standard",
        kind: str = "value",
    ) -> Lookup: ...

    def lookup(
        self,
        words: Any,
        among: str | Sequence[str] = "values",
        *,
        by: By = "standard",
        kind: str = "value",
    ) -> Lookup | HeadLookup:
        """Which parameters know about these words: `model.lookup(["cm", "kg", "inches"])`.

        `among` is values, keys, gates, Q, K, V or O, or several of them, or heads. A vector of the
        user's (see `read`) in place of words finds the parameters that read like it, as a `kind`.
        See `lexray.find.lookup.lookup`.
        """
        if among == "heads":
            return HeadLookup(self, [words] if isinstance(words, (str, int)) else words)
        if is_vector(words):
            rows, single = rows_of(self, words)
            if not single:
                raise LexrayError("lookup takes one vector at a time, not a matrix")
            return lookup_vector(self, self.place(rows[0]), among, kind=kind_named(kind), by=by)
        return lookup(self, words, among, by=by)

    def promotes(
        self, words: str | int | Sequence[str | int], among: str | Sequence[str] = ("values", "O")
    ) -> Lookup:
        """Which values and rows of W_O raise a word most, for their own lists: the largest scores.

        >>> model.promotes(" film").top(10)
        """
        return lookup(self, words, among)

    def suppresses(
        self, words: str | int | Sequence[str | int], among: str | Sequence[str] = ("values", "O")
    ) -> Lookup:
        """Which of them lower it most; where such a neuron is negative, it promotes the word."""
        return lookup(self, words, among, suppressed=True)

    def read(
        self,
        x: Any,
        kind: str = "value",
        layer: int | None = None,
        *,
        k: int = 30,
        filter: FilterLike = None,
    ) -> Reading | Readings:
        """Any direction of the residual stream as tokens: a probe, a steering vector, a difference.

        `x` is a tensor, an array or a list of d_model numbers, or a matrix with one such a row.
        `kind` says as what it is read: a value (what it writes) or a key (what it responds to), …

        >>> model.read(model["L2N3"].W_out - model["L2N4"].W_out, kind="value", layer=2)
        """
        return read_given(self, x, kind, layer, k=k, filter=filter)

    def related(
        self, k: int = 100, overlap: float = 0.15, *, read: Literal["key", "gate"] = "key"
    ) -> Related:
        """Feed-forward neurons whose key and value share tokens; see `lexray.find.related`."""
        return related(self, k, overlap, read=read)

    def nearest(self, address: str | Address, n: int = 20, *, among: Sequence[str] = ()) -> Nearest:
        """The most similar parameters anywhere in the model; see `lexray.find.nearest.nearest`."""
        return nearest(self, address, n, among=among)

    def relations(
        self,
        which: Given | Sequence[Given] | None = None,
        *,
        k: int | None = None,
        shuffled: int = 1000,
        seed: int = 0,
    ) -> Relations:
        """Which heads hold which relations between words; see `lexray.roles.relations`.

        `which` is some of those that come along ("capital", "past", …; all of them by default), a
        file, pairs as typed, or a mapping.

        >>> model.relations({"big": "bigger", "old": "older", "good": "better"}).best
        """
        return relations(self, which, k=k, shuffled=shuffled, seed=seed)

    def find_links(self, address: Address, n: int, via: str | None, *, reading: bool) -> Links:
        """What reads a part, or what writes for it: `model["L1N5"].readers()`, `.writers()`."""
        return (writers if reading else readers)(self, address, n, via=via)

    def describe_part(self, address: Address, *, measure: bool) -> Card:
        """One card for a head or neuron: `model["L2H1"].describe()`."""
        return describe(self, address, measure=measure)

    def catalogue(
        self, *, measure: bool = True, relations: Relations | None = None, seed: int = 0
    ) -> Catalogue:
        """All heads with their roles, from weights and (`measure`) from repeated random tokens.

        >>> model.catalogue(measure=False).having("previous token")
        """
        return catalogue(self, measure=measure, relations=relations, seed=seed)

    def wires(self, n: int = 100, *, via: Sequence[str] = ("key", "gate")) -> Links:
        """The strongest links from neurons to later neurons in the whole model."""
        return wires(self, n, via=via)

    def composition(self, n: int = 100, *, via: Sequence[str] = ("Q", "K", "V")) -> Composition:
        """Which heads feed which: all pairs, as matrices, and the n strongest."""
        return composition(self, n, via=via)

    def path(self, token: str | int, *chain: str, k: int = 10) -> WordPath:
        """What a token becomes along a chain of parameters.

        >>> model.path(" her", "L0H1", "L2H3.K")
        """
        return path(self, token, chain, k=k)

    def neuron_relations(self, which: Given | Sequence[Given] | None = None) -> NeuronRelations:
        """Which neurons read a relation's sources and write its targets."""
        return neuron_relations(self, which)

    def __repr__(self) -> str:
        a = self.architecture
        return (
            f"<Model {self.name}: {self.family.title}, {self.n_layers} layers × {a.n_heads} heads, "
            f"width {a.d_model}, {a.d_vocab} tokens, {self.options}: "
            '["L0H0"], .trace(prompt), .lookup(words), .info()>'
        )

    def untrained(self, text: str | None = None) -> SetAside:
        """The tokens that the standard view sets aside, and why; with a text's counts, to check.

        >>> model.untrained().counts
        {...}
        """
        return set_aside(self, text)

    def info(self) -> Info:
        """What it is, where its parameters live, and what reading one head costs."""
        return info(self)
