"""What servers do wrong while a model is read by byte ranges, and what is made of it."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import close_session
from safetensors.torch import save_file
from torch import Tensor

from lexray.checkpoint.hub import ranged, session
from lexray.checkpoint.hub.remote import RemoteCheckpoint
from lexray.errors import LexrayError
from tests.checkpoint.hub.sample import FILE, GUESS, Open, same
from tests.checkpoint.hub.server import FakeHub, serve


@pytest.mark.parametrize("failure", [500, 502, 503, 504, 429, 408, "drop", "cut"])
def test_retries(
    hub: FakeHub,
    opened: RemoteCheckpoint,
    slept: list[float],
    weights: dict[str, Tensor],
    failure: int | str,
) -> None:
    hub.failures = [failure] * 3
    assert same(opened.read("b.rows"), weights["b.rows"])
    assert slept == [0.5, 1.0, 2.0]
    assert len(hub.requests()) == 4


def test_a_cut_answer_is_continued(
    hub: FakeHub, opened: RemoteCheckpoint, weights: dict[str, Tensor]
) -> None:
    hub.failures = ["cut"]
    before = opened.bytes_read
    assert same(opened.read("b.rows"), weights["b.rows"])
    assert hub.sent() == opened.bytes_read - before == weights["b.rows"].nbytes


def test_retry_after(hub: FakeHub, opened: RemoteCheckpoint, slept: list[float]) -> None:
    hub.failures, hub.retry_after = [429, 503], "7"
    opened.read("b.rows", slice(0, 1))
    hub.failures, hub.retry_after = [429], "86400"
    opened.read("b.rows", slice(1, 2))
    hub.failures, hub.retry_after = [429], "Wed, 21 Oct 2015 07:28:00 GMT"
    opened.read("b.rows", slice(2, 3))
    assert slept == [8, 8, session.LONGEST_WAIT + 1, 0.5]  # huggingface_hub adds a second


@pytest.mark.parametrize(
    ("failure", "reason"), [(503, "HTTP 503"), ("cut", "bytes short"), ("drop", "disconnected")]
)
def test_tries_end(
    hub: FakeHub, opened: RemoteCheckpoint, slept: list[float], failure: int | str, reason: str
) -> None:
    hub.failures = [failure] * 9
    with pytest.raises(LexrayError, match=rf"{FILE} of org/one.* after 4 tries \(.*({reason})"):
        opened.read("b.rows")
    assert len(slept) == ranged.TRIES - 1


@pytest.mark.slow
def test_timeout(
    hub: FakeHub,
    opened: RemoteCheckpoint,
    slept: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(ranged, "TIMEOUT", 0.05)
        opened._shard(FILE)._file._location = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(LexrayError, match=r"after 4 tries \(.*timed out\)"):
            opened.read("b.rows")
    assert len(slept) == ranged.TRIES - 1


def test_network_down(hub: FakeHub, opened: RemoteCheckpoint, slept: list[float]) -> None:
    opened._shard(FILE)._file._location = "http://127.0.0.1:9/x"
    with pytest.raises(LexrayError, match=r"after 4 tries \(.*refused.*check the connection"):
        opened.read("b.rows")


def test_server_that_ignores_ranges(hub: FakeHub, opened: RemoteCheckpoint, repos: Path) -> None:
    big = repos / "org" / "big"
    big.mkdir(exist_ok=True)
    with (big / FILE).open("wb") as file:
        file.truncate(1 << 26)
    (big / "config.json").write_text("{}")
    hub.ignore_ranges = True
    checkpoint = RemoteCheckpoint.open("org/big")
    with pytest.raises(LexrayError, match=r"ignores byte ranges .* without remote=True"):
        checkpoint.names()
    assert checkpoint.bytes_read == 0
    assert hub.sent(FILE) < 1 << 25  # no more than the sockets' buffers held
    with pytest.raises(LexrayError, match="ignores byte ranges"):
        opened.read("b.rows")


@pytest.mark.parametrize(
    "answer",
    ["bytes 0-9/100", "bytes 5-1/9", "items 0-65535/9", "", "bytes 0-65535/*", "bytes 0-65535/65"],
)
def test_wrong_content_range(hub: FakeHub, start: Open, answer: str) -> None:
    hub.content_range = answer
    with pytest.raises(
        LexrayError, match=f"bytes 0-{GUESS - 1}, the server answers with Content-R"
    ):
        start().names()


def test_file_changes_while_it_is_read(
    hub: FakeHub, opened: RemoteCheckpoint, start: Open, weights: dict[str, Tensor]
) -> None:
    hub.etag = "other"
    with pytest.raises(LexrayError, match=r"changed on the server .*open the model again"):
        opened.read("b.rows")
    assert same(start().read("b.rows"), weights["b.rows"])


def test_file_changes_size(hub: FakeHub, opened: RemoteCheckpoint) -> None:
    first = opened._find("b.rows")[1].start
    hub.content_range = f"bytes {first}-{first + 255}/99999999"
    with pytest.raises(LexrayError, match=r"changed on the server .*now 99999999 bytes"):
        opened.read("b.rows", slice(0, 1))


def test_expired_links_are_renewed(
    hub: FakeHub, opened: RemoteCheckpoint, slept: list[float], weights: dict[str, Tensor]
) -> None:
    hub.signature += 1
    assert same(opened.read("b.rows"), weights["b.rows"])
    assert [(r.server, r.status) for r in hub.requests()] == [
        ("cdn", 403),
        ("hub", 302),
        ("cdn", 206),
    ]
    assert slept == []


def test_token_goes_to_the_hub_only(hub: FakeHub, start: Open, weights: dict[str, Tensor]) -> None:
    hub.token = "secret"
    assert same(start(token="secret").read("b.rows"), weights["b.rows"])
    seen = {(r.server, r.authorization) for r in hub.log}
    assert seen == {("hub", "Bearer secret"), ("cdn", None)}


def test_redirect_on_the_hub_keeps_the_token(hub: FakeHub, start: Open) -> None:
    hub.token, hub.redirect = "secret", False
    start(token="secret").names()
    assert {(r.server, r.authorization) for r in hub.log} == {("hub", "Bearer secret")}


def test_gated(hub: FakeHub, opened: RemoteCheckpoint, start: Open) -> None:
    hub.token, hub.redirect = "secret", False
    opened._shard(FILE)._file._location = opened._shard(FILE)._file._url
    with pytest.raises(LexrayError, match="HTTP 401, gated or private: pass token="):
        opened.read("b.rows")
    with pytest.raises(LexrayError, match="not on the Hub, or private"):
        start("org/nothing")


def test_file_is_gone(hub: FakeHub, start: Open, repos: Path) -> None:
    checkpoint = start("org/two")
    (repos / "org/two/s1.safetensors").rename(repos / "kept")
    try:
        hub.redirect = False
        with pytest.raises(LexrayError, match=r"s1\.safetensors of org/two .*HTTP 404"):
            checkpoint.info("b.rows")
    finally:
        (repos / "kept").rename(repos / "org/two/s1.safetensors")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[", "http://x:y/", "ftp://x/"])
def test_unsafe_redirects(hub: FakeHub, start: Open, location: str) -> None:
    checkpoint = start()
    hub.cdn_url = f"{location}#"
    with pytest.raises(LexrayError, match="address"):
        checkpoint.names()


def test_endless_redirects(hub: FakeHub, start: Open) -> None:
    checkpoint = start()
    hub.cdn_url = hub.url
    with pytest.raises(LexrayError, match="redirects without end"):
        checkpoint.names()
    assert len(hub.requests()) == ranged.MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    ("here", "location", "reason"),
    [
        ("https://hub/f", "/g", None),
        ("https://hub/f", "https://cdn.example/g?x=1", None),
        ("http://hub/f", "http://127.0.0.1:8080/g", None),
        ("http://hub/f", "http://[::1]:80/g", None),
        ("https://hub/f", "http://hub/g", "unsafe"),
        ("http://hub/f", "http://-/g", "without a proper host"),
        ("http://hub/f", f"http://{'a' * 64}.org/g", "without a proper host"),
        ("http://hub/f", f"http://{'a.' * 200}org/g", "without a proper host"),
        ("http://hub/f", "http://a..b/g", "without a proper host"),
        ("http://hub/f", "http://a%00b/g", "without a proper host"),
        ("http://hub/f", "http://x:99999/g", "no web address"),
    ],
)
def test_where_redirects_may_lead(here: str, location: str, reason: str | None) -> None:
    request = SimpleNamespace(url=here)
    response = SimpleNamespace(request=request, headers={"Location": location})
    if reason is None:
        session._check_location(response, "f")
    else:
        with pytest.raises(LexrayError, match=f"f: .*{reason}"):
            session._check_location(response, "f")


def test_other_formats_are_refused(hub: FakeHub, start: Open, repos: Path) -> None:
    folder = repos / "org" / "bin"
    folder.mkdir(exist_ok=True)
    for name in ("pytorch_model.bin", "a.gguf", "config.json"):
        (folder / name).write_text("{}")
    with pytest.raises(
        LexrayError, match=r"there are a\.gguf, pytorch_model\.bin.*only safetensors"
    ):
        start("org/bin")
    with pytest.raises(LexrayError, match="only safetensors can be read remotely"):
        start("org/bin/a.gguf")


def write_repo(repos: Path, name: str, content: bytes) -> str:
    folder = repos / "org" / name
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(content)
    return f"org/{name}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "HTTP 416, .*empty"),
        (b"abc", "too few"),
        (struct.pack("<Q", 1 << 60) + b"{}", "truncated"),
        (struct.pack("<Q", 2) + b"[]", "corrupt"),
        (
            struct.pack("<Q", 62)
            + b'{"t": {"dtype": "F32", "shape": [4], "data_offsets": [0,16]}} ',
            "truncated: .*should end at byte 86",
        ),
    ],
    ids=["empty", "short", "huge", "list", "beyond"],
)
def test_bad_headers(start: Open, repos: Path, content: bytes, reason: str) -> None:
    repo = write_repo(repos, "bad", content)
    with pytest.raises(LexrayError, match=rf"{FILE} of org/bad .*{reason}"):
        start(repo).names()


def test_index_and_shards_that_disagree(start: Open, repos: Path) -> None:
    folder = repos / "org" / "torn"
    folder.mkdir(exist_ok=True)
    save_file({"here": torch.ones(2)}, folder / "s.safetensors")
    index = {"weight_map": {"here": "s.safetensors", "gone": "s.safetensors"}}
    (folder / f"{FILE}.index.json").write_text(json.dumps(index))
    checkpoint = start("org/torn")
    assert same(checkpoint.read("here"), torch.ones(2))
    with pytest.raises(LexrayError, match=r"gone is in s\.safetensors, which does not have it"):
        checkpoint.info("gone")
    (folder / f"{FILE}.index.json").write_text('{"weight_map": {"x": "../s.safetensors"}}')
    with pytest.raises(LexrayError, match="not a file beside it"):
        start("org/torn")


def test_unknown_names_and_slices(start: Open) -> None:
    for repo in ("org/one", "org/two"):
        checkpoint = start(repo)
        with pytest.raises(LexrayError, match=r"no tensor 'b\.row' .*nearest: b\.rows"):
            checkpoint.info("b.row")
        with pytest.raises(LexrayError, match="cannot read 0:301"):
            checkpoint.read("b.rows", slice(0, 301))


def test_no_config(start: Open, repos: Path) -> None:
    repo = write_repo(repos, "bare", struct.pack("<Q", 2) + b"{}")
    checkpoint = start(repo)
    assert list(checkpoint.names()) == []
    with pytest.raises(LexrayError, match=r"has no config\.json"):
        _ = checkpoint.config


def test_through_a_proxy(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hub.url.replace("http://", "http://me:pass@"))
    monkeypatch.setenv("no_proxy", "elsewhere")
    hub.redirect = False
    address = "http://hub.invalid"
    client = ranged.RangeClient(address, {})
    file = ranged.RangedFile(client, f"{address}/org/one/resolve/main/{FILE}", FILE)
    close_session()  # the next one reads the environment
    try:
        assert file.fetch((10, 20)) == (hub.folder / "org/one" / FILE).read_bytes()[10:20]
    finally:
        close_session()
    (request,) = hub.requests()
    assert request.headers["host"] == "hub.invalid"
    assert request.headers["proxy-authorization"] == "Basic bWU6cGFzcw=="


def test_one_servers_ranges_are_not_anothers(
    hub: FakeHub, start: Open, repos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile mirror was read once; the Hub itself is asked again all the same."""
    before = start()
    before.read("b.rows")
    with serve(repos) as other:
        monkeypatch.setenv("HF_ENDPOINT", other.url)
        start().read("b.rows")
        assert other.ranges(FILE)
