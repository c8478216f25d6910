"""How lexray's own files are written and read, and where it keeps what it need not make again.

A file that lexray writes is there whole or not at all: an interruption, a full disk or an error
leaves the old one as it was. A file that grows line by line is on disk up to its last whole line.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from lexray.clean import clean_json
from lexray.errors import LexrayError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PART = ".lexray-"
"""How the folders begin in which something is being made."""
SETTLED = 10
"""Seconds after which a folder that nobody holds is what a killed process left."""
PATIENCE = 20
"""How often to try for a file that another process holds, twenty times a second."""
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


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

    Files and folders alike. Nothing happens to `path` if the body raises. A link stays a link, and
    a file keeps its mode; into what is no file (a device, a pipe, `/dev/stdout`) it is written.

    >>> with writing(Path("heads.html")) as part:
    ...     figure.save(part)
    """
    try:
        if _is_stream(path):
            with tempfile.TemporaryDirectory() as folder:
                yield (part := Path(folder) / path.name)
                _pour(part, path)
            return
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # what cannot be followed: links in a circle
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        with _beside(target) as folder:
            yield (part := folder / path.name)
            _keep_mode(target, part)
            part.replace(target)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> LexrayError:
    return LexrayError(f"cannot write {path}: {error.strerror or error}")


def _descriptor(path: Path) -> int | None:
    """The number of the open stream that a path stands for: /dev/stdout, /dev/fd/3, …"""
    if str(path) in STANDARD:
        return STANDARD[str(path)]
    match = DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else None


def _is_stream(path: Path) -> bool:
    """Whether there is something that cannot be replaced: neither a file nor a folder."""
    if _descriptor(path) is not None:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_stream(path: Path) -> FileIO:
    number = _descriptor(path)
    return FileIO(path if number is None else os.dup(number), "wb")


def _pour(part: Path, path: Path) -> None:
    with part.open("rb") as source, _open_stream(path) as stream:
        while data := source.read(1 << 20):
            _write_all(stream, data)


def _write_all(stream: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def _keep_mode(target: Path, part: Path) -> None:
    """The new file is as private as the old one, and its owner's."""
    if not target.is_file():
        return
    old, new = target.stat(), part.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        with suppress(OSError, AttributeError):  # only root may; and Windows has no owners
            os.chown(part, old.st_uid, old.st_gid)
    part.chmod(stat.S_IMODE(old.st_mode))


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A folder for what is being made, which goes when it is done; those of the dead go first."""
    for old in target.parent.glob(f"{PART}*"):
        _remove_dead(old)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=PART) as name:
        folder = Path(name)
        with _hold(folder):
            yield folder


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Inside, others see that the folder's maker lives: the system ends the lock with it."""
    if fcntl is None:
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(number, fcntl.LOCK_SH)
        yield
    finally:
        os.close(number)


def _remove_dead(folder: Path) -> None:
    """Removes what a process that was killed has left behind, once it is surely dead."""
    if fcntl is None:
        return
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < SETTLED:
            return
        number = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(number)


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
def appending(path: Path) -> Iterator[FileIO]:
    """A file to read and to add to, made if it is not there; no two processes at a time.

    What is no file (a device, a pipe, `/dev/stdout`) is only written to.
    """
    try:
        with _open_stream(path) if _is_stream(path) else FileIO(path, "a+") as stream:
            if stream.readable():
                _lock(stream, path)
            yield stream
    except OSError as error:
        raise cannot_write(path, error) from error


def _lock(stream: FileIO, path: Path) -> None:
    """Waits a moment: others may be adding a line."""
    for _ in range(PATIENCE if fcntl is not None else 0):
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # some network file systems have no locks
            return
        else:
            return
    if fcntl is not None:
        raise LexrayError(
            f"another process is writing {path}; wait until it is done, or choose another file"
        )


def json_line(value: Any) -> bytes:
    """A value as one line of JSON, without spaces that nobody reads."""
    line = clean_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return line.encode() + b"\n"


def append_json_line(stream: FileIO, value: Any) -> None:
    """One whole line, on disk before the next one is made; on a full disk none at all."""
    before = os.fstat(stream.fileno()).st_size
    try:
        _write_all(stream, json_line(value))
        os.fsync(stream.fileno())
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):  # pipes and devices have no disk
            return
        if stream.readable():
            stream.truncate(before)
        raise


def whole_lines(stream: FileIO, start: bytes) -> Iterator[bytes]:
    """The lines of a file that `append_json_line` made; a torn last one is cut off.

    `start` is how all of its lines begin: a last line that begins otherwise is not ours, and is
    given out like the others. So is the only line of a file, unless it is clearly ours and torn:
    it may be the user's.
    """
    if not stream.readable():
        return
    stream.seek(0)
    reader = BufferedReader(stream)
    whole = 0
    try:
        for line in reader:
            torn = not line.endswith(b"\n")
            if torn and line.startswith(start[: len(line)]) and (whole or _is_torn(line, start)):
                stream.truncate(whole)
                break
            yield line
            whole += len(line)
            if torn and line.startswith(start):
                _write_all(stream, b"\n")
    finally:
        with suppress(ValueError):  # the file may be closed already
            reader.detach()


def _is_torn(line: bytes, start: bytes) -> bool:
    """Whether a line begins as ours do, and ends too early."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith(start)
    except RecursionError:  # nothing of ours is that deep
        return False
    return False
