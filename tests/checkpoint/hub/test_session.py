"""Servers that mean harm: each answer is bounded in size, pace and time, and stays in its cache."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import close_session, get_session, set_client_factory

from lexray.checkpoint.hub import repository, session
from lexray.checkpoint.hub.remote import RemoteCheckpoint
from lexray.checkpoint.hub.repository import Repository, fetch_folder
from lexray.errors import LexrayError

COMMIT = "6" * 40
Answer = Callable[[str, str], Iterator[bytes]]
"""Method and path → the bytes that go over the wire, headers first."""


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    """A server that sends whatever it is told to, byte for byte, and then hangs up."""
    stop = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            method, path, _ = lines.readline().decode().split(" ")
            while lines.readline().strip():
                pass
            try:
                for piece in answer(method, path):
                    if stop.is_set():
                        return
                    connection.sendall(piece)
            except OSError:
                pass  # the other side has had enough

    def accept(server: socket.socket) -> None:
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            server.shutdown(socket.SHUT_RDWR)
            close_session()


def head(status: str = "200 OK", **headers: object) -> bytes:
    lines = [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode()


def listing(*names: str) -> bytes:
    siblings = [{"rfilename": name} for name in names or ("config.json", "model.safetensors")]
    return json.dumps({"id": "org/one", "sha": COMMIT, "siblings": siblings}).encode()


def whole(body: bytes, **headers: object) -> Iterator[bytes]:
    yield head(Content_Length=len(body), **headers) + body


def describe() -> Repository:
    return Repository.resolve("org/one")


def read_header() -> object:
    return RemoteCheckpoint.open("org/one").names()


FILE = {"ETag": '"abc"', "X_Repo_Commit": COMMIT}


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make an address the Hub, with empty caches and little patience."""

    def point(url: str) -> None:
        for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "lexray"))
        monkeypatch.setattr(session, "HEADERS_WITHIN", 0.7)
        monkeypatch.setattr(session, "GRACE", 0.5)

    return point


def test_a_packed_answer(use: Callable[[str], None]) -> None:
    """A few kB that would unpack to gigabytes: nothing that is packed is unpacked."""
    bomb = gzip.compress(b"[" * (1 << 24))
    with serve(lambda method, path: whole(bomb, Content_Encoding="gzip")) as url:
        use(url)
        with pytest.raises(LexrayError, match="packs its answer"):
            Repository.resolve("org/one")


@pytest.mark.parametrize("said", [True, False])
def test_an_answer_that_is_too_long(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, said: bool
) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        yield head(**({"Content_Length": 1 << 40} if said else {}))
        while True:
            yield b" " * 4096

    monkeypatch.setattr(repository, "LONGEST_ANSWER", 1 << 16)
    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match=r"org/one .*sends more than 65,536 bytes"):
            Repository.resolve("org/one")


def test_an_endless_config(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        if "/api/" in path:
            yield from whole(listing())
        elif method == "HEAD":
            yield head(Content_Length=10, **FILE)
        else:
            yield head(**FILE)
            while True:
                yield b" " * 4096

    monkeypatch.setattr(repository, "LONGEST", 1 << 20)
    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match=r"config\.json of org/one .*more than 1,048,576"):
            fetch_folder("org/one")
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 1 << 22


def test_weights_of_unknown_length(use: Callable[[str], None]) -> None:
    """They would fill the disk."""

    def answer(method: str, path: str) -> Iterator[bytes]:
        if "/api/" in path:
            yield from whole(listing("model.safetensors"))
        elif method == "HEAD":
            yield head(Content_Length=10, **FILE)
        else:
            yield head(**FILE)
            while True:
                yield b" " * 4096

    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match="does not say how long the file is"):
            fetch_folder("org/one")


@pytest.mark.slow
def test_one_byte_at_a_time(use: Callable[[str], None]) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        yield head(Content_Length=1 << 20)
        while True:
            time.sleep(0.05)
            yield b" "

    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match=r"org/one .*does not answer in time"):
            Repository.resolve("org/one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X: y\r\n", b"HTTP/1.1 103 E\r\n\r\n"]
)
@pytest.mark.parametrize("remote", [False, True])
def test_headers_without_end(use: Callable[[str], None], piece: bytes, remote: bool) -> None:
    """Each read brings something, so that no timeout of a read is ever reached."""

    def answer(method: str, path: str) -> Iterator[bytes]:
        if remote and "/api/" in path:
            yield from whole(listing("model.safetensors"))
            return
        if piece.startswith(b"X"):
            yield b"HTTP/1.1 200 OK\r\n"
        while True:
            time.sleep(0.05)
            yield piece

    with serve(answer) as url:
        use(url)
        ask: Callable[[], object] = read_header if remote else describe
        with pytest.raises(LexrayError, match=r"does not answer in time|after 4 tries"):
            ask()


