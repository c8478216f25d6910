"""From a draft to a graph: all vectors are read in one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.flow.build.draft import Draft, DraftEdge, Sketch
from lexray.flow.build.places import place_of
from lexray.flow.graph import (
    STREAM,
    Edge,
    Node,
    NodeKind,
    Projection,
    Standing,
    Static,
    Weighed,
    Word,
    is_crossing,
)
from lexray.flow.options import BlockOptions
from lexray.model import fold
from lexray.model.fold import at_least_float32
from lexray.space.kinds import WRITES, Kind
from lexray.space.space import space_of
from lexray.trace.read.standard import ReadWords, read_words
from lexray.trace.recording import Recording

Spell = Callable[[int], str]
"""From a token's id to how people see it."""
Key = TypeVar("Key", bound=Hashable)


def read_draft(
    recording: Recording, draft: Draft, candidates: Sequence[Word], options: BlockOptions
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """The draft's nodes with their readings, and its edges with their scores."""
    model = recording.model
    shown, sketches = cache(model.vocabulary.shown), list(draft.sketches.values())
    projections = _projections(recording, sketches, candidates, options, shown)
    also = options.reads_parameters(len(draft.layers))
    statics = _statics(recording, sketches, options, shown) if also else {}
    norms = _lengths(sketches)
    nodes = tuple(
        Node(
            sketch.id,
            sketch.kind,
            sketch.layer,
            sketch.label,
            projection=projections[sketch.id],
            norm=norms[sketch.id],
            static=statics.get(sketch.id),
            **sketch.place,
        )
        for sketch in sketches
    )
    return nodes, tuple(_edge(link, norms, projections) for link in draft.links)


def _edge(link: DraftEdge, norms: dict[str, float], projections: dict[str, Projection]) -> Edge:
    """Of an addend, the entropy is its source's: a positive factor does not change a reading."""
    adds = link.factor is not None
    carried = link.factor * norms[link.source] if link.factor is not None else None
    if link.carries is not None:
        carried = float(link.carries.vector.norm())
    score = link.score
    if score is None:
        score = norms[link.target] if carried is None else carried
    entropy = projections[link.source].entropy if adds else None
    return Edge(link.source, link.target, link.kind, score, link.sign, entropy, carried)


def _lengths(sketches: Sequence[Sketch]) -> dict[str, float]:
    if not sketches:
        return {}
    norms = torch.stack([sketch.vector.norm() for sketch in sketches]).tolist()
    return {sketch.id: norm for sketch, norm in zip(sketches, norms, strict=True)}


def _projections(
    recording: Recording,
    sketches: Sequence[Sketch],
    candidates: Sequence[Word],
    options: BlockOptions,
    shown: Spell,
) -> dict[str, Projection]:
    ids = [word.id for word in candidates]
    projections: dict[str, Projection] = {}
    model = recording.model
    for (side, hidden, of_source), members in _group(sketches, lambda s: _way(s, options)):
        X = torch.stack([_as_added(recording, sketch, options) for sketch in members])
        n = model.n_layers
        batch = read_words(
            model.encoder if of_source else model,
            X,
            [place_of(sketch, n) for sketch in members],
            options.k,
            ids,
            norm=options.norm,
            side=side,
            transform=hidden,
            bottom=True,
            filter=options.filter,
            text=options.text,
        )
        projections |= zip((s.id for s in members), _list(batch, shown), strict=True)
    return projections


def _way(sketch: Sketch, options: BlockOptions) -> tuple[Literal["writing", "reading"], bool, bool]:
    """Through which side a vector is read, whether through the LM head's transform, and whether in
    the encoder's space: what a query looks for in a source."""
    of_source = sketch.kind == NodeKind.QUERY and is_crossing(sketch.id)
    return sketch.side, options.transform and sketch.kind in STREAM, of_source


def _as_added(
    recording: Recording, sketch: Sketch, options: BlockOptions
) -> Float[Tensor, "d_model"]:
    """What a sub-block wrote as the norm behind it adds it, but for the norm's scale."""
    if sketch.behind is None or not options.norm:
        return sketch.vector
    return fold.writer(sketch.vector, sketch.behind, recording.weights.checkpoint)


def _list(words: ReadWords, shown: Spell) -> Iterable[Projection]:
    batch = words.projected
    columns = (
        batch.top_ids,
        batch.top_probs,
        batch.bottom_ids,
        batch.bottom_probs,
        batch.target_ranks,
        batch.target_probs,
        batch.entropy,
    )
    for top, p, bottom, low, above, chances, entropy, how in zip(
        *(column.tolist() for column in columns), words.hows, strict=True
    ):
        places = tuple(Standing(1 + n, q) for n, q in zip(above, chances, strict=True))
        yield Projection(_words(top, p, shown), _words(bottom, low, shown), places, entropy, how)


def _words(ids: Sequence[int], weights: Sequence[float], shown: Spell) -> tuple[Weighed, ...]:
    return tuple(map(Weighed, ids, map(shown, ids), weights))


def _statics(
    recording: Recording, sketches: Sequence[Sketch], options: BlockOptions, shown: Spell
) -> dict[str, Static]:
    """The parameters behind nodes as the model's own view reads them."""
    model, statics = recording.model, {}
    kept = [sketch for sketch in sketches if sketch.parameter is not None]
    for (kind, first), members in _group(kept, _kind):
        space = space_of(model, 0 if first else None)
        X = torch.stack([_as_viewed(recording, sketch) for sketch in members])
        read = space.top(X, kind, options.k, options.filter)
        rows = zip(*(part.tolist() for part in read), strict=True)
        for sketch, (top_values, top_ids, low_values, low_ids) in zip(members, rows, strict=True):
            statics[sketch.id] = Static(
                _words(top_ids, top_values, shown), _words(low_ids, low_values, shown)
            )
    return statics


def _kind(sketch: Sketch) -> tuple[Kind, bool]:
    """What a parameter is, and whether the first block's, which reads other embeddings."""
    assert sketch.parameter is not None
    return sketch.parameter[0], sketch.layer == 0


def _as_viewed(recording: Recording, sketch: Sketch) -> Float[Tensor, "d_model"]:
    """A parameter as the model's view has it: with the norm around its sub-block in it, or not."""
    assert sketch.parameter is not None
    kind, vector, _ = sketch.parameter
    if not recording.model.options.folded:
        return at_least_float32(vector)
    weights = recording.weights
    if kind in WRITES:
        return fold.writer(vector, sketch.behind, weights.checkpoint)
    norm = weights.architecture.blocks[sketch.layer].ff.pre_norm
    return fold.reader(vector, norm, weights.checkpoint)


def _group(
    sketches: Sequence[Sketch], key: Callable[[Sketch], Key]
) -> Iterable[tuple[Key, list[Sketch]]]:
    groups: dict[Key, list[Sketch]] = defaultdict(list)
    for sketch in sketches:
        groups[key(sketch)].append(sketch)
    return groups.items()
