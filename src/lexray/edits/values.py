"""What can be changed in a run, as small frozen values that print as they are parsed.

>>> ablate("L23H4", positions=-1)
Ablate('ablate L23H4[-1]')
>>> str(add("L12", [" Paris", " France"], 4))
'add 4*[" Paris", " France"]@L12'
>>> str(cut(3, -1, heads=["L5H2", "L6"], renormalise=True))
'cut [3]->[-1] in L5H2,L6 renormalised'
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from lexray.address import Address
from lexray.edits.directions import (
    Difference,
    Direction,
    OfTensor,
    Run,
    as_direction,
    as_run,
    show_run,
)
from lexray.edits.positions import Positions
from lexray.edits.site import EXAMPLES, Kind, Site
from lexray.errors import LexrayError

NEURONS: tuple[Kind, ...] = ("neuron",)
WRITERS: tuple[Kind, ...] = (
    *("layer", "attn", "laurel", "cross", "mixer", "mlp", "head", "neuron", "expert", "shared"),
)
STREAM: tuple[Kind, ...] = ("layer", "pre")
HEADS: tuple[Kind, ...] = ("head", "q", "k", "v", "pattern")
RECORDED: tuple[Kind, ...] = ("pre", *WRITERS, *HEADS[1:])


@dataclass(frozen=True, repr=False)
class Edit:
    """One change of a run, or of the weights. `str` gives the text that `parse` reads."""

    verb: ClassVar[str]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@dataclass(frozen=True, repr=False)
class Placed(Edit):
    """A change at one site and some positions."""

    kinds: ClassVar[tuple[Kind, ...]]
    site: Site
    positions: Positions

    def __post_init__(self) -> None:
        if self.site.kind not in self.kinds:
            raise LexrayError(
                f"one cannot {self.verb} {self.site}, only one of these kinds: "
                f"{', '.join(self.kinds)}; {EXAMPLES}"
            )

    @property
    def where(self) -> str:
        return f"{self.site}{self.positions}"


@dataclass(frozen=True, repr=False)
class Ablate(Placed):
    """Takes away what a part writes: zero, the mean over the prompt's other positions, or the
    mean over all positions of another run."""

    verb, kinds = "ablate", WRITERS
    to: Literal["zero", "mean"] | Run = "zero"
    of_run: bool = False
    """`to` is a run, not a word."""

    @property
    def averages(self) -> bool:
        """Whether a mean takes its place."""
        return self.of_run or self.to == "mean"

    def __str__(self) -> str:
        if self.of_run:
            return f"ablate {self.where} to mean of {show_run(self.to)}"
        return f"ablate {self.where}" + (" to mean" if self.to == "mean" else "")


@dataclass(frozen=True, repr=False)
class Scale(Placed):
    """Multiplies what a part writes."""

    verb, kinds = "scale", WRITERS
    factor: float = 1.0

    def __str__(self) -> str:
        return f"scale {self.where} by {show_number(self.factor)}"


@dataclass(frozen=True, repr=False)
class Clamp(Placed):
    """Sets a neuron's coefficient."""

    verb, kinds = "clamp", NEURONS
    value: float = 0.0

    def __str__(self) -> str:
        return f"clamp {self.where} to {show_number(self.value)}"


@dataclass(frozen=True, repr=False)
class Add(Placed):
    """Adds a vector to the residual stream."""

    verb, kinds = "add", STREAM
    vector: Direction
    strength: float = 1.0

    def __str__(self) -> str:
        return f"add {show_times(self.strength)}{self.vector}@{self.where}"


@dataclass(frozen=True, repr=False)
class Patch(Placed):
    """Puts what another run had there, at the same positions."""

    verb, kinds = "patch", RECORDED
    source: Run

    def __str__(self) -> str:
        return f"patch {self.where} from {show_run(self.source)}"


