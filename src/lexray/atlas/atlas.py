"""`lx.Atlas`: a model that was read once, searched and compared without opening it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lexray.address import Address
from lexray.atlas import ask
from lexray.atlas.compare import Half, compare_places, is_alike, join_partners
from lexray.atlas.manifest import Manifest
from lexray.atlas.options import PARTS, AtlasOptions
from lexray.atlas.plan import Chunk, Job, order_of
from lexray.atlas.rows import Rows
from lexray.atlas.sql import Database
from lexray.atlas.store import Store
from lexray.atlas.write import write_atlas
from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.model.model import Model

End = Literal["top", "bottom"]
FIRST = ("standard", "raw")
LISTS = "address side legibility norm top_ids bottom_ids"
"""What people see of vectors."""


@dataclass(frozen=True, eq=False)
class Atlas:
    """What `lexray atlas MODEL -o DIR` has written.

    >>> atlas = lx.Atlas.write("demo", "DIR", kinds=["values", "keys"], layers=[3])
    >>> atlas = lx.Atlas("DIR")
    >>> atlas.parameters(" film", n=10)                 # who reads or writes it
    >>> atlas.search("good bad awful")                  # lists with several of these words
    >>> atlas.like("L3N17.value")                       # lists like this one
    >>> atlas.sql("select address, words(top_ids[:5]) from vectors where kind = 'value' limit 5")

    `view`: the one that answers where none is named; standard, if it is there. An atlas that is
    still being written can be read: `missing` says what is not there yet.
    """

    where: str | Path
    view: str = ""

    def __post_init__(self) -> None:
        if not self.view:
            views = [view for view in FIRST if view in self.manifest.views]
            object.__setattr__(self, "view", views[0] if views else "standard")
        elif self.view not in self.manifest.views:
            raise LexrayError(
                f"{self.where} has no view {self.view!r}; it has {', '.join(self.manifest.views)}"
            )

    @classmethod
    def write(
        cls,
        model: Model | str,
        where: str | Path,
        *,
        views: Sequence[str] = ("standard",),
        kinds: Sequence[str] = PARTS,
        layers: Some = None,
        k: int = 50,
        text: str | None = None,
        workers: int = 1,
        ray: str | None = None,
    ) -> Atlas:
        """Reads a model into a folder, or any address of fsspec's; goes on where it was left.

        `model`: open, or what `Model.from_pretrained` opens. The options: those of `lexray atlas`.
        """
        opened = Model.from_pretrained(model) if isinstance(model, str) else model
        chosen = None if layers is None else choose(layers, opened.n_layers, "layer")
        options = AtlasOptions(tuple(views), tuple(kinds), chosen, k, text=text)
        write_atlas(opened, str(where), options, workers=workers, ray=ray)
        return cls(where)

    # ------------------------------------------------------------------ what it is

    @cached_property
    def store(self) -> Store:
        return Store(str(self.where))

    @cached_property
    def manifest(self) -> Manifest:
        """Of which model it is, how it was read."""
        manifest = Manifest.read(self.store)
        if manifest is None:
            raise LexrayError(
                f"there is no atlas in {self.where}; `lexray atlas MODEL -o {self.where}` makes one"
            )
        return manifest

    @cached_property
    def there(self) -> list[Chunk]:
        """The chunks whose files were there when the atlas was opened."""
        names = self.store.names()
        planned = sorted(self.manifest.planned, key=order_of)
        return [chunk for chunk in planned if names.issuperset(chunk.names)]

    @cached_property
    def missing(self) -> list[str]:
        """The files that are planned and were not there yet."""
        left = set(self.manifest.planned).difference(self.there)
        return [chunk.name for chunk in sorted(left, key=order_of)]

    def holds(self, job: Job, *, kind: str | None = None, layer: int | None = None) -> bool:
        """Whether this view of it has something: a job (vectors, heads, roles …), of a kind of
        vectors, of a layer."""
        return any(
            chunk.job == job
            and chunk.view == self.view
            and kind in (None, chunk.kind)
            and layer in (None, chunk.layer)
            for chunk in self.there
        )

    @property
    def model(self) -> str:
        """The name of the model that was read."""
        return self.manifest.model

    def __repr__(self) -> str:
        missing = f", {len(self.missing)} files missing" if self.missing else ""
        views = ", ".join(self.manifest.views)
        return f"<Atlas {self.where} of {self.model}: {views}{missing}: .search(…), .sql(…)>"

    @cached_property
    def database(self) -> Database:
        return Database(self.store, self.there, self.missing)

    @cached_property
    def shown(self) -> list[str]:
        """All tokens as people read them, by id."""
        table = self.database.ask("SELECT coalesce(shown, '') AS shown FROM tokens ORDER BY id")
        return list(table["shown"].to_pylist())

    # ------------------------------------------------------------------ asking

    def sql(
        self, query: str, parameters: Sequence[Any] = (), *, seconds: float | None = None
    ) -> Rows:
        """The answer to a SELECT over the tables; `word(id)` and `words(ids)` show tokens.

        `atlas.sql("select layer, avg(norm) from vectors where kind = ? group by 1", ["key"])`

        Tables: tokens, vectors, index, matrices, pairs, directions, heads, roles, relations, links,
        evidence, agreement; docs/atlas.md has their columns. `seconds`: after these it is ended.
        """
        return self._rows(self.database.ask(query, parameters, seconds), "")

    def _rows(self, table: Any, title: str, note: str = "", people: str = "") -> Rows:
        said = [self.model, note]
        if self.missing:
            said.append(f"not finished: {len(self.missing):,} files are missing")
        return Rows(table, title, " · ".join(filter(None, said)), self.shown, people.split())

    def _ask(self, question: ask.Question, title: str, people: str = "") -> Rows:
        """`people`: the columns that they see, if not all."""
        table = self.database.ask(question.sql, question.parameters)
        return self._rows(table, title, self.view, people)

    # ------------------------------------------------------------------ by words

    def ids(self, word: str | int) -> list[int]:
        """The tokens that a word stands for: a token as it is shown or its text, or any form of a
        word that is none by itself (with a space before it, in other cases)."""
        ids = self._find(word)
        if not ids:
            raise LexrayError(f"{word!r} is no token of {self.model}; `.tokens()` has them all")
        return ids

    def _find(self, word: str | int) -> list[int]:
        ids: list[int] = self.database.ask(*ask.find_tokens(word))["id"].to_pylist()
        return ids

    def parameters(
        self,
        token: str | int,
        n: int = 50,
        *,
        end: End | None = None,
        kind: str | None = None,
        layer: int | None = None,
        by: Literal["rank", "score"] = "rank",
    ) -> Rows:
        """Who reads or writes a token: the lists that have it, where, and with which score.

        `end`: at the top of the list (what is promoted or sought) or at the bottom. `kind`: key,
        gate, value, Q, K, V, O, bias, norm, router.
        """
        ids = self.ids(token)
        shown = " ".join(self.shown[i] for i in ids)
        question = ask.find_parameters(self.view, ids, n, end, kind, layer, by)
        people = "address side token end rank score first_ids"
        return self._ask(question, f"Who has {shown} in its list", people)

    def search(
        self,
        words: str | Sequence[str | int],
        n: int = 30,
        *,
        end: End | None = None,
        kind: str | None = None,
        layer: int | None = None,
        legibility: float | None = None,
    ) -> Rows:
        """The lists with most of these words, high up; any form of a word counts.

        `legibility`: at least so legible.
        """
        wanted = words.split() if isinstance(words, str) else list(words)
        if not wanted:
            raise LexrayError("search for what? give words or tokens")
        forms = {str(word): self._find(word) for word in wanted}
        unknown = [word for word, ids in forms.items() if not ids]
        if len(unknown) == len(forms):
            raise LexrayError(f"none of {', '.join(map(repr, unknown))} is a token of {self.model}")
        known = {word: ids for word, ids in forms.items() if ids}
        question = ask.find_lists(self.view, known, n, end, kind, layer, legibility)
        people = "address side end found_ids ranks weight first_ids"
        rows = self._ask(question, f"Lists with {' '.join(known)}", people)
        if not unknown:
            return rows
        return replace(rows, note=f"{rows.note} · no tokens: {', '.join(unknown)}")

    def like(
        self,
        address: str | Address,
        n: int = 20,
        *,
        side: str | None = None,
        kind: str | None = None,
        other: Atlas | None = None,
        tokens: int = 20,
    ) -> Rows:
        """The lists that share most tokens with a parameter's, both ends counted; −1 is opposite.

        `other`: in the atlas of another model; tokens are matched by their texts. `tokens`: so many
        of either end of its own list.
        """
        own = self.vector(address, side=side)[0]
        among = self if other is None else other
        lists = {end: own[f"{end}_ids"][:tokens] for end in ("top", "bottom")}
        if other is not None:
            lists = {end: self._translate(ids, other) for end, ids in lists.items()}
        itself = own["address"] if other is None else None
        question = ask.find_like(among.view, lists, n, kind, itself)
        title = f"Lists like that of {own['address']} ({own['side']})"
        return among._ask(question, title, "address side alike first_ids shared_ids")

    def _translate(self, ids: Sequence[int], other: Atlas) -> list[int | None]:
        """The tokens of the same text in another vocabulary."""
        there = other._half.ids_of_text
        return [there.get(text) if (text := self.texts[i]) else None for i in ids]

    @cached_property
    def texts(self) -> list[str | None]:
        """All tokens' texts, by id."""
        return list(self.database.ask("SELECT text FROM tokens ORDER BY id")["text"].to_pylist())

    @cached_property
    def _half(self) -> Half:
        return Half(self.database, self.view, self.texts, self.shown)

    def compare(
        self,
        other: Atlas,
        n: int = 50,
        *,
        by: Literal["place", "words"] | None = None,
        kind: str | None = None,
        layer: int | None = None,
    ) -> Rows:
        """This atlas beside another, of another checkpoint of the model or of another model.

        By "place" (the default where both models have the same sizes) parameters of one address are
        compared: which share of their lists, and of heads' pairs, they have in common, the least
        first. By "words" the most legible vectors here stand beside those there whose lists are
        most like theirs, the most alike first. `kind` may be VO or QK, too, by place.
        """
        sizes = self.manifest.sizes, other.manifest.sizes
        title = f"{self.model} beside {other.model}"
        if (by or ("place" if is_alike(*sizes) else "words")) == "place":
            rows = compare_places(self._half, other._half, kind, layer, n)
            people = "address side shared norm other_norm top_ids other_words"
            return self._rows(rows, f"{title}: what changed most", self.view, people)
        owns = list(self.vectors(kind, layer, n=n, by="legibility"))
        found = (
            self.like(own["address"], 1, side=own["side"], kind=own["kind"], other=other)
            for own in owns
        )
        rows = join_partners(owns, list(found))
        people = "address side other other_side alike shared_words"
        return self._rows(rows, f"{title}: lists that are alike", self.view, people)

    # ------------------------------------------------------------------ tables

    def tokens(self) -> Rows:
        """Every token: text, norms, and why it is untrained, if it is."""
        return self.sql("SELECT * FROM tokens ORDER BY id")

    def vectors(
        self,
        kind: str | None = None,
        layer: int | None = None,
        *,
        owner: str | None = None,
        side: str | None = None,
        n: int | None = None,
        by: Literal["place", "legibility", "norm"] = "place",
    ) -> Rows:
        """Lists of vectors; `owner` is a head, a layer's feed-forward (L3) or an expert (L3E5)."""
        at = {"kind": kind, "layer": layer, "owner": owner, "side": side}
        return self._ask(ask.find_vectors(self.view, at, n, by), "Vectors as tokens", LISTS)

    def vector(
        self, address: str | Address, k: int | None = None, *, side: str | None = None
    ) -> Rows:
        """All lists of one vector (what a reader sees, and what it expects), or of one side; of a
        neuron (L3N17) those of its key, gate and value. `k`: of either end so many tokens."""
        text = str(address)
        for wanted in ask.owners_of(self.manifest.sizes, text):
            at = {**ask.place_of(wanted), "side": side}
            question = ask.find_vectors(self.view, at, None, "place", k)
            if len(rows := self._ask(question, f"{wanted} as tokens", LISTS)):
                return rows
        raise LexrayError(
            f"{text} is not in {self.where} (view {self.view}); vectors look like "
            "L3N17.value, L3H2.V12, L3.attn_norm"
        )

    def neurons(
        self,
        layer: int | None = None,
        n: int | None = 100,
        *,
        by: Literal["legibility", "norm", "place"] = "legibility",
    ) -> Rows:
        """Neurons with the norms and legibilities of key, gate and value, and their first words;
        first come those whose value reads best."""
        people = "address value_legibility key_ids gate_ids value_ids"
        return self._ask(ask.find_neurons(self.view, layer, n, by), "Neurons", people)

    def heads(self, layer: int | None = None) -> Rows:
        """Every head: what it does, and the norm, rank and legibility of its two matrices."""
        people = "address does vo_norm vo_legibility qk_norm qk_legibility"
        return self._ask(ask.find_heads(self.view, layer), "Heads", people)

    def pairs(
        self,
        address: str,
        circuit: Literal["VO", "QK"] | None = None,
        n: int | None = None,
        *,
        exclude_same: bool = False,
    ) -> Rows:
        """A head's best pairs; `exclude_same` leaves out a token with itself, upper and lower case
        and leading spaces aside."""
        head = ask.head_of(address)
        question = ask.find_pairs(self.view, head, circuit, n, exclude_same=exclude_same)
        return self._ask(question, f"Pairs of {head}", "circuit rank row col score")

    def directions(self, address: str, circuit: Literal["VO", "QK"] | None = None) -> Rows:
        """A head's singular directions, both ends."""
        head = ask.head_of(address)
        question = ask.find_of_head(self.view, "directions", head, circuit)
        people = "circuit rank singular share end top_ids bottom_ids"
        return self._ask(question, f"Singular directions of {head}", people)

    def relations(self, address: str | None = None, *, q: float = 0.01) -> Rows:
        """Heads and the relations between words that they hold, those that are no chance."""
        people = "relation address sign share chance q right"
        return self._ask(ask.find_relations(self.view, address, q), "Relations", people)

    def roles(self, role: str | None = None, *, address: str | None = None) -> Rows:
        """Heads with roles, or with one ("induction", "previous token", …), or those of a head."""
        people = "address role detail score chance q measured"
        return self._ask(ask.find_roles(self.view, role, address), "Roles", people)

    def links(self, address: str | None = None) -> Rows:
        """The strongest links of the model, or those of a head or neuron among them."""
        people = "writer reader via times strength writes reads"
        return self._ask(ask.find_links(self.view, address), "Links", people)

    def evidence(self, address: str) -> Rows:
        """Where a neuron or head was strongest in the text that the atlas was made with."""
        question = ask.find_evidence(self.view, "evidence", address)
        people = "part activation before token after looked_at wrote"
        return self._ask(question, f"Where {address} was strongest", people)

    def agreement(self, address: str) -> Rows:
        """How well readings tell where a neuron or head was strongest: areas, 0.5 is nothing."""
        question = ask.find_evidence(self.view, "agreement", address)
        return self._ask(question, f"Agreement of {address}")
