"""Reading a model by byte ranges, against a server that counts."""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import close_session
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from lexray.checkpoint.base import Box, runs
from lexray.checkpoint.hub import ranged, ranges, remote, session
from lexray.checkpoint.hub.ranged import Span
from lexray.checkpoint.hub.ranges import RangeCache, coalesce, gather, subtract
from lexray.checkpoint.hub.remote import RemoteCheckpoint
from lexray.errors import LexrayError
from tests.checkpoint.hub.server import FakeHub, serve

FILE = "model.safetensors"
GUESS = remote.HEADER_GUESS


def tensors() -> dict[str, Tensor]:
    """Random weights; the first lies where the header's request reaches, the others beyond."""
    torch.manual_seed(0)
    return {
        "a.pad": torch.randn(GUESS // 4),
        "b.rows": torch.randn(300, 64),
        "c.wide": torch.randn(40, 32768),
        "d.tall": torch.randn(2000, 256),
        "e.half": torch.randn(7, 3, 5).to(torch.bfloat16),
        "f.scalar": torch.tensor(3.5, dtype=torch.float16),
        "g.empty": torch.empty(0, 4, dtype=torch.float16),
        "h.bytes": torch.randint(0, 255, (5, 11), dtype=torch.uint8),
    }


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return tensors()


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Tensor]) -> Path:
    root = tmp_path_factory.mktemp("repos")
    one, two = root / "org" / "one", root / "org" / "two"
    for folder in (one, two):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
        (folder / "tokenizer.json").write_text("{}")
    save_file(weights, one / FILE)
    shards = {"s1.safetensors": [*weights][:3], "s2.safetensors": [*weights][3:]}
    for shard, names in shards.items():
        save_file({name: weights[name] for name in names}, two / shard)
    where = {name: shard for shard, names in shards.items() for name in names}
    (two / f"{FILE}.index.json").write_text(json.dumps({"weight_map": where}))
    return root


