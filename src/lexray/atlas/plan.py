"""The work of an atlas as a frozen list of chunks, each of which becomes a file or two.

The list follows from the model's headers and the options alone, so that everybody who works on an
atlas, whenever and wherever, has the same list; a chunk's content depends on nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from typing import Literal, get_args

from lexray.atlas.options import VECTOR_PARTS, AtlasOptions
from lexray.atlas.schema import NO_VIEW
from lexray.errors import LexrayError
from lexray.families import Attention
from lexray.model.groups import Group, attention_of, cross_groups, layer_groups
from lexray.model.weights import Weights
from lexray.space.kinds import EXPECTS, Kind
from lexray.view import VIEWS, View

Job = Literal[
    "tokens", "vectors", "others", "heads", "relations", "roles", "links", "evidence", "index"
]
Stack = Literal["", "enc", "cross"]
"""Of an encoder–decoder: the decoder, the encoder, or what reads the one for the other."""
FILES: dict[str, tuple[str, ...]] = {
    "heads": ("directions", "pairs", "matrices"),
    "roles": ("heads", "roles"),
    "others": ("vectors",),
    "evidence": ("agreement", "evidence"),
}
"""The tables that a job fills, if it is not the one of its own name; the last is written last."""
AT_ONCE = 4096
"""Vectors in a file."""
INDEXED_AT_ONCE = 2**23
"""Entries of the index in a file."""
NEURONS_AT_ONCE = 1024
SEARCHED = 0.06
"""The share of a head's token pairs that takes as long as its search, by the standard view."""
MEASURED_NEURON, MEASURED_HEAD = 8e4, 4e6
"""The same for one word of a text beside one neuron's readings, or one head's: sorting, mostly."""
NAME = re.compile(
    r"(?P<table>[a-z]+)/(?P<view>[a-z]+)/"
    r"(?P<kind>[A-Za-z]+)(?:-(?P<stack>enc|cross)?L(?P<layer>\d{3,6}))?"
    r"(?:-(?P<part>\d{2,6}))?(?:-(?P<mark>[0-9a-f]{8}))?"
    r"\.parquet"
)


@dataclass(frozen=True, order=True)
class Chunk:
    """One piece of work."""

    job: Job
    view: str
    kind: str = "all"
    layer: int | None = None
    part: int | None = None
    mark: str = ""
    """Of the index: what it is over."""
    stack: Stack = ""
    """In which part of an encoder–decoder the layer is."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its files, in the order in which they are written: the last says that it is done."""
        stem = self.kind
        stem += "" if self.layer is None else f"-{self.stack}L{self.layer:03d}"
        stem += "" if self.part is None else f"-{self.part:02d}"
        stem += f"-{self.mark}" if self.mark else ""
        tables = FILES.get(self.job, (self.job,))
        return tuple(f"{table}/{self.view}/{stem}.parquet" for table in tables)

    @property
    def name(self) -> str:
        return self.names[-1]

    @classmethod
    def parse(cls, name: str) -> Chunk:
        """The chunk whose last file has this name."""
        match = NAME.fullmatch(name) if isinstance(name, str) else None
        jobs: tuple[Job, ...] = get_args(Job)
        owners = {FILES.get(job, (job,))[-1]: job for job in jobs if job != "others"}
        if match is None or match["table"] not in owners or match["view"] not in (*VIEWS, NO_VIEW):
            raise LexrayError(f"{str(name)[:80]!r} is no file of an atlas")
        job: Job = owners[match["table"]]
        if job == "vectors" and match["kind"] == "others":
            job = "others"
        layer, part = (None if match[key] is None else int(match[key]) for key in ("layer", "part"))
        stack: Stack = match["stack"] or ""  # type: ignore[assignment]
        chunk = cls(job, match["view"], match["kind"], layer, part, match["mark"] or "", stack)
        if chunk.name != name:
            raise LexrayError(f"{name[:80]!r} is no file of an atlas")
        return chunk


