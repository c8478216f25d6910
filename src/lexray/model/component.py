"""What all parts of a model share: weights, an address, and lazy sequences of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, overload

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.result.check import Check
from lexray.result.links import Links
from lexray.result.table import Result

Part = TypeVar("Part")


class Parts(Sequence[Part]):
    """A lazy sequence of numbered parts: `model.layers`, `layer.heads`, `ff.neurons`."""

    def __init__(
        self, what: str, owner: str, make: Callable[[int], Part], n: int, instead: str = ""
    ) -> None:
        self._what, self._owner, self._make, self._n = what, owner, make, n
        self._instead = instead
        """What there is, where there are none of these."""

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> list[Part]: ...
    def __getitem__(self, i: int | slice) -> Part | list[Part]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._n))]
        if not -self._n <= i < self._n:
            none = f"no {self._what}s{f', but {self._instead}' * bool(self._instead)}"
            there = f"{self._what}s 0–{self._n - 1}" if self._n else none
            raise LexrayError(f"there is no {self._what} {i}: {self._owner} has {there}")
        return self._make(i % self._n)

    def __iter__(self) -> Iterator[Part]:
        return (self[i] for i in range(self._n))

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<{self._n} {self._what}s of {self._owner}>"


class Component:
    """What all parts share: the weights they read from, and their address."""

    calls: ClassVar[str] = ""
    """What one would call next, for the line that it shows itself by."""

    def __init__(self, weights: Weights, address: Address) -> None:
        self.weights = weights
        self.address = address

    def check(self, prompts: str | Sequence[str], **options: Any) -> Check:
        """Of neurons and heads: does the reading predict what moves when it is removed?

        `prompts` is a text or a list of prompts; the options are those of `Model.check`.

        >>> model["L3N17"].check("This movie was a very good film.", others=2)[0].area
        """
        return self.weights.check_part(str(self.address), prompts, **options)

    def evidence(self, text: str | None = None, n: int = 10) -> Any:
        """Where it is strongest in running text, and whether its reading tells where: an
        `lexray.trace.evidence.result.Evidence`. Of neurons, heads and subheads.

        >>> model["L2N77"].evidence(n=3)
        """
        return self.weights.evidence(str(self.address), text, n)

    def __repr__(self) -> str:
        calls = f": {self.calls}" if self.calls else ""
        return f"<{type(self).__name__} {self.address} of {self.weights.name}{calls}>"


class Wired(Component):
    """Heads and neurons: what they write others read, and the other way round."""

    def readers(self, n: int = 20, *, via: str | None = None) -> Links:
        """The later parts that read most of what this one writes, as multiples of chance.

        `via`: only by their "key" or "gate" (neurons), or "Q", "K" or "V" (heads).

        >>> model["L1H2"].readers(5, via="K")
        """
        return self.weights.find_links(self.address, n, via, reading=False)

    def writers(self, n: int = 20, *, via: str | None = None) -> Links:
        """The earlier parts that write most of what this one reads, by all its sides or one.

        >>> model["L3N17"].writers(5)
        """
        return self.weights.find_links(self.address, n, via, reading=True)

    def describe(self, *, measure: bool = True) -> Result:
        """One card: what it does, what it reads and writes, who feeds it and whom it feeds.

        `measure=False` runs nothing: a head's roles are from its weights alone.

        >>> model["L1N17"].describe()
        """
        return self.weights.describe_part(self.address, measure=measure)
