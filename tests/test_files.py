"""Where lexray keeps its own files, and how files are written and read."""

from __future__ import annotations

import gzip
import json
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
