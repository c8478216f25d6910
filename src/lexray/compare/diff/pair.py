"""Two models side by side: may they be compared, which tokens are whose, and what moved.

Nothing is read twice or without need: what a LoRA adapter leaves alone is not read at all, and
what it changes comes from its factors, L·R, whose rows' lengths follow from r×r matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.checkpoint.base import TensorInfo
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.compare.diff.stacks import Round, Stack
from lexray.errors import LexrayError
from lexray.families.linear import ALL
from lexray.finite import require_finite
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.result.format import show_percent
from lexray.scratch import join_rows, let_go

ROWS_AT_ONCE = 4096
NUMBERS_AT_ONCE = 2**22
"""Rows of an embedding that are compared together, and numbers in them: the fewer of both."""
HALF = {"F16": torch.float16, "BF16": torch.bfloat16}
"""What files call the dtypes of half precision that are read as float32."""
FEW = 8
"""How many names a note lists."""


def lengths(X: Float[Tensor, "n width"]) -> Float[Tensor, "n"]:
    norms: Tensor = torch.linalg.vector_norm(X, dim=1)
    return norms


@dataclass(frozen=True)
class Delta:
    """Vectors before, and by how much they moved: `left @ right`, or `right` alone."""

    before: Float[Tensor, "n width"]
    right: Float[Tensor, "m width"]
    left: Float[Tensor, "n m"] | None = None

    @cached_property
    def sizes(self) -> Float[Tensor, "n"]:
        """How far each vector moved; of a product, ‖l R‖ = ‖l Tᵀ‖ with Rᵀ = Q T."""
        if self.left is None:
            return lengths(self.right)
        T = torch.linalg.qr(self.right.T, mode="r").R
        return lengths(self.left @ T.T)

    def rows(self, at: Int[Tensor, "some"]) -> Float[Tensor, "some width"]:
        return self.right[at] if self.left is None else self.left[at] @ self.right

    @property
    def total(self) -> Float[Tensor, "width"]:
        """The sum of all movements."""
        return self.right.sum(0) if self.left is None else self.left.sum(0) @ self.right

    def project(self, direction: Float[Tensor, "width"]) -> Float[Tensor, "n"]:
        """How far each moved along a direction."""
        along = self.right @ direction
        return along if self.left is None else self.left @ along

    def let_go(self) -> None:
        """All has been looked at: what lies in files need not be in memory."""
        let_go(self.before)
        let_go(self.right)

    @cached_property
    def dense(self) -> Float[Tensor, "n width"]:
        return self.right if self.left is None else self.left @ self.right


@dataclass
class Two:
    """A base model and what was made of it, seen through one view."""

    base: Model
    tuned: Model
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tuned = self.tuned.with_view(self.base.options)
        refuse_strangers(self)
        self.lora = _adapter_on(self.base.checkpoint, self.tuned.checkpoint)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # ------------------------------------------------------------------ what moved

    def delta(self, b: Stack, t: Stack) -> Delta | None:
        """How the vectors of a stack moved; None if they did not."""
        if not self.touches(*t.tensors):
            return None
        factors = self.factors(t)
        round_b, round_t = self.rounding(b, t)
        if factors is not None:
            left, right = factors
            before = b.read(round_b)
            change = Delta(before, right.to(before), left.to(before))
        elif len(parts := b.parts()) > 1 and b.n == t.n and len(others := t.parts()) == len(parts):
            before = join_rows(b.n, (part.read(round_b) for part in parts))
            change = self._subtract_parts(before, others, round_t)
        else:
            before, after = b.read(round_b), t.read(round_t)
            if not self._alike(before, after, b):
                return None
            n = min(len(before), len(after))
            change = self.subtract(before[:n], after[:n], b.name)
        return change if bool(change.sizes.any()) else None

    def _subtract_parts(self, before: Tensor, after: list[Stack], rounded: Round) -> Delta:
        """The difference of a stack that is too large to be held: it lies in a file, as it was
        before and what moved."""

        def each_moved() -> Iterator[Tensor]:
            sizes = [part.n for part in after]
            for x, part in zip(torch.split(before, sizes), after, strict=True):
                yield self.subtract(x, part.read(rounded), part.name).right
                let_go(x)

        return Delta(before, join_rows(len(before), each_moved()))

    def _alike(self, before: Tensor, after: Tensor, stack: Stack) -> bool:
        """Whether there is something to subtract; positions may be more or fewer."""
        if before.shape == after.shape:
            return True
        sizes = f"{' × '.join(map(str, before.shape))} and {' × '.join(map(str, after.shape))}"
        resized = stack.group == "positions" and before.shape[1] == after.shape[1]
        what = "only the common ones are compared" if resized else "not compared"
        self.note(f"{stack.name} has the sizes {sizes}: {what}")
        return resized

    def subtract(self, before: Tensor, after: Tensor, name: str) -> Delta:
        """The difference of two stacks of vectors."""
        moved = after.to(before) - before
        require_finite(f"the difference of {name}", moved)
        return Delta(before, moved)

    def touches(self, *tensors: str) -> bool:
        """False only if it is known without reading that none of these tensors changed."""
        if self.lora is not None:
            changed = self.lora.touched()
            return not changed.isdisjoint(tensors)
        return self.base.checkpoint is not self.tuned.checkpoint

    def factors(self, t: Stack) -> tuple[Tensor, Tensor] | None:
        """L and R of a LoRA adapter, so that the vectors moved by L·R; None where it has none."""
        linear = t.linear
        if self.lora is None or linear is None or linear.expert is not None:
            return None
        if self.touches(*t.tensors[1:]) or (own := self.lora.factors(linear.weight)) is None:
            return None
        A, B, scale = (self.tuned.place(own[0]), self.tuned.place(own[1]), own[2])
        at = t.at or ALL
        rows, columns = linear.index(*((at, ALL) if t.writes else (ALL, at)))
        left, right = at_least_float32(B)[rows], at_least_float32(A)[:, columns]
        if t.writes != linear.in_first:
            left, right = right.T, left.T
        return scale * left, t.fold(right)

    def row_factors(self, t: Stack) -> tuple[Tensor, Tensor] | None:
        """The same for the rows of a tensor as it is stored: an embedding."""
        own = None if self.lora is None else self.lora.factors(t.tensors[0])
        if own is None:
            return None
        A, B = (at_least_float32(self.tuned.place(x)) for x in own[:2])
        return own[2] * B, A

    def rounding(self, b: Stack, t: Stack) -> tuple[Round, Round]:
        """Both stacks as the coarser of their dtypes has them: rounding is no change."""
        return self.rounding_of(b.tensors[0], t.tensors[0])

    def rounding_of(self, ours: str, theirs: str) -> tuple[Round, Round]:
        """The same for two tensors."""
        dtypes = [
            model.dtype or _precision(model.checkpoint.info(name))
            for model, name in ((self.base, ours), (self.tuned, theirs))
        ]
        coarse = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        if dtypes[0] == dtypes[1]:
            return _same, _same
        said = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        short = str(coarse).removeprefix("torch.")
        self.note(f"tensors in {said} are compared in {short}: what rounding did is no change")

        def rounded(x: Tensor) -> Tensor:
            return x.to(coarse)

        return rounded, rounded

    def match(self, ours: list[Stack], theirs: list[Stack]) -> Iterator[tuple[Stack, Stack]]:
        """The stacks that both models have; what one lacks is noted."""
        others = {stack.name: stack for stack in theirs}
        for b in ours:
            t = others.pop(b.name, None)
            if t is None or t.missing or b.missing:
                if t is None:
                    self._lacking(self.tuned, b)
                elif b.missing != t.missing or len(b.missing) < len(b.tensors):
                    self._lacking(self.tuned if t.missing else self.base, b)
                continue
            yield b, t
        for t in others.values():
            self._lacking(self.base, t)

    def _lacking(self, model: Model, stack: Stack) -> None:
        which = "tuned" if model is self.tuned else "base"
        where = "" if stack.layer is None else f" of layer {stack.layer}"
        what = stack.group if stack.group not in ("norms", "biases", "other") else stack.name
        self.note(f"the {which} model has no {what}{where}: not compared")

    # ------------------------------------------------------------------ tokens

    @cached_property
    def partners(self) -> Int[Tensor, "n_base"]:
        """For each row of the base's embedding the tuned model's row of the same token, or −1."""
        n_base, n_tuned = (_rows(model) for model in (self.base, self.tuned))
        ids = torch.arange(n_base)
        if self.base.vocabulary.fingerprint == self.tuned.vocabulary.fingerprint:
            return torch.where(ids < n_tuned, ids, -1)
        ours, theirs = (
            model.vocabulary.all_bytes[:n]
            for model, n in ((self.base, n_base), (self.tuned, n_tuned))
        )
        places = [i if i < len(theirs) and theirs[i] == x else -1 for i, x in enumerate(ours)]
        free: dict[bytes, list[int]] = {}
        for j in sorted(set(range(len(theirs))) - set(places), reverse=True):
            free.setdefault(theirs[j], []).append(j)
        for i, j in enumerate(places):
            if j < 0 and free.get(ours[i]):
                places[i] = free[ours[i]].pop()
        nameless = [i if i < n_tuned else -1 for i in range(len(ours), n_base)]
        if len(theirs) > len(ours):
            nameless = [-1] * len(nameless)
        return torch.tensor(places + nameless, dtype=torch.long)

    def describe_tokens(self) -> None:
        """Notes what the two vocabularies do not share."""
        partners = self.partners
        n_tuned = _rows(self.tuned)
        alone = (partners < 0).nonzero()[:, 0].tolist()
        met = set(partners.tolist())
        new = [j for j in range(n_tuned) if j not in met]
        moved = int(((partners >= 0) & (partners != torch.arange(len(partners)))).sum())
        if moved:
            self.note(f"{moved:,} tokens have another id in the tuned model: compared by text")
        for ids, model, which in (
            (new, self.tuned, "only in the tuned model"),
            (alone, self.base, "only in the base model"),
        ):
            if ids:
                shown = ", ".join(model.vocabulary.shown(i) for i in ids[:FEW])
                more = ", …" if len(ids) > FEW else ""
                rows = "token is" if len(ids) == 1 else "tokens are"
                self.note(f"{len(ids):,} {rows} {which}: {shown}{more}")


def _precision(info: TensorInfo) -> torch.dtype:
    """The dtype whose precision a tensor has, which may not be the one that it is read in."""
    return HALF.get(info.stored or "", info.dtype)


def _same(x: Tensor) -> Tensor:
    return x


def _rows(model: Model) -> int:
    """How many rows the input embedding has."""
    embed, checkpoint = model.architecture.embed, model.checkpoint
    return checkpoint.info(embed).shape[0] if embed in checkpoint.names() else model.d_vocab


def _adapter_on(base: Checkpoint, tuned: Checkpoint) -> LoraCheckpoint | None:
    """The tuned checkpoint, if it is an adapter on the very base that it is compared with."""
    if not isinstance(tuned, LoraCheckpoint):
        return None
    under = tuned.base
    if under is base:
        return tuned
    same = (under.name, under.revision) == (base.name, base.revision)
    if not same and Path(under.name).exists() and Path(base.name).exists():
        same = Path(under.name).resolve() == Path(base.name).resolve()
    return tuned if same else None


def refuse_strangers(two: Two) -> None:
    """Raises if the models have nothing in common that could be subtracted."""
    base, tuned = two.base, two.tuned
    b, t = base.architecture, tuned.architecture
    shape = [
        (f"width {x.d_model}", f"{x.n_heads} heads of {x.d_head}", model.family.title)
        for model, x in ((base, b), (tuned, t))
    ]
    shared = int((two.partners >= 0).sum()) / max(1, len(two.partners))
    hint = (
        f"they share {show_percent(shared, 0)} of the vocabulary: `lexray align` compares "
        "such models through it"
        if shared > 0.5
        else "nor do they share a vocabulary through which `lexray align` could compare them"
    )
    if b.d_model != t.d_model or (base.family != tuned.family and shape[0][:2] != shape[1][:2]):
        raise LexrayError(
            f"{base.name} ({', '.join(shape[0])}) and {tuned.name} ({', '.join(shape[1])}) have no "
            f"parameters that could be subtracted from one another; {hint}"
        )
    if shared < 0.1:
        raise LexrayError(
            f"{base.name} and {tuned.name} have the same width, but share only "
            f"{show_percent(shared, 0)} of the vocabulary: neither was made from the other"
        )
    if base.family != tuned.family:
        two.note(f"the models are of different families: {shape[0][2]} and {shape[1][2]}")
    if base.n_layers != tuned.n_layers:
        common = min(base.n_layers, tuned.n_layers)
        two.note(
            f"the base model has {base.n_layers} layers, the tuned model {tuned.n_layers}: "
            f"the first {common} are compared"
        )
    for model, which in ((base, "base"), (tuned, "tuned")):
        info = model.checkpoint.info
        kinds = {kind for name in model.checkpoint.names() if (kind := info(name).stored)}
        kinds -= {"F16", "F32", "BF16", "F64"}
        if kinds:
            two.note(
                f"the {which} model is stored as {', '.join(sorted(kinds))}: small changes "
                "everywhere may be what quantisation rounded away"
            )
