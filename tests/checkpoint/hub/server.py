"""A Hub on this machine that counts: `with serve(folder) as hub:` for a folder of `org/name/files`.

Weights are redirected to a second server, the "cdn", as the Hub does. `hub.use(monkeypatch,
tmp_path)` points huggingface_hub and lexray at it, with empty caches. What a server may do wrong is
an attribute:

>>> hub.failures = [503, 503]     # the next two requests for a range
>>> hub.ignore_ranges = True
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".bin", ".gguf", ".h5")
BLOCK = 1 << 16


@dataclass
class Request:
    """What was asked and answered; `sent` counts the bytes of the body."""

    server: str
    method: str
    path: str
    file: str | None
    range: tuple[int, int] | None
    """(start, stop) as asked, stop not included."""
    headers: dict[str, str]
    port: int = 0
    """The other end's: the same for all that goes over one connection."""
    status: int = 0
    sent: int = 0

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")


@dataclass
class FakeHub:
    """The two servers' address, log and misbehaviour."""

    folder: Path
    url: str = ""
    cdn_url: str = ""
    log: list[Request] = field(default_factory=list)

    redirect: bool = True
    """Large files are served by the other server."""
    token: str | None = None
    """If set, files need it (gated)."""
    private: bool = False
    """With `token`: the repository does not exist for those without it."""
    unavailable: bool = False
    """Every request gets a 503."""

    listing: list[str] | None = None
    """Said to be the repository's files, instead of those that are there."""
    failures: list[int | str] = field(default_factory=list)
    """For the next requests for a range: a status, or "drop" (no answer), "cut" (half a body)."""
    retry_after: str | None = None
    ignore_ranges: bool = False
    content_range: str | None = None
    """Sent instead of the right one."""
    etag: str | None = None
    """Sent for large files instead of their own."""
    signature: int = 0
    """Links to the cdn with another one have expired."""

    def commit(self, repo: str) -> str:
        """The commit that `main` is, which depends on what the folder holds."""
        files = sorted(p for p in (self.folder / repo).rglob("*") if p.is_file())
        state = "".join(f"{p.name}{p.stat().st_size}" for p in files)
        return hashlib.sha1(f"{repo}{state}".encode()).hexdigest()

    def reset(self) -> None:
        """Empty the log."""
        self.log.clear()

    def requests(self, file: str | None = None) -> list[Request]:
        """The requests that asked for a range, of one file or of all."""
        return [r for r in self.log if r.range and file in (None, r.file)]

    def ranges(self, file: str | None = None) -> list[tuple[int, int]]:
        """The ranges that were served, sorted."""
        return sorted(r.range for r in self.requests(file) if r.range and r.status == 206)

    def sent(self, file: str | None = None) -> int:
        """How many bytes of ranges were sent."""
        return sum(r.sent for r in self.requests(file) if r.status in (200, 206))

    def files(self) -> set[str]:
        """The files of which something was asked for."""
        return {r.file for r in self.log if r.file}

    def use(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Make this the Hub, with caches of its own in `tmp_path`."""
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_ENDPOINT", self.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "lexray"))


@contextmanager
def serve(folder: Path) -> Iterator[FakeHub]:
    """Both servers, in threads, until the block ends."""
    hub = FakeHub(folder)
    with (
        _server(partial(_Handler, hub, "hub")) as hub.url,
        _server(partial(_Handler, hub, "cdn")) as cdn,
    ):
        hub.cdn_url = cdn
        yield hub


@contextmanager
def _server(handler: partial[_Handler]) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Clients that hang up are part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, hub: FakeHub, server: str, *args: object) -> None:
        self.hub = hub
        self.role = server
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        file = re.fullmatch(r"/(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)", path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.entry = Request(
            self.role,
            self.command,
            path,
            file["file"] if file else None,
            (int(asked[1]), int(asked[2]) + 1) if asked else None,
            {key.lower(): value for key, value in self.headers.items()},
            self.client_address[1],
        )
        self.hub.log.append(self.entry)
        if self.hub.unavailable:
            self._reply(503)
        elif api := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
            self._describe(api[1], api[2] or "main")
        elif file:
            self._file(file["repo"], file["revision"], file["file"])
        else:
            self._refuse(404, "RepoNotFound")

    def _refused(self, repo: str, revision: str) -> bool:
        hub = self.hub
        stranger = hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}"
        if not (hub.folder / repo).is_dir() or (stranger and hub.private):
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", hub.commit(repo)):
            self._refuse(404, "RevisionNotFound")
        elif stranger and self.entry.file and self.role == "hub":
            self._refuse(401, "GatedRepo")
        else:
            return False
        return True

    def _describe(self, repo: str, revision: str) -> None:
        if self._refused(repo, revision):
            return
        root = self.hub.folder / repo
        files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        siblings = [{"rfilename": name} for name in self.hub.listing or files]
        answer = {"id": repo, "sha": self.hub.commit(repo), "siblings": siblings}
        self._reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, revision: str, name: str) -> None:
        hub, path = self.hub, self.hub.folder / repo / name
        if self.role == "hub" and self._refused(repo, revision):
            return
        headers = {"X-Repo-Commit": hub.commit(repo)}
        if not path.is_file():
            self._refuse(404, "EntryNotFound", headers)
            return
        large = name.endswith(LARGE)
        etag = f'"{(hub.etag if large else None) or _digest(path)}"'
        if self.role == "hub" and large and hub.redirect:
            size = str(path.stat().st_size)
            link = f"{hub.cdn_url}{urlsplit(self.path).path}?signature={hub.signature}"
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": size, "Location": link}
            self._reply(302, b"Found.", headers)
        elif self.role == "cdn" and f"signature={hub.signature}" not in self.path:
            self._refuse(403, "Expired")
        else:
            headers |= {"ETag": f'"cdn-{etag[1:]}' if self.role == "cdn" else etag}
            self._content(path, headers)

    def _content(self, path: Path, headers: dict[str, str]) -> None:
        hub, size, asked = self.hub, path.stat().st_size, self.entry.range
        failure = hub.failures.pop(0) if hub.failures and asked else None
        if failure == "drop":
            self.close_connection = True
        elif isinstance(failure, int):
            self._reply(
                failure, headers={"Retry-After": hub.retry_after} if hub.retry_after else {}
            )
        elif not asked or hub.ignore_ranges:
            self._stream(200, path, 0, size, headers)
        elif asked[0] >= size:
            self._reply(416)
        else:
            start, stop = asked[0], min(asked[1], size)
            right = f"bytes {start}-{stop - 1}/{size}"
            headers["Content-Range"] = right if hub.content_range is None else hub.content_range
            self._stream(206, path, start, stop, headers, cut=failure == "cut")

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._reply(
            status, b"no", {"X-Error-Code": code, "X-Error-Message": code} | (headers or {})
        )

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self._head(status, len(body), headers or {})
        if self.command == "GET":
            self.entry.sent += len(body)
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.entry.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _stream(
        self,
        status: int,
        path: Path,
        start: int,
        stop: int,
        headers: dict[str, str],
        cut: bool = False,
    ) -> None:
        self._head(status, stop - start, headers)
        if self.command != "GET":
            return
        end = (start + stop) // 2 if cut else stop
        self.close_connection |= cut
        with path.open("rb") as file:
            file.seek(start)
            for at in range(start, end, BLOCK):
                block = file.read(min(BLOCK, end - at))
                self.entry.sent += len(block)
                try:
                    self.wfile.write(block)
                except OSError:
                    self.close_connection = True
                    return


def _digest(path: Path) -> str:
    """Stands in for a hash of the content, of files that may be large."""
    return hashlib.sha256(f"{path}{path.stat().st_size}".encode()).hexdigest()
