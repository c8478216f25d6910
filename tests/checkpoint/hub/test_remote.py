"""Reading a model by byte ranges, against a server that counts."""

from __future__ import annotations

import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from torch import Tensor

from lexray.checkpoint.hub import ranges, remote
from lexray.checkpoint.hub.remote import RemoteCheckpoint
from lexray.errors import LexrayError
from tests.checkpoint.hub.sample import FILE, GUESS, Open, same
from tests.checkpoint.hub.server import FakeHub


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


@pytest.mark.slow
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