def plan_chunks(model: Weights, options: AtlasOptions) -> list[Chunk]:
    """What the options ask for, the index left out, in the order in which it is worked on."""
    places = choose_places(model, options)
    chunks = [Chunk("tokens", NO_VIEW)]
    for view in dict.fromkeys(options.views):
        chunks += _plan_vectors(model, options, view, places)
        if "others" in options.kinds:
            chunks.append(Chunk("others", view, "others"))
        if "heads" in options.kinds:
            chunks += [Chunk("heads", view, layer=layer, stack=stack) for stack, layer in places]
        whole: tuple[Job, ...] = ("roles", "relations", "links")
        chunks += [Chunk(job, view) for job in whole if job in options.kinds]
        if options.text is not None:
            chunks += _plan_evidence(model, view, places)
    return chunks


def choose_places(model: Weights, options: AtlasOptions) -> list[tuple[Stack, int]]:
    """The layers that are asked for, those before 0 counted from the end; of an encoder–decoder
    the encoder's and the decoder's of these numbers, and the decoder's cross-attention."""
    most = max(stack.n_layers for stack in model.stacks)
    wanted = range(most) if options.layers is None else options.layers
    if wrong := [layer for layer in wanted if not -most <= layer < most]:
        raise LexrayError(f"there is no layer {wrong[0]}: {model.name} has 0–{most - 1}")
    places: list[tuple[Stack, int]] = []
    for stack in model.stacks:
        n = stack.n_layers
        for layer in sorted({layer % n for layer in wanted if -n <= layer < n}):
            places.append(("" if stack is model else "enc", layer))
            if stack.architecture.blocks[layer].cross is not None:
                places.append(("cross", layer))
    return places


def groups_at(model: Weights, stack: Stack, layer: int, kind: str) -> list[Group]:
    """The vectors of a kind; of cross-attention those that read the source."""
    known = _kind(kind)
    if stack == "cross":
        return cross_groups(model, layer, known) if known in ("K", "V") else []
    return layer_groups(model.encoder if stack else model, layer, known)


def attention_at(model: Weights, stack: Stack, layer: int) -> Attention:
    return attention_of(model.encoder if stack == "enc" else model, layer, cross=stack == "cross")


def _plan_vectors(
    model: Weights, options: AtlasOptions, view: str, places: Sequence[tuple[Stack, int]]
) -> Iterator[Chunk]:
    for stack, layer in places:
        for part, kind in VECTOR_PARTS.items():
            if part in options.kinds and (n := count_vectors(model, stack, layer, kind)):
                for at in range(ceil(n / AT_ONCE)):
                    yield Chunk("vectors", view, kind, layer, at, stack=stack)


def _plan_evidence(
    model: Weights, view: str, places: Sequence[tuple[Stack, int]]
) -> Iterator[Chunk]:
    """Of both stacks; one text says nothing of how a target looks at its source."""
    for stack, layer in [place for place in places if place[0] != "cross"]:
        n = count_vectors(model, stack, layer, "value")
        for at in range(ceil(n / NEURONS_AT_ONCE)):
            yield Chunk("evidence", view, "neurons", layer, at, stack=stack)
        yield Chunk("evidence", view, "heads", layer, stack=stack)


def plan_index(model: Weights, options: AtlasOptions, chunks: Iterable[Chunk]) -> list[Chunk]:
    """The index over all lists of vectors, for each view: some tokens in each file.

    Its name says what it is over: with more vectors, it is another.
    """
    by_view: dict[str, list[Chunk]] = {}
    for chunk in sorted(chunks, key=order_of):
        if chunk.job in ("vectors", "others"):
            by_view.setdefault(chunk.view, []).append(chunk)
    planned = []
    for view, over in by_view.items():
        entries = 2 * options.k * sum(count_lists(model, chunk) for chunk in over)
        parts = max(1, ceil(entries / INDEXED_AT_ONCE))
        mark = sha256("\n".join([str(parts), *(c.name for c in over)]).encode()).hexdigest()[:8]
        planned += [Chunk("index", view, "tokens", None, at, mark) for at in range(parts)]
    return planned


