"""The worker: a process of its own that runs what takes long, so that pages stay quick.

It opens the served models itself, says how far it is, and can be ended at any time.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.origin import Origin
from lexray.progress import reported_by
from lexray.web.expression import Expression
from lexray.web.library import view_of
from lexray.web.packed import pack

OFTEN = 0.2
"""Seconds between two words on how far it is."""
RECALLED = 3
"""So many recorded passes are kept."""


class StoppedError(Exception):
    """Somebody wants the work no longer."""


class Shop:
    """The models of a worker, opened when they are first needed."""

    def __init__(self, origins: Mapping[str, Origin]) -> None:
        self._origins, self._models = origins, dict[str, Model]()
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def __getitem__(self, slug: str) -> Model:
        if slug not in self._models:
            self._models[slug] = Model.reopen(self._origins[slug])
        return self._models[slug]

    def recall(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """One of the things that were made last; made if it is not there."""
        if key not in self._made:
            self._made[key] = make()
        self._made.move_to_end(key)
        while len(self._made) > RECALLED:
            self._made.popitem(last=False)
        return self._made[key]


@runtime_checkable
class Work(Protocol):
    """Something to do, which can be sent to another process, and so can what it gives."""

    def run(self, shop: Shop) -> Any: ...


@dataclass(frozen=True)
class Evaluation:
    """A call of the library."""

    slug: str
    view: str
    offset: int
    call: Expression
    others: tuple[tuple[str, str], ...] = ()
    """Further models: what they are called, and their names here."""
    given: tuple[tuple[str, Expression], ...] = ()
    """Further names, and what they stand for: a recorded pass, which the next call may use too."""

    def run(self, shop: Shop) -> Any:
        import lexray

        model = view_of(shop[self.slug], self.view, self.offset)
        others = {name: view_of(shop[slug], self.view, 0) for name, slug in self.others}
        scope = {"lx": lexray, "model": model, **others}
        for name, call in self.given:
            key = (self.slug, self.view, self.offset, call.text)
            scope[name] = shop.recall(key, partial(call.evaluate, scope))
        return pack(self.call.evaluate(scope))


def work_on(pipe: Connection, stop: Any, origins: Mapping[str, Origin]) -> None:
    """The process: takes work, gives progress and results, until nothing comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server is told, and ends it
    shop = Shop(origins)
    while True:
        try:
            number, work = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            with reported_by(_Report(pipe, number, stop)):
                answer = ("done", number, work.run(shop))
        except StoppedError:
            answer = ("stopped", number, None)
        except LexrayError as error:
            answer = ("failed", number, str(error))
        except MemoryError:
            answer = ("failed", number, "there is not enough memory for this")
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:500]
            answer = ("failed", number, f"a mistake of lexray's, not yours ({words})")
        try:
            pipe.send(answer)
        except (OSError, BrokenPipeError):
            return


class _Report:
    """Tells how far a run is, and ends it where that is wanted."""

    def __init__(self, pipe: Connection, number: int, stop: Any) -> None:
        self._pipe, self._number, self._stop, self._said = pipe, number, stop, 0.0

    def __call__(self, items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        for done, item in enumerate(items):
            self._tell(what, done, total)
            yield item

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise StoppedError
        now = monotonic()
        if now - self._said >= OFTEN:
            self._said = now
            self._pipe.send(("progress", self._number, (what, done, total)))
