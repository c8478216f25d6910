"""How lexray's own files are written and read, and where it keeps what it need not make again.

A file that lexray writes is there whole or not at all: an interruption, a full disk or an error
leaves the old one as it was. A file that grows line by line is on disk up to its last whole line.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from platformdirs import user_cache_path

from lexray.errors import LexrayError


def cache_root() -> Path:
    """The one folder of everything that lexray caches.

    `$LEXRAY_CACHE` where it is set, else `lexray` in the platform's folder for caches
    (`$XDG_CACHE_HOME`, else `~/.cache`, on Linux). Read at each call: it may be set late.
    """
    if folder := os.environ.get("LEXRAY_CACHE"):
        return Path(folder).expanduser()
    return user_cache_path("lexray", appauthor=False)


# ------------------------------------------------------------------ writing, whole or not at all


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A place beside `path`, of the same name; what is made there takes the place of `path`.

    Files and folders alike. Nothing happens to `path` if the body raises.

    >>> with writing(Path("heads.html")) as part:
    ...     figure.write_html(part)
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            part = Path(folder) / path.name
            yield part
            part.replace(path)
    except OSError as error:
        raise LexrayError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """A file with this content; text as UTF-8, and what that cannot hold is written out."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    with writing(path) as part:
        part.write_bytes(data)


def write_cache(path: Path, content: bytes) -> None:
    """The same for what can be made again: where nothing can be written, nothing is."""
    with suppress(OSError, LexrayError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)


# ------------------------------------------------------------------ reading text and JSON lines


@contextmanager
def open_text(path: Path) -> Iterator[TextIOWrapper]:
    """A text file to read from, unzipped if its name ends in `.gz`; a byte order mark is skipped.

    Whatever goes wrong while it is open says which file it was.
    """
    try:
        opener = gzip.open if path.suffix.lower() == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig") as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise LexrayError(f"{path} cannot be read as UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise LexrayError(f"{path} cannot be read: {said}") from error


def read_json_lines(path: Path, expected: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a `.jsonl` file, perhaps `.gz`, each with where it stands: "a.jsonl, line 3".

    Empty lines are skipped. `expected` says what a line should be, for one that is no JSON.
    """
    with open_text(path) as lines:
        yield from parse_json_lines(lines, str(path), expected)


def parse_json_lines(
    lines: Iterable[str], name: str, expected: str = ""
) -> Iterator[tuple[str, Any]]:
    """The same for lines that are there already; `name` is what errors call their source."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            told = expected or f"this is not JSON: {error}"
            raise LexrayError(f"{where}: {told}") from error
        yield where, value


def has_json_lines(path: Path) -> bool:
    """Whether a file's name says that it holds JSON lines, zipped or not."""
    return path.name.lower().removesuffix(".gz").endswith(".jsonl")


# ------------------------------------------------------------------ files that grow line by line


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A file to read and to add to; it is made if it is not there."""
    try:
        with path.open("a+b") as stream:
            yield stream
    except OSError as error:
        raise LexrayError(f"cannot write {path}: {error.strerror or error}") from error


def append_json_line(stream: BinaryIO, value: Any) -> None:
    """One whole line, on disk before the next one is made."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
    stream.flush()
    os.fsync(stream.fileno())


def whole_lines(stream: BinaryIO, start: bytes) -> Iterator[bytes]:
    """The lines of a file that `append_json_line` made; a torn last one is cut off.

    `start` is how all of its lines begin: a last line that begins otherwise is not ours, and is
    given out like the others.
    """
    stream.seek(0)
    whole = 0
    for line in stream:
        if not line.endswith(b"\n") and line.startswith(start[: len(line)]):
            break
        whole += len(line)
        yield line
    stream.truncate(whole)