@dataclass(frozen=True, repr=False)
class Cut(Edit):
    """Sets attention to zero: what `destination` sees of `source`. Of cross-attention, `source`
    are positions of the source."""

    verb = "cut"
    source: Positions
    destination: Positions
    heads: tuple[Site, ...] = ()
    """Heads, or layers with all their heads (`L6.cross`: those of its cross-attention); none: all
    layers, of an encoder–decoder the decoder's."""
    renormalise: bool = False
    """Whether the other weights are scaled to sum to one again."""

    def __post_init__(self) -> None:
        for site in self.heads:
            if site.kind not in ("head", "layer", "cross"):
                raise LexrayError(f"attention is cut in heads or layers (L5H2, L6), not in {site}")

    def __str__(self) -> str:
        ends = [str(positions) or "[:]" for positions in (self.source, self.destination)]
        inside = f" in {','.join(map(str, self.heads))}" if self.heads else ""
        return f"cut {ends[0]}->{ends[1]}{inside}" + " renormalised" * self.renormalise


@dataclass(frozen=True, repr=False)
class Replace(Edit):
    """Writes another vector in a parameter's place; of weights only."""

    verb = "replace"
    address: Address
    vector: Direction
    strength: float = 1.0

    def __post_init__(self) -> None:
        if self.address.vector is None and self.address.subhead is None:
            raise LexrayError(
                f"only vectors of a model are replaced (L12N3.value, L3H7.O12), not {self.address}"
            )

    def __str__(self) -> str:
        return f"replace {self.address} by {show_times(self.strength)}{self.vector}"


@dataclass(frozen=True, repr=False, eq=False)
class RankOne(Placed):
    """Adds the product of a key and a value to the matrix by which a sub-block writes.

    Given as a fact (a prompt, what should follow it, and whom it is about), key and value are
    worked out when a model is edited: see `lexray.effects.knowledge`.
    """

    verb, kinds = "rank_one", ("attn", "mlp", "expert", "shared")
    prompt: str | None = None
    answer: str | None = None
    subject: str | None = None
    key: Tensor | None = None
    value: Tensor | None = None

    def __str__(self) -> str:
        if self.prompt is None or self.answer is None:
            return f"rank_one {self.site} <a key> to <a value>"
        quoted = [json.dumps(text, ensure_ascii=False) for text in (self.prompt, self.answer)]
        about = f" about {json.dumps(self.subject, ensure_ascii=False)}" if self.subject else ""
        return f"rank_one {self.site} from {quoted[0]} to {quoted[1]}{about}"

    def __eq__(self, other: object) -> bool:
        facts = isinstance(other, RankOne) and self.key is None and other.key is None
        return self is other or (facts and str(self) == str(other))

    def __hash__(self) -> int:
        return hash(str(self))


def ablate(site: str | Site, *, to: Any = "zero", positions: Any = None) -> Ablate:
    """Takes a head, neuron, expert, sub-block or layer away.

    `to` is "zero", "mean" (over the prompt's other positions), or a trace of a text over which
    the mean is taken; `positions` says where, by default everywhere.
    """
    if isinstance(to, str) and to not in ("zero", "mean"):
        raise LexrayError(
            f'to={to!r}: something is ablated to "zero", to "mean", or to the mean of a trace'
        )
    run = not isinstance(to, str)
    return Ablate(as_site(site), Positions.of(positions), as_run(to) if run else to, run)


def scale(site: str | Site, factor: float, *, positions: Any = None) -> Scale:
    """Multiplies what a part writes: `scale("L29N50", 3)`."""
    return Scale(as_site(site), Positions.of(positions), number(factor))


def clamp(site: str | Site, value: float, *, positions: Any = None) -> Clamp:
    """Sets a neuron's coefficient: `clamp("L29N50", 8.0)`."""
    return Clamp(as_site(site), Positions.of(positions), number(value))


def add(site: str | Site, vector: Any, strength: float = 1.0, *, positions: Any = None) -> Add:
    """Adds a vector to the residual stream as it leaves a layer (`L12`) or enters it (`L12.pre`).

    `vector` is a tensor, an address (`"L29N50.value"`), words (`[" Paris", " France"]`, through
    E), or a pair of traces, whose difference at their last positions is meant.
    """
    direction = as_direction(vector)
    return Add(as_site(site), Positions.of(positions), direction, number(strength))


