"""Byte ranges of one file on the Hub, through huggingface_hub's session and back-off.

The Hub answers for a large file with a redirect to a content network. The token goes to the Hub
alone, and the redirect's target is remembered until it stops working.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import http_stream_backoff  # type: ignore[attr-defined]

from lexray.checkpoint.hub.session import limit
from lexray.errors import LexrayError

Span = tuple[int, int]
"""The bytes from `start` up to, not including, `stop`."""

TRIES = 4
BACKOFF = 0.5
"""Seconds before the second try; doubled for each further one."""
TIMEOUT = 30.0
"""Seconds of silence after which a try has failed."""
WITHIN = 600.0
"""Seconds that one range may take with all its tries, besides what its size takes."""
SLOW = 20_000
"""Bytes a second that a slow line brings."""
MAX_REDIRECTS = 5


class TransientError(Exception):
    """A failure that may pass; `wait` says whether it is worth waiting for that."""

    def __init__(self, reason: str, wait: bool = True) -> None:
        super().__init__(reason)
        self.wait = wait


class ChangedError(LexrayError):
    """A file is not the one that it was when its header was read."""


class Identity(NamedTuple):
    """What tells one version of a file from another."""

    size: int
    etag: str


class RangeClient:
    """Who asks: the Hub that may see the token, and counts of requests and of bytes that came."""

    def __init__(
        self,
        hub: str,
        headers: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sleep = sleep
        self.requests = 0
        self.bytes_read = 0
        self._hub = origin(hub)
        self._secret = {k: v for k, v in headers.items() if k.lower() == "authorization"}
        self._headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        self._lock = threading.Lock()

    def is_hub(self, url: str) -> bool:
        """Whether `url` is on the Hub itself, which may see the token."""
        return origin(url) == self._hub

    def count_request(self) -> None:
        """Count a request; safe from several threads."""
        with self._lock:
            self.requests += 1

    def count_bytes(self, count: int) -> None:
        """Count bytes that came; safe from several threads."""
        with self._lock:
            self.bytes_read += count

    @contextmanager
    def get(self, url: str, span: Span) -> Iterator[Any]:
        """The answer to a request for a range, its body unread, redirects not followed."""
        headers = self._headers | {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        if self.is_hub(url):
            headers |= self._secret
        with http_stream_backoff(
            "GET",
            url,
            headers=headers,
            timeout=TIMEOUT,
            follow_redirects=False,
            max_retries=TRIES - 1,
            base_wait_time=BACKOFF,
        ) as response:
            yield response


def origin(url: str) -> str:
    """Scheme, host and port."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError) as error:
        raise LexrayError(f"{url!r} is no web address") from error
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


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
        length = span[1] - span[0]
        with limit(self.where, length, WITHIN + length / SLOW, self._client.count_request):
            for attempt in range(1, TRIES + 1):
                try:
                    self._extend(body, span)
                    break
                except TransientError as error:
                    if attempt == TRIES:
                        raise self._explain_failure(error) from error
                    if error.wait:
                        self._client.sleep(BACKOFF * 2 ** (attempt - 1))
                except LexrayError:
                    raise
                except Exception as error:  # whatever the HTTP library below raises
                    raise self._explain_failure(error) from error
        return body

    def _explain_failure(self, error: Exception) -> LexrayError:
        status = getattr(getattr(error, "response", None), "status_code", None)
        known = isinstance(error, HfHubHTTPError) and status is not None
        reason = f"HTTP {status}" if known else str(error) or type(error).__name__
        return LexrayError(
            f"{self.where} cannot be read after {TRIES} tries ({reason[:200]}); "
            "check the connection or try again later"
        )

    def _extend(self, body: bytearray, span: Span) -> None:
        start, stop = span[0] + len(body), span[1]
        if self.size is not None:
            stop = min(stop, self.size)
        with self._answer((start, stop)) as response:
            size = _total(response, (start, stop), self.where)
            if self.size not in (None, size):
                raise self._explain_change(f"{self.size} bytes", f"{size} bytes")
            self.size = size
            missing = min(stop, size) - start
            # An error inside the block would look to the back-off like one of the request.
            broken = self._take(response, body, missing)
        if broken is not None:
            raise TransientError(broken)

    def _take(self, response: Any, body: bytearray, missing: int) -> str | None:
        """Adds what comes to `body`; why it broke off, if it did."""
        try:
            for block in response.iter_raw():
                self._client.count_bytes(min(len(block), missing))
                body += block[:missing]
                missing -= len(block)
        except LexrayError:
            raise
        except Exception as error:  # whatever the HTTP library below raises
            if missing > 0:
                return f"the server's answer is {missing} bytes short: {error}"
        return f"the server's answer is {missing} bytes short" if missing > 0 else None

    @contextmanager
    def _answer(self, span: Span) -> Iterator[Any]:
        """A 206 answer to a request for the range, redirects followed."""
        url = self._location
        for _ in range(MAX_REDIRECTS + 1):
            with self._client.get(url, span) as response:
                self._check_tag(url, response)
                if not (300 <= response.status_code < 400 and "Location" in response.headers):
                    self._check_status(url, response)
                    self._location = url
                    yield response
                    return
                url = urljoin(url, response.headers["Location"])  # the session has checked it
        raise LexrayError(f"{self.where}: the server redirects without end")

    def _check_tag(self, url: str, response: Any) -> None:
        if response.status_code >= 400:
            return
        tag = response.headers.get("X-Linked-Etag") or response.headers.get("ETag")
        if tag:
            tag = tag.removeprefix("W/").strip('"')
            if (known := self._tags.setdefault(url, tag)) != tag:
                raise self._explain_change(f"ETag {known}", f"ETag {tag}")

    def _explain_change(self, before: str, now: str) -> ChangedError:
        return ChangedError(
            f"{self.where} changed on the server while it was read ({before}, now {now}); "
            "open the model again"
        )

    def _check_status(self, url: str, response: Any) -> None:
        status = response.status_code
        if status == 206:
            return
        if status == 200:
            raise LexrayError(
                f"{self.where}: the server ignores byte ranges and would send the whole file; "
                "open the model without remote=True to download it"
            )
        if status in (401, 403, 404, 410) and not self._client.is_hub(url):
            self._location = self._url  # the link has expired: ask the Hub for a new one
            raise TransientError(
                f"HTTP {status} from the host that the Hub redirects to", wait=False
            )
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


def _total(response: Any, span: Span, where: str) -> int:
    """The file's size from `Content-Range`, which must be the range that was asked for."""
    answer = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", answer.strip())
    if match:
        first, last, total = map(int, match.groups())
        if (first, last + 1) == (span[0], min(span[1], total)):
            return total
    raise LexrayError(
        f"{where}: asked for bytes {span[0]}-{span[1] - 1}, the server answers with "
        f"Content-Range {answer[:100]!r}"
    )
