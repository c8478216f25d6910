"""Nobody but the one who started it can read or compute, and nothing leaves the page."""

from __future__ import annotations

from asyncio import CancelledError

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from lexray.web.guard import LARGEST_BODY, LONGEST_ADDRESS, Door, Guard
from lexray.web.library import Library
from tests.web.house import PORT, open_client

OWN = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def stranger(library: Library) -> TestClient:
    return open_client(library, known=False, follow_redirects=False)


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""]
)
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the browser believes to talk to evil.example."""
    assert client.get("/demo/map", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"])
def test_own_names_are_taken(client: TestClient, host: str) -> None:
    assert client.get("/static/app.css", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        f"https://127.0.0.1:{PORT}",
        "http://[::1",
        f"http://127.0.0.1:{PORT}@evil.example",
        f"http://127.0.0.1:{PORT}/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins_are_refused(client: TestClient, origin: str, method: str) -> None:
    answer = client.request(method, "/demo/L2H1/card", headers={"origin": origin})
    assert answer.status_code == 403


def test_requests_of_other_sites_are_refused(client: TestClient) -> None:
    """An image on another site's page that points here; a link that a person follows is fine."""
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/demo/L2H1", headers=image).status_code == 403
    walked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/demo/L3N17/readings.json", headers=walked).status_code == 200


def test_nothing_is_changed_without_an_origin(client: TestClient) -> None:
    """A form of another site may send no Origin in old browsers."""
    assert client.post("/demo/L2H1/vo").status_code == 403
    assert client.post("/demo/L2H1/vo", headers={"origin": OWN}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/demo/map", "/demo/map.json", "/demo/L2H1", "/runs/x"])
def test_without_the_token_nothing_is_said(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "demo" not in answer.text.replace(path, "")
    assert stranger.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert stranger.get(f"{path}?token=wrong").status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get("/demo/L2H1?k=5&token=open-sesame")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/demo/L2H1?k=5"
    cookie = answer.headers["set-cookie"]
    assert f"lexray-{PORT}=open-sesame" in cookie
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()


def test_the_redirect_stays_here(stranger: TestClient) -> None:
    answer = stranger.get("//evil.example/?token=open-sesame")
    assert answer.status_code in (303, 421)
    assert not answer.headers.get("location", "/").startswith("//")


def test_programs_use_a_header(stranger: TestClient) -> None:
    headers = {"authorization": "Bearer open-sesame"}
    assert stranger.get("/demo/L3N17/readings.json", headers=headers).status_code == 200
    assert stranger.post("/demo/L3N17/readings", headers=headers).status_code == 200


def test_tokens_differ_from_start_to_start() -> None:
    assert Door(1).token != Door(1).token
    assert len(Door(1).token) >= 32
    assert not Door(1).knows("")


@pytest.mark.parametrize("path", ["/demo/map", "/demo/L9H9", "/static/app.js", "/nowhere/map"])
def test_every_answer_forbids_what_is_not_ours(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_bounds(client: TestClient) -> None:
    long = client.get("/demo/search", params={"q": "a" * LONGEST_ADDRESS})
    assert long.status_code == 414
    headers = {"origin": OWN}
    large = client.post("/demo/L2H1/vo", content=b"a" * (LARGEST_BODY + 1), headers=headers)
    assert large.status_code == 413

    def endless() -> object:
        for _ in range(40):
            yield b"a" * 4096

    streamed = client.post("/demo/L2H1/vo", content=endless(), headers=headers)  # type: ignore[arg-type]
    assert streamed.status_code in (200, 413)


def test_an_app_that_ends_while_somebody_waits() -> None:
    """uvicorn cancels what runs and would print a traceback for it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise CancelledError

    door = Door(PORT)
    headers = {"authorization": f"Bearer {door.token}"}
    answer = TestClient(Guard(app, door), base_url=OWN, headers=headers).get("/demo/map")
    assert answer.status_code == 503
    assert answer.text == "the app was ended\n"


def test_too_many_at_once(library: Library) -> None:
    crowded = open_client(library)
    crowded.app.at_once = 0  # type: ignore[attr-defined]
    answer = crowded.get("/demo/map")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2f..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/etc/passwd",
        "/%2fetc%2fpasswd/map",
        "/demo/../../etc/passwd",
    ],
)
def test_no_other_file_is_read(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "root:" not in answer.text
    assert "starlette" not in answer.text


def test_a_body_has_one_length(client: TestClient) -> None:
    """Who goes by the one and who goes by the other would see two requests."""
    both = {"content-length": "5", "transfer-encoding": "chunked", "origin": OWN}
    answer = client.post("/demo/L2H1/vo", headers=both, content=b"hello")
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
