"""Edits that last: what they change in which tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lexray.address import Address
from lexray.checkpoint.base import Box
from lexray.checkpoint.overlay import Change, Outer, OverlayCheckpoint, Rewritten, Scaled
from lexray.edits.directions import Run
from lexray.edits.site import Site
from lexray.edits.values import Ablate, Edit, Placed, RankOne, Replace, Scale
from lexray.errors import LexrayError
from lexray.families import Linear
from lexray.families.linear import ALL
from lexray.families.shapes import dense_parts
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import Neuron
from lexray.model.groups import Group, attention_of, head_group, neuron_group
from lexray.space.kinds import WRITES
from lexray.trace.recording import Recording

Found = tuple[str, Change]


def overlay(model: Anatomy, edits: Sequence[Edit]) -> OverlayCheckpoint:
    """The model's checkpoint with edits of its weights in it, in order."""
    if not edits:
        raise LexrayError('there is nothing to change: give edits, as in scale("L29N50", 0)')
    changes: dict[str, list[Change]] = {}
    for edit in edits:
        for name, change in changes_of(model, edit):
            changes.setdefault(name, []).append(change)
    label = f"{model.name} + {len(edits)} edit{'s' if len(edits) > 1 else ''}"
    return OverlayCheckpoint(model.checkpoint, changes, label)


def changes_of(model: Anatomy, edit: Edit) -> Iterator[Found]:
    """What an edit does to which stored tensors."""
    match edit:
        case Replace():
            yield from _find_replaced(model, edit)
        case RankOne():
            yield from _find_added(model, edit)
        case Scale() | Ablate():
            yield from _find_scaled(model, edit)
        case _:
            raise LexrayError(
                f"{edit} changes a run, not weights; those are changed by scale, ablate, replace "
                "and rank_one"
            )


def _find_scaled(model: Anatomy, edit: Scale | Ablate) -> Iterator[Found]:
    if not edit.positions.everywhere or (isinstance(edit, Ablate) and edit.to != "zero"):
        raise LexrayError(
            f"{edit}: weights know no positions and no means of a run; scale or ablate to zero, "
            "everywhere"
        )
    edit.site.check(model)
    _refuse_shared(model, edit.site.address)
    factor = edit.factor if isinstance(edit, Scale) else 0.0
    for linear, inputs, whole in _writers(model, edit):
        yield linear.weight, Scaled(_box(model, linear, inputs, ALL), factor)
        if whole and linear.bias is not None:
            yield linear.bias, Scaled(_bias_box(model, linear), factor)


def _refuse_shared(model: Anatomy, address: Address) -> None:
    if model.architecture.unrolled:
        raise LexrayError(
            f"{address} shares its weights with other layers of {model.name}, so that no change of "
            "weights is one of this layer alone; change a run: model.trace(…, edits=[…])"
        )
    if address.subhead not in ("K", "V"):
        return
    spec = attention_of(model.stack_at(address), address.layer, cross=address.cross)
    if spec.shares is not None or spec.k == spec.v:
        whose = f"layer {spec.shares}" if spec.shares is not None else "keys and values alike"
        raise LexrayError(
            f"the weights behind {address} are those of {whose}, so that no change of them is one "
            "of this vector alone; change a run: model.trace(…, edits=[…])"
        )


def _writers(model: Anatomy, edit: Placed) -> Iterator[tuple[Linear, slice, bool]]:
    """The linear maps by which a part writes, which of their inputs, and whether all."""
    site: Site = edit.site
    a = site.address
    block = model.stack_at(a).architecture.blocks[site.layer]
    match site.kind:
        case "head":
            assert a.head is not None
            spec = attention_of(model.stack_at(a), site.layer, cross=a.cross)
            width = spec.v.d_head
            yield spec.o, slice(a.head * width, (a.head + 1) * width), False
        case "neuron":
            neuron = model[a]
            assert isinstance(neuron, Neuron)
            yield neuron.ff.spec.w_out, slice(neuron.index, neuron.index + 1), False
        case "expert" | "shared":
            yield model[a].spec.w_out, ALL, True
        case _:
            if site.kind in ("layer", "attn") and not block.attention.absent:
                yield block.attention.o, ALL, True
            if site.kind in ("layer", "cross") and block.cross is not None:
                yield block.cross.o, ALL, True
            if site.kind in ("layer", "mixer") and block.mixer is not None:
                yield block.mixer.w_out, ALL, True
            if site.kind in ("layer", "laurel") and block.laurel is not None:
                yield block.laurel.w_out, ALL, True
            if site.kind in ("layer", "mlp"):
                for ff in dense_parts(block.ff):
                    yield ff.w_out, ALL, True


