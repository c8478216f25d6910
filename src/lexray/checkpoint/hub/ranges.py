"""Byte ranges: which ones to ask for, how to put them together, and a cache of them on disk."""

from __future__ import annotations

import hashlib
import heapq
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from lexray.checkpoint.hub.ranged import Identity, Span
from lexray.files import cache_root, write_cache

Piece = tuple[int, bytes | bytearray]
"""Where in a file some bytes begin, and the bytes."""

GAP = 1 << 16
"""A gap under this many bytes is read through rather than spending another request."""
MAX_REQUESTS = 16
"""The most requests for one `read`: the smallest gaps are read through until they suffice."""
CHUNK = 1 << 22
"""The largest file in the cache: reading one row checks no more than this."""


def coalesce(spans: Sequence[Span], gap: int = GAP, limit: int = MAX_REQUESTS) -> list[Span]:
    """Sorted spans joined over gaps under `gap`, then over the smallest gaps until `limit` remain.

    >>> coalesce([(0, 10), (12, 20), (900, 910)], gap=100)
    [(0, 20), (900, 910)]
    """
    if not spans:
        return []
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    cuts = [i for i, width in enumerate(gaps) if width >= gap]
    if len(cuts) >= limit:
        cuts = sorted(heapq.nlargest(limit - 1, cuts, key=gaps.__getitem__))
    firsts = [0, *(i + 1 for i in cuts)]
    lasts = [*cuts, len(spans) - 1]
    return [(spans[a][0], spans[b][1]) for a, b in zip(firsts, lasts, strict=True)]


def subtract(spans: Iterable[Span], held: Iterable[Span]) -> list[Span]:
    """What of the sorted `spans` is outside the `held` ones, which are sorted by their start.

    >>> subtract([(0, 10), (20, 30)], [(5, 22)])
    [(0, 5), (22, 30)]
    """
    left = []
    holders = iter(held)
    holder = next(holders, None)
    reach = 0  # from where we are up to here, every byte is held
    for start, stop in spans:
        start = max(start, reach)
        while holder is not None and holder[0] < stop and start < stop:
            if start < holder[0]:
                left.append((start, holder[0]))
            reach = max(reach, holder[1])
            start = max(start, reach)
            holder = next(holders, None)
        if start < stop:
            left.append((start, stop))
    return left


def gather(spans: Sequence[Span], pieces: Iterable[Piece]) -> Tensor:
    """The bytes of the sorted `spans`, one after the other, out of pieces that cover them."""
    offsets = list(accumulate((stop - start for start, stop in spans), initial=0))
    stops = [stop for _, stop in spans]
    out = torch.empty(offsets[-1], dtype=torch.uint8)
    target: memoryview = out.numpy().data
    for begin, data in pieces:
        source = memoryview(data)
        at = bisect_right(stops, begin)
        while at < len(spans) and spans[at][0] < begin + len(data):
            start, stop = max(spans[at][0], begin), min(stops[at], begin + len(data))
            shift = offsets[at] - spans[at][0]
            target[start + shift : stop + shift] = source[start - begin : stop - begin]
            at += 1
    return out


def ranges_root() -> Path:
    """The folder of all ranges that were fetched."""
    return cache_root() / "ranges"


class RangeCache:
    """Ranges of one file on disk: `<server>/<repository>/<commit>/<file>.json` says which file it
    is, `<server>/<repository>/blobs/<file's identity>/<start>-<stop>` holds bytes behind their
    checksum. What one server says of a file is never taken for another's word.

    Files are written beside and then renamed, so that processes may share a cache. What cannot be
    written is not kept; what is damaged is fetched again.
    """

    def __init__(self, server: str, repo_id: str, commit: str, filename: str) -> None:
        self.folder = ranges_root() / quote(server, safe="") / repo_id.replace("/", "--")
        self._note = self.folder / quote(commit, safe="") / f"{quote(filename, safe='')}.json"
        self._fallback = f"{commit}/{filename}"
        self._blob: Path | None = None
        self._seen: tuple[int, list[Span]] = (-1, [])

    def identity(self) -> Identity | None:
        """Which file the ranges belong to, if any were kept."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            identity = Identity(note["size"], note["etag"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if type(identity.size) is not int or not isinstance(identity.etag, str):
            return None
        self._use(identity)
        return identity

    def keep(self, identity: Identity) -> None:
        """Note which file the ranges to come belong to."""
        self._use(identity)
        write_cache(self._note, json.dumps(identity._asdict()).encode())

    def forget(self) -> None:
        """Let the next reader find out anew which file it is."""
        with suppress(OSError):
            self._note.unlink()

    def _use(self, identity: Identity) -> None:
        name = f"{identity.size} {identity.etag or self._fallback}"
        self._blob = self.folder / "blobs" / hashlib.sha256(name.encode()).hexdigest()

    def held(self) -> list[Span]:
        """The ranges on disk, sorted by their start."""
        if self._blob is None:
            return []
        try:
            now = self._blob.stat().st_mtime_ns
            if now != self._seen[0]:
                names = (path.name.partition("-") for path in self._blob.iterdir())
                spans = [(int(a), int(b)) for a, _, b in names if a.isdecimal() and b.isdecimal()]
                self._seen = (now, sorted(spans))
        except OSError:
            self._seen = (-1, [])
        return self._seen[1]

    def pieces(self, spans: Sequence[Span]) -> list[Piece]:
        """What is held of the sorted `spans`, and more around it."""
        stops = [stop for _, stop in spans]
        pieces: list[Piece] = []
        for start, stop in self.held():
            at = bisect_right(stops, start)
            if at < len(spans) and spans[at][0] < stop:
                data = self._load(start, stop)
                pieces += [(start, data)] if data is not None else []
        return pieces

    def _load(self, start: int, stop: int) -> bytes | None:
        assert self._blob is not None
        path = self._blob / f"{start}-{stop}"
        with suppress(OSError):
            raw = path.read_bytes()
            if len(raw) == 4 + stop - start and raw[:4] == _checksum(memoryview(raw)[4:]):
                return raw[4:]
            path.unlink()
        return None

    def write(self, start: int, data: bytearray) -> None:
        """Keep a range."""
        assert self._blob is not None
        view = memoryview(data)
        for at in range(0, len(data), CHUNK):
            part = view[at : at + CHUNK]
            path = self._blob / f"{start + at}-{start + at + len(part)}"
            write_cache(path, _checksum(part) + part)


def _checksum(data: memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")
