"""Who may ask, and how much: the layer around every request.

- The Host must be this machine's own name: a page of another site, whose name was made to point
  here (DNS rebinding), has another one.
- A request that another site's page sends is refused (Origin, Sec-Fetch-Site).
- Whatever computes needs the token of this start: from the address that was opened first, then
  from a cookie that no other site's request carries.
- Addresses and bodies have a bound, and so has how many requests are answered at once.
- What is answered may load nothing from elsewhere, and runs no script that is not a file of ours.
"""

from __future__ import annotations

import hmac
import secrets
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lexray.web.frame import locked_page

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
LONGEST_ADDRESS = 24 * 1024
LARGEST_BODY = 64 * 1024
AT_ONCE = 128
READS = {"GET", "HEAD"}
OPEN = ("/static/", "/favicon.ico")
"""What computes nothing and says nothing of a model."""


@dataclass
class Door:
    """Under which names the app is reached, and by which token."""

    port: int
    hosts: Sequence[str] = ("127.0.0.1", "localhost", "[::1]")
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Ports share cookies, so each has its own."""
        return f"lexray-{self.port}"

    @property
    def names(self) -> set[str]:
        bare = set(self.hosts) if self.port == 80 else set()
        return {f"{host}:{self.port}".lower() for host in self.hosts} | bare

    @property
    def address(self) -> str:
        """What is opened first."""
        return f"http://{self.hosts[0]}:{self.port}/?token={self.token}"

    def knows(self, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, door: Door, at_once: int = AT_ONCE) -> None:
        self.app, self.door, self.at_once = app, door, at_once
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refusal = self._refuse(scope)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send))
            return
        if self.running >= self.at_once:
            busy = _say("too much is asked for at once; try again in a moment", 503)
            busy.headers["retry-after"] = "1"
            await busy(scope, receive, _with_headers(send))
            return
        self.running += 1
        try:
            await self.app(scope, _bound(receive), _with_headers(send))
        except TooLargeError:
            answer = _say(f"at most {LARGEST_BODY:,} bytes are taken", 413)
            await answer(scope, receive, _with_headers(send))
        except CancelledError:  # the app ends while somebody waits: no error, and no traceback
            with suppress(Exception):
                await _say("the app was ended", 503)(scope, receive, _with_headers(send))
        finally:
            self.running -= 1

    def _refuse(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_ADDRESS:
            return _say(
                f"too long: an address, prompt included, has at most {LONGEST_ADDRESS:,} letters",
                414,
            )
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self.door.names:
            return _say("this app is reached under its own name only", 421)
        if not self._is_own(scope["method"], headers):
            return _say("requests from other sites' pages are refused", 403)
        if "transfer-encoding" in headers and "content-length" in headers:
            refusal = _say("a body has one length: Content-Length or Transfer-Encoding", 400)
            refusal.headers["connection"] = "close"
            return refusal
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            return _say(f"at most {LARGEST_BODY:,} bytes are taken", 413)
        if path.startswith(OPEN):
            return None
        return self._admit(scope, headers)

    def _is_own(self, method: str, headers: Headers) -> bool:
        """Whether it comes from a page of ours, from a person, or from a program."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            scheme, _, name = origin.partition("://")
            if scheme != "http" or name.lower() not in self.door.names:
                return False
        if method not in READS:
            token = _bearer(headers)
            return origin is not None or self.door.knows(token)
        walked = headers.get("sec-fetch-mode") == "navigate"
        return site in (None, "same-origin", "none") or walked

    def _admit(self, scope: Scope, headers: Headers) -> Response | None:
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for key, value in pairs if key == "token"), None)
        if given is not None and scope["method"] in READS and self.door.knows(given):
            rest = urlencode([(key, value) for key, value in pairs if key != "token"])
            answer = RedirectResponse(_path(scope) + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(
                self.door.cookie, self.door.token, httponly=True, samesite="strict", path="/"
            )
            return answer
        if self.door.knows(_cookie(headers, self.door.cookie)) or self.door.knows(_bearer(headers)):
            return None
        query = scope["query_string"].decode("latin-1")
        here = _path(scope) + (f"?{query}" if query else "")
        return HTMLResponse(locked_page(here), 401, {"cache-control": "no-store"})


def _path(scope: Scope) -> str:
    """The path as it was asked for; one that begins with two slashes would name a machine."""
    raw: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    raw = raw.partition("?")[0]
    return "/" + raw.lstrip("/\\")


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else None


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if cookie is None else cookie.value


def _say(words: str, status: int) -> Response:
    return PlainTextResponse(words + "\n", status)


class TooLargeError(Exception):
    """A body that goes on and on."""


def _bound(receive: Receive) -> Receive:
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body") or b"")
        if seen > LARGEST_BODY:
            raise TooLargeError
        return message

    return bounded


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for key, value in HEADERS.items():
                headers.setdefault(key, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending
