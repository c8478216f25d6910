"""Looking through the logit lens: the vectors of a trace, read as tokens in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.trace.read.lens import Heading, Lens
from lexray.trace.read.project import Projected
from lexray.trace.read.standard import How, read_words, say_how
from lexray.trace.read.targets import Target, Wanted, find_target
from lexray.trace.read.usual import Place, place_of
from lexray.trace.read.vectors import READERS, Selection, VectorLine, choose_kinds
from lexray.trace.recording import Recording
from lexray.vocabulary.filters import Filter


def lens(
    trace: Recording,
    of: str | Sequence[str] = "residual",
    *,
    target: Wanted | None = None,
    first: bool = False,
    layers: Some = None,
    positions: Some = None,
    heads: Some = None,
    neurons: int = 10,
    query: int = -1,
    offset: int | None = None,
    k: int = 5,
    norm: bool = True,
    transform: bool = False,
    filter: Filter | None = None,
    text: str | None = None,
) -> Lens:
    """Reads a trace's vectors as tokens, all of them in one batch; see
    `lexray.trace.trace.Trace.lens`."""
    if neurons < 1:
        raise LexrayError(f"asked for the {neurons} strongest neurons; it must be at least 1")
    kinds = choose_kinds(of)
    model = trace.model
    wanted = None if target is None else find_target(model, target, first=first)
    at = _positions(trace, kinds, positions, query)
    which = Selection(
        trace,
        None if layers is None else choose(layers, model.n_layers, "layer"),
        at,
        None if heads is None else choose(heads, model.n_heads, "head"),
        neurons,
        query,
        offset,
        norm,
    )
    lines = which.lines(kinds)
    if not lines:
        some = ", ".join(map(str, trace.layers if which.layers is None else which.layers))
        raise LexrayError(
            f"there is nothing to read: {model.name} has no {' or '.join(kinds)} in layers {some}"
        )
    projected, hows, scores = _project_all(model, lines, k, wanted, norm, transform, filter, text)
    shape = len(lines), len(at)
    notes = [*_notes(which, kinds, wanted, transform, filter), say_how(model, hows, text)]
    ids = projected.top_ids.cpu()
    return Lens(
        model.space.glossary(sorted(set(ids.flatten().tolist()))),
        model.space.source("lens", filter),
        trace.tokens,
        at,
        tuple(
            Heading(line.name, line.of, line.layer, line.coefficient, how)
            for line, how in zip(lines, hows, strict=True)
        ),
        wanted,
        ids.view(*shape, -1),
        projected.top_probs.cpu().view(*shape, -1),
        scores.cpu().view(*shape, -1),
        projected.entropy.cpu().view(shape),
        None if wanted is None else projected.target_probs.cpu().view(shape),
        None if wanted is None else projected.target_ranks.cpu().view(shape),
        " · ".join(note for note in notes if note),
    )


def _positions(
    trace: Recording, kinds: Sequence[str], positions: Some, query: int
) -> tuple[int, ...]:
    """The columns: what was asked for, or all that were kept; one for neurons."""
    n = len(trace)
    if not -n <= query < n:
        raise LexrayError(f"there is no position {query}: the sequence has positions 0–{n - 1}")
    if "neurons" in kinds:
        at = choose(trace.positions[-1] if positions is None else positions, n, "position")
        if len(at) > 1:
            raise LexrayError(
                f"neurons are listed at one position, not at {len(at)}: positions={at[-1]}"
            )
        return at
    at = trace.positions if positions is None else choose(positions, n, "position")
    if "keys" not in kinds or not trace.model.architecture.causal:
        return at
    seen = tuple(i for i in at if i <= query % n)
    if not seen:
        raise LexrayError(f"position {query} looks at no later keys; choose positions up to it")
    return seen


def _project_all(
    model: Anatomy,
    lines: Sequence[VectorLine],
    k: int,
    target: Target | None,
    norm: bool,
    transform: bool,
    filter: Filter | None,
    text: str | None,
) -> tuple[Projected, list[How], Float[Tensor, "n k"]]:
    """All lines in one batch, or in two where some of them read and others write; how each was
    read, and the scores of its words."""
    targets = [] if target is None else [target.id]
    parts: list[tuple[Tensor, ...]] = []
    order: list[int] = []
    hows: dict[int, How] = {}
    for side in dict.fromkeys(line.side for line in lines):
        own = [i for i, line in enumerate(lines) if line.side == side]
        X = torch.cat([lines[i].vectors for i in own])
        n = len(X) // len(own)
        places = [place for i in own for place in [_place(model, lines[i])] * n]
        read = read_words(
            model,
            X,
            places,
            k,
            targets,
            side=side,
            norm=norm,
            transform=transform and side == "writing",
            filter=filter,
            text=text,
        )
        hows |= zip(own, read.hows[::n], strict=True)
        parts.append((*read.projected, read.top_scores))
        order += own
    back = torch.tensor(order).argsort()
    *columns, scores = (_reorder(list(column), back) for column in zip(*parts, strict=True))
    return Projected(*columns), [hows[i] for i in range(len(lines))], scores


def _place(model: Anatomy, line: VectorLine) -> Place | None:
    return place_of(line.of, line.layer, model.n_layers, line.times)


def _reorder(parts: list[Tensor], order: Int[Tensor, "lines"]) -> Tensor:
    whole = torch.cat(parts)
    grouped = whole.view(len(order), len(whole) // len(order), *whole.shape[1:])
    return grouped[order.to(whole.device)].flatten(0, 1)


def _notes(
    which: Selection,
    kinds: Sequence[str],
    target: Target | None,
    transform: bool,
    filter: Filter | None,
) -> list[str]:
    a = which.trace.model.architecture
    reads, writes = {*kinds} & {*READERS}, {*kinds} - {*READERS}
    notes = [] if target is None else [target.note]
    if writes and a.final_norm is not None:
        notes.append(f"{'with' if which.norm else 'without'} the final norm")
    if writes and a.head is not None:
        through = "through" if transform else "without"
        notes.append(f"{through} the LM head's transform")
    if reads:
        offset = "the actual distance" if which.offset is None else f"offset {which.offset}"
        turns = any(block.attention.rotary is not None for block in a.blocks)
        notes.append(f"queries and keys through the QK circuit{f' at {offset}' * turns}")
        if which.trace.model.options.reading == "input":
            notes.append("read by the input embedding")
    if "keys" in kinds:
        notes.append(f"keys as seen from position {which.query % len(which.trace)}")
    if filter is not None:
        notes.append(f"only {filter.describe()}")
    return notes
