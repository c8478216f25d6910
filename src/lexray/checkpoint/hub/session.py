"""huggingface_hub's own session and back-off, within bounds.

A server may answer with a few bytes that unpack to gigabytes, with a body that never ends, with one
byte a second, with headers that never come, or ask for a year's patience. Inside `bounded`, what
goes through huggingface_hub's session is held to a size, a pace and a time; outside of it, and for
the rest of the program, the session is as it was.

The bounds hang on the session as two hooks, which its HTTP library calls before each request and
after each answer's headers.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import close_session, get_session, set_client_factory

from lexray.checkpoint.hub.grammar import check_token
from lexray.errors import LexrayError

HEADERS_WITHIN = 60.0
"""Seconds from a request to the end of the answer's headers."""
GRACE = 30.0
"""Seconds after which an answer's body has to come at a pace."""
SLOWEST = 1000.0
"""That pace, in bytes a second: a tenth of the first modems' successors."""
LONGEST_WAIT = 60
"""The most seconds that a server may ask us to wait before the next try."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_RATE_LIMIT_TIME = re.compile(r"(;\s*t\s*=\s*)(\d+)")


@dataclass
class Bounds:
    """What an exchange with a server may take, and what it has taken."""

    what: str
    """What is asked for, in errors."""
    longest: int | None
    """The most bytes of a body; None where the server only has to say how many."""
    until: float
    """When it has to be over, on the monotonic clock."""
    asked: Callable[[], None]
    """Called for every request."""
    timer: threading.Timer | None = None
    expired: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """A request goes out: its answer's headers have to come in time."""
        self.check_time()
        self.settle()
        self.asked()
        within = min(HEADERS_WITHIN, self.until - time.monotonic())
        self.timer = threading.Timer(within, self._abort)
        self.timer.daemon = True
        self.timer.start()

    def settle(self) -> None:
        """The headers are there, or the request has failed."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _abort(self) -> None:
        """Closes the connections, so that the thread that waits for headers wakes up."""
        self.expired = True
        close_session()

    def check_time(self) -> None:
        if self.expired or time.monotonic() > self.until:
            raise self.too_slow()

    def too_slow(self) -> LexrayError:
        return LexrayError(
            f"{self.what}: the server does not answer in time; check the connection or try later"
        )

    def too_long(self) -> LexrayError:
        limit = "than it said" if self.longest is None else f"than {self.longest:,} bytes"
        return LexrayError(f"{self.what}: the server sends more {limit}, which cannot be right")


_BOUNDS: ContextVar[Bounds | None] = ContextVar("lexray_bounds", default=None)
_LOCK = threading.Lock()


@contextmanager
def limit(
    what: str,
    longest: int | None,
    seconds: float,
    asked: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Within this, requests through huggingface_hub's session are bounded; `asked` counts them."""
    _guard_session()
    bounds = Bounds(what, longest, time.monotonic() + seconds, asked)
    token = _BOUNDS.set(bounds)
    try:
        yield
    except LexrayError:
        raise
    except Exception as error:
        if bounds.expired:
            raise bounds.too_slow() from error
        raise
    finally:
        _BOUNDS.reset(token)
        bounds.settle()


def _guard_session() -> None:
    """Lets every session from now on have our hooks, also one that replaces a broken one."""
    with _LOCK:
        made = _factory() or _imitate(get_session())
        if getattr(made, "bounded_by_lexray", False):
            return

        def make() -> Any:
            client = made()
            client.event_hooks["request"].append(_before)
            client.event_hooks["response"].append(_after)
            return client

        make.bounded_by_lexray = True  # type: ignore[attr-defined]
        set_client_factory(make)


def _factory() -> Callable[[], Any] | None:
    """What makes huggingface_hub's sessions: its own, or what a user gave it.

    There is no public word for it; None in a version that calls it something else.
    """
    made = getattr(sys.modules[set_client_factory.__module__], "_GLOBAL_CLIENT_FACTORY", None)
    return made if callable(made) else None


def _imitate(client: Any) -> Callable[[], Any]:
    """What makes sessions like this one, as far as a session tells: a transport of the user's own
    is not seen, while proxies and certificates of the environment are."""
    hooks = {kind: list(each) for kind, each in client.event_hooks.items()}

    def make() -> Any:
        return type(client)(
            headers=client.headers,
            cookies=client.cookies,
            auth=client.auth,
            timeout=client.timeout,
            trust_env=client.trust_env,
            follow_redirects=client.follow_redirects,
            max_redirects=client.max_redirects,
            event_hooks={kind: list(each) for kind, each in hooks.items()},
        )

    make.bounded_by_lexray = _before in hooks["request"]  # type: ignore[attr-defined]
    return make


