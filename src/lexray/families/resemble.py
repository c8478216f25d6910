"""Which known family a checkpoint of an unknown type resembles: its own rules are the measure.

Every family is asked to describe the checkpoint. A description names tensors; the more of them the
checkpoint has, and the fewer it has besides, the nearer it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lexray.errors import LexrayError
from lexray.families.registry import Family, families
from lexray.families.walk import tensor_names

NEAR = 0.5
"""Of all tensors, those that both have: below that, nothing is said to be alike."""
SHOWN = 3
MOST = 200_000
"""So many names are compared; larger checkpoints are not looked at."""


@dataclass(frozen=True)
class Resemblance:
    """How a family's rules fit a checkpoint's tensors."""

    family: Family
    common: int
    """Tensors that the rules name and the checkpoint has."""
    missing: tuple[str, ...]
    unread: tuple[str, ...]
    alike: tuple[str, ...] = ()
    """Other families whose rules fit as well."""

    @property
    def share(self) -> float:
        return self.common / max(1, self.common + len(self.missing) + len(self.unread))

    def __str__(self) -> str:
        has = self.common + len(self.unread)
        said = f"the rules of {self.family.title} name {self.common:,} of its {has:,} tensors"
        for what, names in (("miss", self.missing), ("leave", self.unread)):
            if names:
                some = ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
                said += f", {what} {len(names):,} ({some})"
        if self.alike:
            others = ", ".join(self.alike[:SHOWN]) + (" …" if len(self.alike) > SHOWN else "")
            said += f"; so do those of {others}, which differ in what names do not show"
        return said


def find_nearest(config: Mapping[str, Any], names: Collection[str]) -> Resemblance | None:
    """The family that fits best; None if none comes near."""
    if not 0 < len(names) <= MOST:
        return None
    likenesses = [likeness for f in families().values() if (likeness := _compare(f, config, names))]
    best = max(likenesses, key=lambda each: (each.share, each.family.name == "llama"), default=None)
    if best is None or best.share < NEAR:
        return None
    ties = (each.family for each in likenesses if each.share == best.share)
    return replace(best, alike=tuple(f.title for f in ties if f is not best.family))


def _compare(
    family: Family, config: Mapping[str, Any], names: Collection[str]
) -> Resemblance | None:
    try:
        architecture = family.architecture(config, names)
    except LexrayError:
        return None
    wanted = tensor_names(architecture) - ({architecture.unembed} - set(names))
    common = wanted & set(names)
    return Resemblance(
        family, len(common), tuple(sorted(wanted - common)), tuple(sorted(set(names) - common))
    )


def explain(config: Mapping[str, Any], names: Collection[str]) -> str:
    """What a user may try with a checkpoint of an unknown type; empty where nothing is near."""
    likeness = find_nearest(config, names)
    if likeness is None:
        return ""
    name = likeness.family.name
    besides = "; what it leaves is not read, and the model is not run without it"
    return (
        f". It resembles {likeness.family.title}: {likeness}. Try family={name!r} (--family {name})"
        " and hold a few readings against what you know of the model before you rely on them"
        f"{besides if likeness.unread else ''}"
    )
