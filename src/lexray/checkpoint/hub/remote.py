"""A model on the Hub without downloading it: headers and exactly the needed byte ranges over HTTP.

Small files (config, tokenizer, index) come through huggingface_hub; of the weights, what was once
fetched stays in a cache on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.assets import CONFIG
from lexray.checkpoint.base import Box, Checkpoint, TensorInfo, runs
from lexray.checkpoint.hub.ranged import ChangedError, Identity, RangeClient, RangedFile, Span
from lexray.checkpoint.hub.ranges import Piece, RangeCache, coalesce, gather, ranges_root, subtract
from lexray.checkpoint.hub.repository import (
    SAFETENSORS,
    Repository,
    Token,
    authorization,
    endpoint,
    is_offline,
)
from lexray.checkpoint.plain import read_json
from lexray.checkpoint.safetensors import (
    TensorSpan,
    header_length,
    parse_header,
    parse_metadata,
    weight_map,
)
from lexray.errors import LexrayError

HEADER_GUESS = 1 << 16
"""What the first request for a file asks for: most headers fit into it."""
THREADS = 4
"""Requests under way at once."""


class RemoteCheckpoint(Checkpoint):
    """Safetensors on the Hub, read by byte ranges. `requests` and `bytes_read` count what was asked
    of the servers for headers and weights, not small files and not what the cache held.

    With `checkpoint = RemoteCheckpoint.open("gpt2")`, `checkpoint.read("wte.weight", slice(0, 10))`
    is one request for ten rows, 30,720 bytes.
    """

    remote = True

    def __init__(self, repository: Repository, index: dict[str, str] | None, client: RangeClient):
        self.name = repository.id
        self.revision = repository.commit
        self._repository = repository
        self._index = index
        self._client = client
        self._shards: dict[str, RemoteShard] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        repo_id: str,
        revision: str | None = None,
        token: Token = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> RemoteCheckpoint:
        """Look up the commit and, for a sharded model, its index; no weights are touched yet."""
        if repo_id.endswith(".gguf"):
            raise LexrayError(f"{repo_id}: only safetensors can be read remotely; {_DOWNLOAD}")
        repository = Repository.resolve(repo_id, revision, token)
        headers = {"User-Agent": "lexray"} | authorization(token)
        checkpoint = cls(repository, _index(repository), RangeClient(endpoint(), headers, sleep))
        if CONFIG in repository.files:
            repository.download(CONFIG)
            repository.remember(CONFIG)
        return checkpoint

    @property
    def bytes_read(self) -> int:  # type: ignore[override]  # counted where the bytes arrive
        return self._client.bytes_read

    @property
    def requests(self) -> int:
        """Requests for headers and weights so far, redirects included."""
        return self._client.requests

    def names(self) -> Collection[str]:
        if self._index is not None:
            return self._index.keys()
        return self._shard(SAFETENSORS).entries.keys()

    def marks(self) -> tuple[str, ...]:
        return (endpoint(), self.name, str(self.revision))

    def info(self, name: str) -> TensorInfo:
        return self._find(name)[1]

    def peek(self, name: str) -> TensorInfo | None:
        shard = self._shards.get(SAFETENSORS if self._index is None else self._index.get(name, ""))
        return self.info(name) if shard is not None and shard.is_open else None

    def _read(self, name: str, box: Box) -> Tensor:
        return self._read_as(name, self.info(name).shape, box)

    def _read_as(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        shard, entry = self._find(name)
        data = shard.read(_spans(entry, shape, box))
        sizes = [stop - start for start, stop in box]
        if not data.numel():
            return torch.empty(sizes, dtype=entry.dtype)
        return data.view(entry.dtype).view(sizes)

    def size(self, name: str) -> int:
        return super()._cost(name, self._box(name, ()))

    def _cost(self, name: str, box: Box) -> int:
        return self.cost_as(name, self.info(name).shape, box)

    def cost_as(self, name: str, shape: tuple[int, ...], box: Box) -> int:
        shard, entry = self._find(name)
        return sum(stop - start for start, stop in shard.plan(_spans(entry, shape, box)))

    def metadata_of(self, name: str) -> dict[str, str]:
        return self._find(name)[0].metadata()

    @property
    def config(self) -> dict[str, Any]:
        path = self.asset(CONFIG)
        if path is None:
            raise LexrayError(f"{self.name} at {self.revision} has no {CONFIG}")
        return read_json(path)

    def asset(self, filename: str) -> Path | None:
        if filename not in self._repository.files:
            return None
        return self._repository.download(filename)

    def _find(self, name: str) -> tuple[RemoteShard, TensorSpan]:
        filename = SAFETENSORS if self._index is None else self._index.get(name)
        if filename is None:
            raise self.missing(name)
        shard = self._shard(filename)
        if name in shard.entries:
            return shard, shard.entries[name]
        if self._index is None:
            raise self.missing(name)
        raise LexrayError(
            f"{self.name}: the index says that {name} is in {filename}, which does not have it; "
            "index and shards do not belong together"
        )

    def _shard(self, filename: str) -> RemoteShard:
        with self._lock:
            if filename not in self._shards:
                self._shards[filename] = RemoteShard(self._repository, filename, self._client)
            return self._shards[filename]


_DOWNLOAD = "open it without remote=True to download it"


def _index(repository: Repository) -> dict[str, str] | None:
    """Which shard holds which tensor; None for a single file."""
    files = repository.files
    if SAFETENSORS in files:
        return None
    if (index := f"{SAFETENSORS}.index.json") in files:
        return weight_map(repository.download(index))
    if repository.offline:
        if RangeCache(endpoint(), repository.id, repository.commit, SAFETENSORS).identity():
            return None
        raise LexrayError(
            f"nothing of {repository.id}'s weights is in {ranges_root()}, and "
            + ("HF_HUB_OFFLINE is set" if is_offline() else f"{endpoint()} cannot be reached")
        )
    weights = sorted(
        f for f in files if f.endswith((".bin", ".gguf", ".safetensors", ".pt", ".h5"))
    )
    there = f"there are {', '.join(weights)}" if weights else "nor other weights"
    raise LexrayError(
        f"{repository.id} has no {SAFETENSORS} ({there}), "
        f"and only safetensors can be read remotely; {_DOWNLOAD}"
    )


def _spans(entry: TensorSpan, shape: tuple[int, ...], box: Box) -> list[Span]:
    """Where in its file the part of a tensor, seen in this shape, is, in order."""
    parts = runs(shape, entry.dtype.itemsize, box)
    return [(entry.start + at, entry.start + at + length) for at, length in parts]


class RemoteShard:
    """One safetensors file: its header when first needed, then the spans asked for."""

    def __init__(self, repository: Repository, filename: str, client: RangeClient) -> None:
        self._where = f"{filename} of {repository.id} at {repository.commit[:12]}"
        self._file = RangedFile(client, repository.url(filename), self._where)
        self._cache = RangeCache(endpoint(), repository.id, repository.commit, filename)
        self._offline = is_offline()
        self._lock = threading.Lock()

    @property
    def entries(self) -> dict[str, TensorSpan]:
        """Its tensors."""
        with self._lock:
            return self._entries

    @property
    def is_open(self) -> bool:
        """Whether the header was read already."""
        return "_entries" in self.__dict__

    @cached_property
    def _entries(self) -> dict[str, TensorSpan]:
        size = self._identify().size
        return parse_header(self._header(size), size, self._where)

    def _header(self, size: int) -> bytes:
        first = self._bytes((0, min(size, HEADER_GUESS)))
        stop = 8 + header_length(first, size, self._where)
        return first[8:stop] if stop <= len(first) else self._bytes((0, stop))[8:]

    def metadata(self) -> dict[str, str]:
        """The texts of its header beside its tensors."""
        with self._lock:
            return parse_metadata(self._header(self._identify().size), self._where)

    def _identify(self) -> Identity:
        """Which file it is: from the cache, or from the first request, which is kept there."""
        identity = self._cache.identity()
        if identity is not None:
            self._file.expect(identity)
            return identity
        self._refuse_offline()
        first = self._file.fetch((0, HEADER_GUESS))
        self._cache.keep(self._file.identity)
        self._cache.write(0, first)
        return self._file.identity

    def _bytes(self, span: Span) -> bytes:
        return self.read([span]).numpy().tobytes()

    def plan(self, spans: Sequence[Span]) -> list[Span]:
        """What reading the sorted `spans` would fetch."""
        return coalesce(subtract(spans, self._cache.held()))

    def read(self, spans: Sequence[Span]) -> Tensor:
        """The bytes of the sorted `spans`, one after the other."""
        pieces = self._cache.pieces(spans)
        held = ((start, start + len(data)) for start, data in pieces)
        wanted = coalesce(subtract(spans, held))
        if wanted:
            self._refuse_offline()
            pieces += self._fetch(wanted)
        return gather(spans, pieces)

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        first = [self._fetch_one(span) for span in spans[:1]]  # finds out where the others are
        with ThreadPoolExecutor(THREADS) as pool:
            return first + list(pool.map(self._fetch_one, spans[1:]))

    def _fetch_one(self, span: Span) -> Piece:
        try:
            body = self._file.fetch(span)
        except ChangedError:
            self._cache.forget()
            raise
        self._cache.write(span[0], body)
        return span[0], body

    def _refuse_offline(self) -> None:
        if self._offline:
            raise LexrayError(
                f"not all that is needed of {self._where} is in {ranges_root()}, and "
                "HF_HUB_OFFLINE is set; unset it to read the rest"
            )