@pytest.fixture
def hub(repos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve(repos) as hub:
        hub.use(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits, ours and huggingface_hub's, which are only written down."""
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    return waits


Open = Callable[..., RemoteCheckpoint]


@pytest.fixture
def start(hub: FakeHub, slept: list[float]) -> Open:
    """Opens a model; sleeping is only written down."""

    def open_(repo: str = "org/one", **options: str) -> RemoteCheckpoint:
        return RemoteCheckpoint.open(repo, sleep=slept.append, **options)

    return open_


@pytest.fixture
def opened(hub: FakeHub, start: Open) -> RemoteCheckpoint:
    """A model whose header was read; the log is empty again."""
    checkpoint = start()
    checkpoint.names()
    hub.reset()
    return checkpoint


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


# What is read


def test_opening_touches_no_weights(hub: FakeHub, start: Open) -> None:
    checkpoint = start()
    assert hub.files() == {"config.json"}
    assert (checkpoint.bytes_read, checkpoint.requests) == (0, 0)
    assert checkpoint.config == {"model_type": "gpt2"}
    assert (checkpoint.name, checkpoint.revision) == ("org/one", hub.commit("org/one"))


def test_header_in_one_request(hub: FakeHub, start: Open, weights: dict[str, Tensor]) -> None:
    checkpoint = start()
    assert set(checkpoint.names()) == set(weights)
    assert hub.ranges(FILE) == [(0, GUESS)]
    assert checkpoint.bytes_read == hub.sent() == GUESS
    assert checkpoint.requests == len(hub.requests()) == 2  # the Hub's redirect, and the range
    for name, tensor in weights.items():
        info = checkpoint.info(name)
        assert (info.shape, info.dtype) == (tuple(tensor.shape), tensor.dtype)
    assert checkpoint.requests == 2


def test_header_longer_than_the_guess(
    hub: FakeHub, start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "HEADER_GUESS", 100)
    checkpoint = start()
    assert "b.rows" in checkpoint.names()
    (length,) = struct.unpack("<Q", (hub.folder / "org/one" / FILE).read_bytes()[:8])
    assert hub.ranges() == [(0, 100), (100, 8 + length)]
    assert checkpoint.bytes_read == 8 + length


def test_row_slices_fetch_exactly_their_bytes(
    hub: FakeHub, opened: RemoteCheckpoint, weights: dict[str, Tensor]
) -> None:
    before = opened.bytes_read
    assert opened.cost("b.rows", slice(10, 13)) == 3 * 64 * 4
    assert same(opened.read("b.rows", slice(10, 13)), weights["b.rows"][10:13])
    assert hub.sent() == opened.bytes_read - before == 3 * 64 * 4
    assert len(hub.requests()) == 1
    assert {r.server for r in hub.requests()} == {"cdn"}  # the redirect is remembered
    start, stop = hub.ranges()[0]
    first = opened._find("b.rows")[1].start
    assert (start - first, stop - first) == (10 * 256, 13 * 256)


def test_whole_tensors(opened: RemoteCheckpoint, weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        assert same(opened.read(name), tensor), name


def test_close_runs_are_read_through_in_one_request(
    hub: FakeHub, opened: RemoteCheckpoint, weights: dict[str, Tensor]
) -> None:
    """Columns of a tall matrix: gaps of 1 kB, so the tensor from the first to the last column."""
    cost = opened.cost("d.tall", slice(None), slice(8, 16))
    assert same(
        opened.read("d.tall", slice(None), slice(8, 16)), weights["d.tall"][:, 8:16].contiguous()
    )
    assert len(hub.requests()) == 1
    assert hub.sent() == cost == 2000 * 256 * 4 - (256 - 8) * 4


def test_far_runs_get_a_request_each(
    hub: FakeHub, opened: RemoteCheckpoint, weights: dict[str, Tensor]
) -> None:
    """Columns of a wide matrix: gaps of 128 kB, ten rows, ten exact requests."""
    index = (slice(0, 10), slice(100, 200))
    assert same(opened.read("c.wide", *index), weights["c.wide"][index].contiguous())
    assert len(hub.requests()) == 10
    assert hub.sent() == 10 * 100 * 4


def test_requests_are_bounded(
    hub: FakeHub, opened: RemoteCheckpoint, weights: dict[str, Tensor]
) -> None:
    index = (slice(None), slice(100, 200))
    assert same(opened.read("c.wide", *index), weights["c.wide"][index].contiguous())
    assert len(hub.requests()) == ranges.MAX_REQUESTS
    assert hub.sent() <= weights["c.wide"].nbytes


def test_shards_are_touched_one_by_one(
    hub: FakeHub, start: Open, weights: dict[str, Tensor]
) -> None:
    checkpoint = start("org/two")
    assert set(checkpoint.names()) == set(weights)
    assert not hub.requests()
    checkpoint.info("d.tall")
    assert {r.file for r in hub.requests()} == {"s2.safetensors"}
    assert hub.ranges() == [(0, GUESS)]
    for name, tensor in weights.items():
        assert same(checkpoint.read(name), tensor)
    assert {r.file for r in hub.requests()} == {"s1.safetensors", "s2.safetensors"}


def test_assets(hub: FakeHub, opened: RemoteCheckpoint) -> None:
    path = opened.asset("tokenizer.json")
    assert path is not None
    assert path.read_text() == "{}"
    assert opened.asset("merges.txt") is None
    assert hub.files() == {"tokenizer.json"}


def test_threads(opened: RemoteCheckpoint, weights: dict[str, Tensor]) -> None:
    with ThreadPoolExecutor(8) as pool:
        rows = pool.map(lambda i: opened.read("b.rows", slice(i, i + 1)), range(0, 300, 7))
        assert all(same(row, weights["b.rows"][7 * i : 7 * i + 1]) for i, row in enumerate(rows))


def test_connections_are_kept(hub: FakeHub, opened: RemoteCheckpoint) -> None:
    for row in range(3):
        opened.read("b.rows", slice(row, row + 1))
    assert len({request.port for request in hub.requests()}) == 1


# The cache


def test_cached_ranges_make_no_request(
    hub: FakeHub, start: Open, weights: dict[str, Tensor]
) -> None:
    start().read("b.rows", slice(0, 100))
    hub.reset()
    again = start()
    assert again.cost("b.rows", slice(20, 30)) == 0
    assert same(again.read("b.rows", slice(20, 30)), weights["b.rows"][20:30])
    assert same(again.read("b.rows", slice(0, 100)), weights["b.rows"][:100])
    assert (again.requests, again.bytes_read, hub.requests()) == (0, 0, [])


def test_only_what_is_missing_is_fetched(
    hub: FakeHub, start: Open, weights: dict[str, Tensor]
) -> None:
    start().read("b.rows", slice(50, 100))
    hub.reset()
    again = start()
    assert same(again.read("b.rows", slice(80, 130)), weights["b.rows"][80:130])
    assert hub.sent() == again.bytes_read == 30 * 256
    row = weights["c.wide"].shape[1] * 4
    again.read("c.wide", slice(1, 2))
    hub.reset()
    assert same(again.read("c.wide", slice(0, 3)), weights["c.wide"][:3])
    assert hub.sent() == 2 * row
    assert len(hub.requests()) == 2


@pytest.mark.slow
def test_large_ranges_are_kept_in_chunks(
    hub: FakeHub, start: Open, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK", 1000)
    start().read("d.tall")
    hub.reset()
    again = start()
    assert same(again.read("d.tall"), weights["d.tall"])
    assert same(again.read("d.tall", slice(5, 9), slice(3, 4)), weights["d.tall"][5:9, 3:4])
    assert not hub.requests()


def cached_files(tmp_path: Path) -> list[Path]:
    return sorted(p for p in (tmp_path / "lexray").rglob("*") if p.is_file())


@pytest.mark.parametrize("damage", ["shorter", "longer", "flipped", "empty"])
def test_damaged_cache_is_fetched_again(
    start: Open, tmp_path: Path, weights: dict[str, Tensor], damage: str
) -> None:
    start().read("b.rows")
    files = cached_files(tmp_path)
    assert len(files) == 3  # the note, the header's range, the tensor's
    for path in files:
        raw = bytearray(path.read_bytes())
        match damage:
            case "shorter":
                raw.pop()
            case "longer":
                raw += b"x"
            case "flipped":
                raw[-1] ^= 1
            case "empty":
                raw.clear()
        path.write_bytes(raw)
    again = start()
    assert same(again.read("b.rows"), weights["b.rows"])
    assert again.bytes_read > 0
    third = start()
    assert same(third.read("b.rows"), weights["b.rows"])
    assert third.bytes_read == 0


@pytest.mark.parametrize("note", ["[]", "{}", '{"size": "1", "etag": ""}', '{"size": 1.5}', "\0"])
def test_odd_notes_are_ignored(start: Open, tmp_path: Path, note: str) -> None:
    start().names()
    (path,) = (p for p in cached_files(tmp_path) if p.suffix == ".json")
    path.write_text(note)
    assert "b.rows" in start().names()


def test_unwritable_cache_is_done_without(
    start: Open, tmp_path: Path, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "file"))
    checkpoint = start()
    assert same(checkpoint.read("b.rows"), weights["b.rows"])
    assert same(checkpoint.read("b.rows"), weights["b.rows"])


def test_new_commit_with_the_same_file_keeps_its_ranges(
    hub: FakeHub, start: Open, repos: Path
) -> None:
    start().read("b.rows")
    (repos / "org" / "one" / "README.md").write_text("news")
    try:
        hub.reset()
        start().read("b.rows")
        assert hub.ranges() == [(0, GUESS)]
    finally:
        (repos / "org" / "one" / "README.md").unlink()


@pytest.mark.slow
def test_two_processes_share_a_cache(hub: FakeHub, start: Open, weights: dict[str, Tensor]) -> None:
    code = (
        "import sys\n"
        "from lexray.checkpoint.hub.remote import RemoteCheckpoint\n"
        "assert 'transformers' not in sys.modules\n"
        "checkpoint = RemoteCheckpoint.open('org/one')\n"
        "print('ready', flush=True)\n"
        "for i in range(0, 300, 2): checkpoint.read('b.rows', slice(i, min(300, i + 5)))\n"
    )
    with Popen([sys.executable, "-c", code], stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        mine = start()
        for i in range(0, 300, 3):
            rows = mine.read("b.rows", slice(i, min(300, i + 5)))
            assert same(rows, weights["b.rows"][i : i + 5])
    assert other.returncode == 0
    hub.reset()
    assert same(start().read("b.rows"), weights["b.rows"])
    assert not hub.requests()


def test_offline_reads_what_is_cached(
    hub: FakeHub, start: Open, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for repo in ("org/one", "org/two"):
        start(repo).read("b.rows")
    hub.reset()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for repo in ("org/one", "org/two"):
        checkpoint = start(repo)
        assert checkpoint.config == {"model_type": "gpt2"}
        assert same(checkpoint.read("b.rows"), weights["b.rows"])
        with pytest.raises(LexrayError, match="HF_HUB_OFFLINE is set; unset it to read the rest"):
            checkpoint.read("d.tall")
    assert not hub.log


def test_offline_with_nothing_cached(
    hub: FakeHub, start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("org/one")  # only its config
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(LexrayError, match=r"nothing of org/one's weights .* cannot be reached"):
            start("org/one")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LexrayError, match=r"nothing of org/one's weights .* HF_HUB_OFFLINE is set"):
        start("org/one")
    with pytest.raises(LexrayError, match="org/two at main is not in"):
        start("org/two")


# What goes wrong


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


# Spans, for all shapes


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    box = []
    for size in shape:
        start = draw(st.integers(0, size))
        box.append((start, draw(st.integers(start, size))))
    return shape, tuple(box)


def covered(spans: list[Span]) -> set[int]:
    return {byte for start, stop in spans for byte in range(start, stop)}


sorted_spans = st.lists(st.integers(0, 300), max_size=40, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
held_spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 50)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=8,
).map(sorted)


@given(sorted_spans, st.integers(0, 50), st.integers(1, 8))
def test_coalesce(spans: list[Span], gap: int, limit: int) -> None:
    joined = coalesce(spans, gap, limit)
    assert len(joined) <= limit
    assert covered(spans) <= covered(joined)
    assert all(a[1] < b[0] for a, b in pairwise(joined)) or gap == 0
    for start, stop in joined:  # begins and ends with wanted bytes
        assert start in {s for s, _ in spans}
        assert stop in {s for _, s in spans}
    if len(joined) < limit:  # every gap that was read through is a small one
        extra = covered(joined) - covered(spans)
        gaps = [(a[1], b[0]) for a, b in pairwise(spans)]
        assert all(b - a < gap for a, b in gaps if a in extra)


@given(sorted_spans, held_spans)
def test_subtract(spans: list[Span], held: list[Span]) -> None:
    left = subtract(spans, held)
    assert covered(left) == covered(spans) - covered(held)
    assert left == sorted(left)
    assert all(start < stop for start, stop in left)


@given(boxes(), held_spans, st.integers(0, 20), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_gather(
    case: tuple[tuple[int, ...], Box], held: list[Span], gap: int, limit: int, itemsize: int
) -> None:
    """Held and fetched pieces put together are the slice that torch would take."""
    shape, box = case
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[itemsize]
    tensor = torch.randint(0, 255, shape, dtype=torch.int64).to(dtype)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    spans = [(at, at + length) for at, length in runs(shape, itemsize, box)]
    held = [span for span in held if span[1] <= len(raw)]
    fetched = coalesce(subtract(spans, held), gap, limit)
    data = gather(spans, [(a, raw[a:b]) for a, b in (*held, *fetched)])
    expected = tensor[tuple(slice(*part) for part in box)].contiguous()
    assert data.numpy().tobytes() == expected.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@given(st.tuples(*[st.integers(1, 6)] * 3), st.data())
@settings(max_examples=60)
def test_reading_in_any_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Through a cache on disk that fills up, with tiny gaps and chunks."""
    tensor = torch.randint(0, 9999, shape, dtype=torch.int16)
    raw = tensor.numpy().tobytes()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEXRAY_CACHE", folder)
        patch.setattr(ranges, "CHUNK", 10)
        cache = RangeCache("https://hub", "a/b", "c", "d")
        cache.keep(ranged.Identity(len(raw), "e"))
        for _ in range(3):
            box = tuple(
                tuple(sorted(data.draw(st.tuples(*[st.integers(0, size)] * 2)))) for size in shape
            )
            spans = [(at, at + length) for at, length in runs(shape, 2, box)]
            pieces = cache.pieces(spans)
            missing = subtract(spans, [(a, a + len(piece)) for a, piece in pieces])
            for a, b in coalesce(missing, gap=4, limit=3):
                cache.write(a, bytearray(raw[a:b]))
                pieces.append((a, raw[a:b]))
            expected = tensor[tuple(slice(*part) for part in box)].contiguous()
            assert gather(spans, pieces).numpy().tobytes() == expected.numpy().tobytes()