def test_years_of_patience(use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`Retry-After` and `RateLimit` are capped: huggingface_hub would sleep as long as they say."""
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)

    def answer(method: str, path: str) -> Iterator[bytes]:
        if "/api/" in path:
            yield from whole(listing("model.safetensors"))
        elif len(waits) < 1:
            yield head("503 Busy", Retry_After="99999999999", Content_Length=0)
        else:
            limit = {"RateLimit": '"api";r=0;t=99999999999', "Content_Length": 0}
            yield head("429 Slow down", **limit)

    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match=r"after 4 tries \(HTTP 429\)"):
            RemoteCheckpoint.open("org/one").names()
    assert waits == [session.LONGEST_WAIT + 1] * 3


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"../../../../../../evil"', "X_Repo_Commit": COMMIT},
        {"X_Linked_Etag": '"../../evil"', "ETag": '"abc"', "X_Repo_Commit": COMMIT},
        {"ETag": '"abc"', "X_Repo_Commit": "../../../../evil"},
        {"ETag": '"a/b"', "X_Repo_Commit": COMMIT},
        {"ETag": f'"{"x" * 5000}"', "X_Repo_Commit": COMMIT},
    ],
)
def test_versions_do_not_lead_out_of_the_cache(
    use: Callable[[str], None], tmp_path: Path, headers: dict[str, str]
) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        yield from whole(listing()) if "/api/" in path else whole(b"{}", **headers)

    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match="no plain token"):
            fetch_folder("org/one")
    assert not list(tmp_path.rglob("*evil*"))
    assert {path.name for path in tmp_path.iterdir()} <= {"hf"}


def test_files_come_over_the_bounded_session(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large ones: Xet's own downloads know none of our bounds."""
    monkeypatch.setattr("huggingface_hub.file_download.xet_get", lambda **_: pytest.fail("by Xet"))
    monkeypatch.setattr("huggingface_hub.file_download.is_xet_available", lambda: True)
    route = '<http://localhost/xet>; rel="xet-auth"'
    xet = {"X_Xet_Hash": "a" * 64, "X_Xet_Refresh_Route": "http://localhost/xet", "Link": route}

    def answer(method: str, path: str) -> Iterator[bytes]:
        each = FILE | {"ETag": f'"{path.rpartition("/")[2]}"'}  # one blob for each file
        yield from whole(listing()) if "/api/" in path else whole(b"{}", **each, **xet)

    with serve(answer) as url:
        use(url)
        folder = fetch_folder("org/one")
    assert (folder / "model.safetensors").read_bytes() == b"{}"


def test_a_redirect_to_no_host(use: Callable[[str], None]) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        if "/api/" in path:
            yield from whole(listing())
        else:
            yield head("302 Found", Location=f"http://{'a' * 70}/x", Content_Length=0, **FILE)

    with serve(answer) as url:
        use(url)
        for act in (
            lambda: fetch_folder("org/one"),
            lambda: RemoteCheckpoint.open("org/one").names(),
        ):
            with pytest.raises(LexrayError, match="without a proper host"):
                act()


def test_a_packed_range(use: Callable[[str], None]) -> None:
    def answer(method: str, path: str) -> Iterator[bytes]:
        if "/api/" in path:
            yield from whole(listing("model.safetensors"))
        else:
            body = gzip.compress(b"x" * 65536)
            ranges = {"Content_Range": "bytes 0-65535/65536", "Content_Encoding": "gzip"}
            yield head("206 Part", Content_Length=len(body), **ranges) + body

    with serve(answer) as url:
        use(url)
        with pytest.raises(LexrayError, match="packs its answer"):
            RemoteCheckpoint.open("org/one").names()


def test_others_are_left_alone(use: Callable[[str], None]) -> None:
    """Outside of lexray's own requests, the session does what it always did."""
    packed = gzip.compress(b"hello")
    with serve(lambda method, path: whole(packed, Content_Encoding="gzip", ETag='"../x"')) as url:
        use(url)
        with pytest.raises(LexrayError):
            Repository.resolve("org/one")
        assert get_session().get(url).content == b"hello"


def test_a_version_that_calls_its_factory_something_else(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are then made like the one that is there, within the same bounds; once."""
    before = session._factory()
    assert before is not None
    plain = session._imitate(get_session())()
    own = [hook for hook in plain.event_hooks["request"] if hook is not session._before]
    plain.event_hooks = {"request": own, "response": []}
    plain.headers["X-Mine"] = "kept"
    bomb = gzip.compress(b"[" * (1 << 20))

    def answer(method: str, path: str) -> Iterator[bytes]:
        yield from whole(bomb, Content_Encoding="gzip")

    set_client_factory(lambda: plain)
    monkeypatch.setattr(session, "_factory", lambda: None)
    try:
        with serve(answer) as url:
            use(url)
            for _ in range(3):
                with pytest.raises(LexrayError, match="packs its answer"):
                    Repository.resolve("org/one")
                hooks = get_session().event_hooks
                assert hooks["request"] == [*own, session._before]
                assert hooks["response"] == [session._after]
                assert get_session().headers["X-Mine"] == "kept"
                close_session()  # as huggingface_hub does where a connection fails
    finally:
        set_client_factory(before)
