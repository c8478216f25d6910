"""Where lexray keeps its own files, and how files are written and read."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lexray.checkpoint.hub.ranges import RangeCache
from lexray.errors import LexrayError
from lexray.files import (
    append_json_line,
    appending,
    cache_root,
    has_json_lines,
    read_json_lines,
    whole_lines,
    write_whole,
    writing,
)
from lexray.vocabulary import filters
from lexray.vocabulary.vocabulary import Vocabulary


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "LEXRAY_CACHE"])
def test_one_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Ranges and counts of a corpus lie in the same folder, wherever the user wants it."""
    monkeypatch.delenv("LEXRAY_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    root = tmp_path / "here" / ("lexray" if variable == "XDG_CACHE_HOME" else "")
    assert cache_root() == root
    text = tmp_path / "corpus.txt"
    text.write_text("#1")
    filters.corpus(text).mask(Vocabulary.numbered(9), 9)
    assert [path.suffix for path in root.rglob("*") if path.is_file()] == [".npz"]
    assert RangeCache("https://hub", "org/name", "commit", "file").folder.is_relative_to(root)


def test_cache_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", "~/somewhere")
    assert cache_root() == Path.home() / "somewhere"


# ---------------------------------------------------------------------- whole or not at all


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "é\udcff")
    assert path.read_bytes() == "é\\udcff".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_or_not_at_all(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def half() -> None:
        with writing(path) as part:
            part.write_text("aft")
            raise error("stop")

    with pytest.raises(LexrayError if error is OSError else error):
        half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_written_whole(tmp_path: Path) -> None:
    with writing(tmp_path / "model") as whole:
        whole.mkdir()
        (whole / "a").write_text("a")
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "a").read_text() == "a"
    assert len(list(tmp_path.iterdir())) == 1


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "a.txt"):
        with pytest.raises(LexrayError, match=f"cannot write {path}: "):
            write_whole(path, "x")


# ---------------------------------------------------------------------- lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL.gz"])
def test_lines_of_json_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = '\ufeff{"a": "\u2028"}\n\n  \n[1]\r\n2'.encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert has_json_lines(path)
    found = list(read_json_lines(path))
    assert [value for _, value in found] == [{"a": "\u2028"}, [1], 2]
    assert [where for where, _ in found] == [f"{path}, line {n}" for n in (1, 4, 5)]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'1\n{"a', r"a\.jsonl, line 2: this is not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1: this is not JSON"),
        ("a.jsonl", b"\xff", "cannot be read as UTF-8 text"),
        ("a.jsonl.gz", b"1", "cannot be read: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b"1\n" * 999, mtime=0)[:-9], "cannot be read: "),
        (
            "a.jsonl.gz",
            gzip.compress(b"1", mtime=0)[:10] + b"\x07" * 40,
            "cannot be read: Error -3",
        ),
    ],
)
def test_lines_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LexrayError, match=message):
        list(read_json_lines(tmp_path / name))
    with pytest.raises(LexrayError, match=r"none\.jsonl cannot be read: No such file"):
        list(read_json_lines(tmp_path / "none.jsonl"))


def test_what_was_expected_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("x")
    with pytest.raises(LexrayError, match="line 1: a number, please"):
        list(read_json_lines(tmp_path / "a.jsonl", "a number, please"))


def test_lines_are_appended_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"key": "é"}, {"key": "\udcff"}, {"key": [1.5, None]}]
    for row in rows:
        with appending(path) as stream:
            append_json_line(stream, row)
    whole = path.read_bytes()
    third = whole.splitlines(keepends=True)[2]
    for n in range(len(third)):
        path.write_bytes(whole[: len(whole) - len(third) + n])
        with appending(path) as stream:
            assert [json.loads(line) for line in whole_lines(stream, b'{"key":')] == rows[:2]
            append_json_line(stream, rows[2])
        assert path.read_bytes() == whole
    path.write_bytes(whole + b"mine")
    with appending(path) as stream:
        assert list(whole_lines(stream, b'{"key":'))[-1] == b"mine", "not ours: not cut off"
    assert path.read_bytes() == whole + b"mine"


