"""Pages as they were sent: asked for again, they are sent again, as long as they hold.

A page holds until more is written to the atlas it was read from, or until a section that it left
open is there. Readers who have it already are told so (ETag).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response

MOST_BYTES = 32 * 2**20
LARGEST = 2**20
"""A page that is larger is not kept."""


@dataclass(frozen=True)
class Printed:
    """The text of a page, and what it rests on."""

    text: str
    kind: str
    """Its media type."""
    stamp: Hashable = None
    """Of the atlas."""
    open: tuple[Hashable, ...] = ()
    """What was not there yet, by which it is asked for."""
    whole: bool = True
    """Whether it can be sent again: a page on which something went wrong cannot."""

    @cached_property
    def body(self) -> bytes:
        return self.text.encode()

    @cached_property
    def tag(self) -> str:
        return f'"{blake2b(self.body, digest_size=12).hexdigest()}"'

    def answer(self, request: Request) -> Response:
        """The page, or that the reader has it."""
        headers = {"etag": self.tag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.kind, headers=headers)


class Press:
    """The pages that were asked for last, in a bound of bytes."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._size, self._lock = most, 0, threading.Lock()
        self._pages: OrderedDict[Hashable, Printed] = OrderedDict()

    def find(
        self, key: Hashable, stamp: Hashable, is_done: Callable[[Hashable], bool]
    ) -> Printed | None:
        """A page that still holds; `is_done`: whether something is there by now."""
        with self._lock:
            page = self._pages.get(key)
            if page is None:
                return None
            if page.stamp == stamp and not any(map(is_done, page.open)):
                self._pages.move_to_end(key)
                return page
            self._drop(key)
            return None

    def keep(self, key: Hashable, page: Printed) -> None:
        if not page.whole or len(page.body) > LARGEST:
            return
        with self._lock:
            self._drop(key)
            self._pages[key] = page
            self._size += len(page.body)
            while self._size > self._most:
                self._drop(next(iter(self._pages)))

    def _drop(self, key: Hashable) -> None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._size -= len(page.body)

    def __len__(self) -> int:
        return len(self._pages)