def patch(site: str | Site, source: Any, *, positions: Any = None) -> Patch:
    """Puts what another run had at the same positions: `patch("L18", trace, positions=3)`.

    `source` is a trace, or a prompt (a text, token ids), which is then run. For an encoder–decoder
    a prompt is a source, run with the target at hand, or a pair (source, target).
    """
    return Patch(as_site(site), Positions.of(positions), as_run(source))


def cut(
    source: Any,
    destination: Any = None,
    heads: str | Site | Iterable[str | Site] | None = None,
    *,
    renormalise: bool = False,
) -> Cut:
    """Sets the attention from some positions (by default all) to others to zero.

    What `destination` sees of `source` is gone; with `renormalise=True` its other weights sum to
    one again, as if `source` had been masked. `heads` are heads or layers; by default all. In
    `L6X2` or `L6.cross` it is what positions of the target see of positions of the source.
    """
    listed = [] if heads is None else [heads] if isinstance(heads, (str, Site)) else list(heads)
    sites = tuple(as_site(site) for site in listed)
    return Cut(Positions.of(source), Positions.of(destination), sites, bool(renormalise))


def replace(address: str | Address, vector: Any, strength: float = 1.0) -> Replace:
    """Writes another vector in the place of `L12N3.value`, `.key`, `.gate` or a subhead."""
    at = address if isinstance(address, Address) else Address.parse(address)
    return Replace(at, as_direction(vector), number(strength))


def rank_one(
    site: str | Site,
    key: Any = None,
    value: Any = None,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    subject: str | None = None,
) -> RankOne:
    """Adds key ⊗ value to the matrix by which a sub-block writes: `L17.mlp`, `L17.attn`.

    `key` has an entry for each neuron, `value` for each dimension of the stream. Or a fact: after
    `prompt` should come `answer`; `subject` is the part of the prompt that it is about, at whose
    last token the key is taken (by default at the prompt's last).
    """
    vectors = key is not None and value is not None
    if vectors == (prompt is not None and answer is not None):
        raise LexrayError("rank_one takes a key and a value, or a prompt and an answer")
    if subject is not None and (prompt is None or subject not in prompt):
        raise LexrayError(f"the subject {subject!r} does not stand in the prompt {prompt!r}")
    given = [as_vector(x) if vectors else None for x in (key, value)]
    return RankOne(as_site(site), Positions(), prompt, answer, subject, given[0], given[1])


def as_vector(given: Any) -> Tensor:
    direction = as_direction(given)
    if not isinstance(direction, OfTensor):
        raise LexrayError(f"the key and the value of rank_one are tensors, not {direction}")
    return direction.tensor


def as_site(given: str | Site) -> Site:
    return given if isinstance(given, Site) else Site.parse(given)


def number(given: Any) -> float:
    """A finite number."""
    try:
        value = float(given)
    except (TypeError, ValueError) as error:
        raise LexrayError(f"{given!r} is no number") from error
    if not math.isfinite(value):
        raise LexrayError(f"{given!r} is no finite number")
    return value


def show_number(x: float) -> str:
    """The shortest text that is read as the same number."""
    return str(int(x)) if x == int(x) and abs(x) < 1e15 else repr(x)


def show_times(strength: float) -> str:
    return "" if strength == 1 else f"{show_number(strength)}*"


Edits = Edit | str | Iterable[Edit | str]
"""Edits as people give them: values or their text, one or several."""


def runs_of(edit: Edit) -> list[Run]:
    """The other runs that an edit takes something from."""
    if isinstance(edit, Patch):
        return [edit.source]
    if isinstance(edit, Ablate):
        return [edit.to] if edit.of_run else []
    vector = getattr(edit, "vector", None)
    return [vector.one, vector.other] if isinstance(vector, Difference) else []