def _find_replaced(model: Anatomy, edit: Replace) -> Iterator[Found]:
    model.vector(edit.address)  # raises where there is none
    _refuse_shared(model, edit.address)
    vector = edit.vector.read(model, edit.address.layer, _no_run) * edit.strength
    group, i = locate(model, edit.address)
    at = slice(group.start + i, group.start + i + 1)
    inputs, outputs = (at, ALL) if group.kind in WRITES else (ALL, at)
    box = _box(model, group.linear, inputs, outputs)
    shape = [stop - start for start, stop in box]
    if vector.numel() != max(shape):
        raise LexrayError(
            f"{edit.address} has {max(shape)} entries, but the vector has {vector.numel()}"
        )
    if group.linear.gain is not None:  # which stands behind the weight, and is read as part of it
        vector = vector / model.place(model.checkpoint.read(group.linear.gain)).to(vector)
    yield group.linear.weight, Rewritten(box, vector.detach().cpu().view(shape))


def locate(model: Anatomy, address: Address) -> tuple[Group, int]:
    """Where a vector lies: its group, and its number there."""
    model.vector(address)  # raises where there is none
    if address.subhead is not None:
        assert address.head is not None
        assert address.index is not None
        stack, at = model.stack_at(address), (address.layer, address.head)
        return head_group(stack, *at, address.subhead, cross=address.cross), address.index
    assert address.neuron is not None
    assert address.vector is not None
    neuron = model.neuron(Address(**{**vars(address), "vector": None}))
    ff = neuron.ff
    group = neuron_group(model, ff.address, ff.spec, ff.norms, address.vector)
    assert group is not None
    return group, address.neuron


def _find_added(model: Anatomy, edit: RankOne) -> Iterator[Found]:
    if edit.key is None or edit.value is None:
        raise LexrayError(f"{edit} has to be worked out first; model.edited([…]) does that")
    edit.site.check(model)
    linear = next(linear for linear, _, _ in _writers(model, edit))
    if linear.gain is not None:
        raise LexrayError(
            f"{edit.site} writes through a norm of its own, so that nothing can be added to what "
            "it writes by its weights alone; change a run: model.trace(…, edits=[…])"
        )
    box = _box(model, linear, ALL, ALL)
    key, value = edit.key.detach().cpu(), edit.value.detach().cpu()
    rows, columns = (key, value) if linear.in_first else (value, key)
    expected = tuple(stop - start for start, stop in box[-2:])
    if (len(rows), len(columns)) != expected:
        inputs, outputs = expected if linear.in_first else expected[::-1]
        raise LexrayError(
            f"{edit.site} has {inputs} inputs and {outputs} outputs; the key has {len(key)} "
            f"entries, the value {len(value)}"
        )
    yield linear.weight, Outer(box, rows, columns)


def _box(model: Anatomy, linear: Linear, inputs: slice, outputs: slice) -> Box:
    shape = model.checkpoint.info(linear.weight).shape
    index = linear.index(inputs, outputs)
    return tuple(part.indices(n)[:2] for part, n in zip(index, shape, strict=True))


def _bias_box(model: Anatomy, linear: Linear) -> Box:
    assert linear.bias is not None
    shape = model.checkpoint.info(linear.bias).shape
    first = () if linear.expert is None else ((linear.expert, linear.expert + 1),)
    return (*first, *((0, n) for n in shape[len(first) :]))


def _no_run(run: Run) -> Recording:
    raise LexrayError("weights are replaced by fixed vectors, not by the difference of two runs")