# ---------------------------------------------------------------------- what is no plain file


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "a.txt", tmp_path / "link.txt"
    real.parent.mkdir()
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.txt", "link.txt", "real"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(LexrayError, match=r"cannot write .*one: Too many levels of symbolic links"):
        write_whole(one, "new")
    assert one.is_symlink()
    assert other.is_symlink()


def test_a_lone_line_that_is_too_deep_to_be_read_is_kept(tmp_path: Path) -> None:
    path, line = tmp_path / "a.jsonl", b'{"key":' + b"[" * 100_000
    path.write_bytes(line)
    with appending(path) as stream:
        assert [*whole_lines(stream, b'{"key":')] == [line]
    assert path.read_bytes().startswith(line)


def test_a_link_to_what_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "new")
    write_whole(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_text() == "x"


def test_the_longest_name_there_can_be(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 255), "x")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("lines", [False, True])
def test_devices_and_pipes_are_written_through(
    tmp_path: Path, devices: tuple[Path, Path], lines: bool
) -> None:
    def write(path: Path) -> None:
        if lines:
            with appending(path) as stream:
                assert list(whole_lines(stream, b"")) == []
                append_json_line(stream, ["x"] * 30_000)
        else:
            write_whole(path, "x" * 200_000)

    null, full = devices
    write(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert null.stat().st_rdev == Path("/dev/null").stat().st_rdev
    with pytest.raises(LexrayError, match=r"cannot write .*full: No space left"):
        write(full)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        write(pipe)
        assert len(read.result()) == (120_002 if lines else 200_000)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_open_streams_are_not_replaced(tmp_path: Path) -> None:
    """As -o /dev/stdout with >> log: what was in the log stays."""
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as stream:
        write_whole(Path(f"/dev/fd/{stream.fileno()}"), "after\n")
    assert log.read_text() == "before\nafter\n"


@pytest.mark.slow
def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, pathlib; from lexray.files import writing\n"
        "with writing(pathlib.Path(sys.argv[1])) as part:\n"
        "    part.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.txt"], check=False)
    (left,) = tmp_path.iterdir()
    with writing(tmp_path / "b.txt") as living:
        living.write_text("b")
        os.utime(left, (0, 0))
        os.utime(living.parent, (0, 0))
        write_whole(tmp_path / "c.txt", "c")
        assert not left.exists()
        assert living.exists(), "the folder of one who lives is left alone"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.txt", "c.txt"]


# ---------------------------------------------------------------------- lines, guarded


@pytest.mark.parametrize("only", [b'{"key": "of another program"}', b'{"key', b'{"kez": 1'])
def test_a_users_only_line_is_not_cut_off(tmp_path: Path, only: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(only)
    with appending(path) as stream:
        for line in whole_lines(stream, b'{"key":'):
            assert line == only
            break
    assert path.read_bytes() == only


def test_a_last_line_without_its_end_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"key":1}')
    with appending(path) as stream:
        assert list(whole_lines(stream, b'{"key":')) == [b'{"key":1}']
        append_json_line(stream, {"key": 2})
    assert path.read_bytes() == b'{"key":1}\n{"key":2}\n'


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexray.files.PATIENCE", 2)
    path = tmp_path / "a.jsonl"
    with appending(path) as stream:
        append_json_line(stream, 1)
        with (
            pytest.raises(LexrayError, match=r"another process is writing .*a\.jsonl; wait"),
            appending(path),
        ):
            pytest.fail("two at a time")
    with appending(path) as stream:
        append_json_line(stream, 2)
    assert path.read_bytes() == b"1\n2\n"


@pytest.mark.slow
def test_a_line_that_does_not_fit_leaves_none(tmp_path: Path) -> None:
    """A disk that is full after 4 kB: the limit of a file's size stands for it."""
    code = (
        "import resource, signal, sys, pathlib\n"
        "from lexray.files import append_json_line, appending\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "with appending(pathlib.Path(sys.argv[1])) as stream:\n"
        "    for n in range(9): append_json_line(stream, 'x' * 998)"
    )
    path = tmp_path / "a.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", code, path], check=False, capture_output=True, text=True
    )
    assert "LexrayError: cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert path.read_bytes() == (b'"' + b"x" * 998 + b'"\n') * 4