def order_of(chunk: Chunk) -> tuple[str, str, int, str, int, str, str]:
    """By what it is about: the order in which files are listed and read."""
    layer = -1 if chunk.layer is None else chunk.layer
    part = -1 if chunk.part is None else chunk.part
    return chunk.job, chunk.view, layer, chunk.kind, part, chunk.mark, chunk.stack


def count_vectors(model: Weights, stack: Stack, layer: int, kind: str) -> int:
    return sum(group.n for group in groups_at(model, stack, layer, kind))


def _kind(name: str) -> Kind:
    for kind in get_args(Kind):
        if kind == name:
            return kind  # type: ignore[no-any-return]
    raise LexrayError(f"there are no vectors of the kind {name!r}")


def sides_of(view: View, kind: str) -> tuple[str, ...]:
    """How vectors of a kind are read under a view."""
    if kind in ("value", "O", "bias"):
        return ("writes",)
    if not view.sees_and_expects:
        return ("reads",)
    return ("sees", "expects") if kind in EXPECTS else ("sees",)


def count_lists(model: Weights, chunk: Chunk) -> int:
    """Lists of tokens that a chunk of vectors holds."""
    if chunk.job == "others":
        return sum(8 * stack.n_layers + 2 for stack in model.stacks)
    assert chunk.layer is not None
    n = count_vectors(model, chunk.stack, chunk.layer, chunk.kind) - AT_ONCE * (chunk.part or 0)
    return min(n, AT_ONCE) * len(sides_of(VIEWS[chunk.view], chunk.kind))


def cost_of(model: Weights, options: AtlasOptions, chunk: Chunk) -> float:
    """Floating-point operations of products with the embedding that would take as long."""
    a = model.architecture
    e, d = a.d_vocab, a.d_model
    product = 2.0 * e * d
    places = choose_places(model, replace(options, layers=None))
    heads = [len(attention_at(model, *place).q.starts) for place in places]
    match chunk.job:
        case "vectors" | "others":
            return product * count_lists(model, chunk) * 1.15
        case "heads":
            assert chunk.layer is not None
            spec = attention_at(model, chunk.stack, chunk.layer)
            widths, n = spec.q.d_head + spec.v.d_head, len(spec.q.starts)
            searched = 2.0 * e * e * widths * n * SEARCHED
            return searched + product * n * (2 * widths + 4 * options.directions)
        case "relations":
            return 0.1 * sum(heads) * 2.0 * e * e * a.d_head + product * sum(heads)
        case "roles":
            return product * 4 * sum(heads)
        case "links":
            return 2.0 * d * sum(_neurons(model)) ** 2 / 4 + product * 4 * options.links
        case "evidence":
            words = len((options.text or "").split()) * 1.5
            return words * (48 * d * d + _measured(model, chunk))
        case "index":
            return 9e3 * min(INDEXED_AT_ONCE, 2 * options.k * _count_all(model))
        case _:
            return product * 4


def _measured(model: Weights, chunk: Chunk) -> float:
    """What it costs to hold one word against the readings of a chunk's neurons or heads."""
    assert chunk.layer is not None
    if chunk.kind == "heads":
        return MEASURED_HEAD * len(attention_at(model, chunk.stack, chunk.layer).q.starts)
    n = count_vectors(model, chunk.stack, chunk.layer, "value")
    return MEASURED_NEURON * min(NEURONS_AT_ONCE, n - NEURONS_AT_ONCE * (chunk.part or 0))


def _count_all(model: Weights) -> int:
    """Vectors of all kinds."""
    kinds, places = VECTOR_PARTS.values(), choose_places(model, AtlasOptions())
    return sum(count_vectors(model, *place, kind) for place in places for kind in kinds)


def _neurons(model: Weights) -> list[int]:
    return [count_vectors(model, "", layer, "value") for layer in range(model.n_layers)]