def _before(request: Any) -> None:
    if (bounds := _BOUNDS.get()) is not None:
        request.headers["Accept-Encoding"] = "identity"
        bounds.begin()


def _after(response: Any) -> None:
    if (bounds := _BOUNDS.get()) is None:
        return
    bounds.settle()
    bounds.check_time()
    _check_location(response, bounds.what)
    _check_versions(response, bounds.what)
    _shorten_waits(response)
    _check_length(response, bounds)
    response.headers.pop("X-Xet-Hash", None)  # files come over this session, which is bounded
    response.stream = _pace(response, bounds)


def _check_location(response: Any, what: str) -> None:
    """Refuses redirects to what is no host, or out of HTTPS."""
    location = response.headers.get("Location")
    if location is None:
        return
    here = str(response.request.url)
    try:
        target = urlsplit(urljoin(here, location))
        host, _ = target.hostname or "", target.port
    except ValueError:
        raise LexrayError(f"{what}: the server redirects to what is no web address") from None
    allowed = ("https",) if here.startswith("https:") else ("http", "https")
    if target.scheme not in allowed:
        raise LexrayError(f"{what}: the server redirects to an unsafe address")
    if ":" not in host and not _is_host(host):
        raise LexrayError(f"{what}: the server redirects to an address without a proper host")


def _is_host(name: str) -> bool:
    return len(name) <= 253 and all(map(_LABEL.fullmatch, name.removesuffix(".").split(".")))


def _check_versions(response: Any, what: str) -> None:
    """Refuses commits and ETags that could lead out of a cache, where they become names."""
    headers, linked = response.headers, response.headers.get("X-Linked-Etag")
    if commit := headers.get("X-Repo-Commit"):
        check_token(commit, "commit", what)
    tag = linked or (headers.get("ETag") if response.request.method == "HEAD" else None)
    if tag and response.status_code < 400:
        check_token(tag.lstrip("W/").strip('"'), "ETag", what)


def _shorten_waits(response: Any) -> None:
    headers = response.headers
    wait = headers.get("Retry-After", "").strip()
    if wait.isdigit() and (len(wait) > 4 or int(wait) > LONGEST_WAIT):
        headers["Retry-After"] = str(LONGEST_WAIT)
    if limit := headers.get("RateLimit"):
        headers["RateLimit"] = _RATE_LIMIT_TIME.sub(_shorter, limit)


def _shorter(match: re.Match[str]) -> str:
    seconds = LONGEST_WAIT if len(match[2]) > 4 else min(int(match[2]), LONGEST_WAIT)
    return f"{match[1]}{seconds}"


def _check_length(response: Any, bounds: Bounds) -> None:
    """Refuses packed bodies, and those that say that they are too long, or do not say how long."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise LexrayError(f"{bounds.what}: the server packs its answer, which it was asked not to")
    if response.request.method == "HEAD" or response.status_code >= 300:
        return
    if "Range" in response.request.headers and response.status_code == 200:
        return  # the whole file instead of a range: whoever asked for the range will refuse it
    length = headers.get("Content-Length", "").strip()
    if bounds.longest is None:
        if not length.isdigit():
            raise LexrayError(f"{bounds.what}: the server does not say how long the file is")
    elif length.isdigit() and (len(length) > 18 or int(length) > bounds.longest):
        raise bounds.too_long()


ERROR_BODY = 1 << 20
"""The most bytes of an answer that is only an error message or a redirect."""


def _pace(response: Any, bounds: Bounds) -> Any:
    """The answer's body, of which each piece is held to the bounds."""
    library = sys.modules[type(response).__module__.partition(".")[0]]
    inner = response.stream
    longest = ERROR_BODY if response.status_code >= 300 else bounds.longest

    class Paced(library.SyncByteStream):  # type: ignore[name-defined,misc]
        def __iter__(self) -> Iterator[bytes]:
            start, count = time.monotonic(), 0
            for piece in inner:
                count += len(piece)
                if longest is not None and count > longest:
                    raise bounds.too_long()
                bounds.check_time()
                passed = time.monotonic() - start
                if passed > GRACE and count < SLOWEST * passed:
                    raise bounds.too_slow()
                yield piece

        def close(self) -> None:
            inner.close()

    return Paced()
