"""Byte ranges over HTTP: a client that follows, retries and counts.

The Hub answers for a large file with a redirect to a content network. The token goes to the Hub
alone, and the redirect's target is remembered until it stops working.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from lexray.errors import LexrayError

Span = tuple[int, int]
"""The bytes from `start` up to, not including, `stop`."""

TRIES = 4
BACKOFF = 0.5
"""Seconds before the second try; doubled for each further one."""
LONGEST_WAIT = 60.0
TIMEOUT = 30.0
MAX_REDIRECTS = 5
BLOCK = 1 << 20
"""Bytes taken from a socket at once."""


class TransientError(Exception):
    """A failure that may pass; `wait` is how many seconds the server asks for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class ChangedError(LexrayError):
    """A file is not the one that it was when its header was read."""


class Identity(NamedTuple):
    """What tells one version of a file from another."""

    size: int
    etag: str


class RangeClient:
    """Sends requests over connections that stay open; counts them and the bytes that come back."""

    def __init__(
        self,
        hub: str,
        headers: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sleep = sleep
        self.requests = 0
        self.bytes_read = 0
        self._hub = _origin(hub)
        self._secret = {k: v for k, v in headers.items() if k.lower() == "authorization"}
        self._headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        self._headers["Accept-Encoding"] = "identity"
        self._idle: dict[str, list[HTTPConnection]] = defaultdict(list)
        self._lock = threading.Lock()

    def is_hub(self, url: str) -> bool:
        """Whether `url` is on the Hub itself, which may see the token."""
        return _origin(url) == self._hub

    def received(self, count: int) -> None:
        """Add to `bytes_read`; safe from several threads."""
        with self._lock:
            self.bytes_read += count

    @contextmanager
    def get(self, url: str, span: Span) -> Iterator[HTTPResponse]:
        """The answer to a request for a range, its body unread, redirects not followed."""
        headers = self._headers | {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        if self.is_hub(url):
            headers |= self._secret
        connection, response = self._exchange(url, headers)
        try:
            yield response
        finally:
            if response.isclosed() and not response.will_close:
                with self._lock:
                    self._idle[_origin(url)].append(connection)
            else:
                connection.close()

    def _exchange(self, url: str, headers: dict[str, str]) -> tuple[HTTPConnection, HTTPResponse]:
        with self._lock:
            idle = self._idle[_origin(url)]
            kept = idle.pop() if idle else None
        if kept:
            try:
                return kept, self._send(kept, url, headers)
            except ConnectionError:
                pass  # closed by the server since it was last used, which says nothing about now
        fresh = _connect(urlsplit(url))
        return fresh, self._send(fresh, url, headers)

    def _send(self, connection: HTTPConnection, url: str, headers: dict[str, str]) -> HTTPResponse:
        parts = urlsplit(url)
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        if parts.scheme == "http" and (proxy := _proxy(parts)):
            target, headers = url, headers | _proxy_authorization(proxy)
        with self._lock:
            self.requests += 1
        try:
            connection.request("GET", target, headers=headers)
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError) as error:
        raise LexrayError("a server redirects to an address that is no web address") from error
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def _proxy(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for this address."""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _connect(parts: SplitResult) -> HTTPConnection:
    proxy = _proxy(parts)
    host, port = (proxy or parts).hostname or "", (proxy or parts).port
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=TIMEOUT)
    connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=_tls())
    if proxy:
        connection.set_tunnel(parts.hostname or "", parts.port, _proxy_authorization(proxy))
    return connection


class RangedFile:
    """A file on the Hub, read by ranges. `where` is what errors call it."""

    def __init__(self, client: RangeClient, url: str, where: str) -> None:
        self.where = where
        self.size: int | None = None
        self._client = client
        self._url = url
        self._location = url
        self._tags: dict[str, str] = {}

    @property
    def identity(self) -> Identity:
        """Known once something was fetched."""
        assert self.size is not None
        return Identity(self.size, self._tags.get(self._url, ""))

    def expect(self, identity: Identity) -> None:
        """Accept only the file that was seen earlier."""
        self.size = identity.size
        if identity.etag:
            self._tags[self._url] = identity.etag

    def fetch(self, span: Span) -> bytearray:
        """The bytes of one range, up to the file's end; goes on where a connection breaks."""
        body = bytearray()
        for attempt in range(1, TRIES + 1):
            try:
                self._extend(body, span)
                break
            except (TransientError, OSError, HTTPException) as error:
                reason = str(error) or type(error).__name__
                if attempt == TRIES:
                    raise LexrayError(
                        f"{self.where} cannot be read after {TRIES} tries ({reason}); "
                        "check the connection or try again later"
                    ) from error
                asked = error.wait if isinstance(error, TransientError) else None
                self._client.sleep(BACKOFF * 2 ** (attempt - 1) if asked is None else asked)
        return body

    def _extend(self, body: bytearray, span: Span) -> None:
        start, stop = span[0] + len(body), span[1]
        if self.size is not None:
            stop = min(stop, self.size)
        with self._answer((start, stop)) as response:
            size = _total(response, (start, stop), self.where)
            if self.size not in (None, size):
                raise self._changed(f"{self.size} bytes", f"{size} bytes")
            self.size = size
            missing = min(stop, size) - start
            while missing:
                block = response.read(min(BLOCK, missing))
                if not block:
                    raise TransientError(f"the server's answer is {missing} bytes short")
                self._client.received(len(block))
                body += block
                missing -= len(block)

    @contextmanager
    def _answer(self, span: Span) -> Iterator[HTTPResponse]:
        """A 206 answer to a request for the range, redirects followed."""
        url = self._location
        for _ in range(MAX_REDIRECTS + 1):
            with self._client.get(url, span) as response:
                self._check_tag(url, response)
                if not (300 <= response.status < 400 and "Location" in response.headers):
                    self._check_status(url, response)
                    self._location = url
                    yield response
                    return
                response.read(BLOCK)
                url = self._redirected(url, response.headers["Location"])
        raise LexrayError(f"{self.where}: the server redirects without end")

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
        except ValueError:
            target = ""
        if not target.startswith(
            "https://" if url.startswith("https://") else ("http://", "https://")
        ):
            raise LexrayError(f"{self.where}: the server redirects to an unsafe address")
        return target

    def _check_tag(self, url: str, response: HTTPResponse) -> None:
        if response.status >= 400:
            return
        tag = response.headers.get("X-Linked-Etag") or response.headers.get("ETag")
        if tag:
            tag = tag.removeprefix("W/").strip('"')
            if (known := self._tags.setdefault(url, tag)) != tag:
                raise self._changed(f"ETag {known}", f"ETag {tag}")

    def _changed(self, before: str, now: str) -> ChangedError:
        return ChangedError(
            f"{self.where} changed on the server while it was read ({before}, now {now}); "
            "open the model again"
        )

    def _check_status(self, url: str, response: HTTPResponse) -> None:
        status = response.status
        if status == 206:
            return
        if status == 200:
            raise LexrayError(
                f"{self.where}: the server ignores byte ranges and would send the whole file; "
                "open the model without remote=True to download it"
            )
        if status in (408, 429) or status >= 500:
            wait = response.headers.get("Retry-After", "")
            raise TransientError(
                f"HTTP {status}", min(float(wait), LONGEST_WAIT) if wait.isdecimal() else None
            )
        if status in (401, 403, 404, 410) and not self._client.is_hub(url):
            self._location = self._url  # the link has expired: ask the Hub for a new one
            raise TransientError(f"HTTP {status} from the host that the Hub redirects to", wait=0)
        raise LexrayError(
            f"{self.where}: {_REFUSALS.get(status, f'the server answers HTTP {status}')}"
        )


_CLOSED = "gated or private: pass token=… or run `hf auth login`"
_REFUSALS = {
    401: f"HTTP 401, {_CLOSED}",
    403: f"HTTP 403, {_CLOSED}",
    404: "HTTP 404, the repository has no such file at this commit",
    416: "HTTP 416, the file is shorter than it should be; it may be empty or still uploading",
}


def _total(response: HTTPResponse, span: Span, where: str) -> int:
    """The file's size from `Content-Range`, which must be the range that was asked for."""
    answer = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", answer.strip())
    if found:
        first, last, total = map(int, found.groups())
        if (first, last + 1) == (span[0], min(span[1], total)):
            return total
    raise LexrayError(
        f"{where}: asked for bytes {span[0]}-{span[1] - 1}, the server answers with "
        f"Content-Range {answer!r}"
    )
