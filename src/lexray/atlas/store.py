"""Where an atlas lies: a folder, or any address that fsspec knows (memory://, s3://, …).

Files are there whole or not at all: in a folder they are written beside and renamed; what object
stores and fsspec's memory are given appears when all of it has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lexray.checkpoint.plain import asset_at, is_plain, read_plain
from lexray.errors import LexrayError
from lexray.files import write_whole

ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]+(::|://)", re.IGNORECASE)
OWN_MEMORY = ("memory://",)
"""File systems that live inside one process."""
MOST_BYTES = 2**31
"""A file of an atlas is smaller; a larger one is none of ours."""


@dataclass(frozen=True)
class Store:
    """The files of one atlas, by their names inside it."""

    where: str

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one of this machine."""
        if ADDRESS.match(self.where) is None:
            return Path(self.where)
        if re.match(r"(file|local)://", self.where, re.IGNORECASE):
            return Path(self.where.partition("://")[2])
        return None

    @property
    def shared(self) -> bool:
        """Whether other processes see what is written here."""
        return not self.where.lower().startswith(OWN_MEMORY)

    @property
    def absolute(self) -> Store:
        """The same from any folder."""
        return self if self.folder is None else Store(str(self.folder.resolve()))

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        """fsspec's file system, and the path in it."""
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(self.where)
        except (ValueError, ImportError, OSError) as error:
            raise LexrayError(f"cannot open {self.where!r}: {error}") from error
        return system, str(path).rstrip("/")

    @property
    def system(self) -> Any:
        """fsspec's file system of an atlas that is in no folder."""
        return self._remote[0]

    def path(self, name: str) -> str:
        """Where a file lies, as its file system calls it."""
        if self.folder is not None:
            return str(self.folder / name)
        return f"{self._remote[1]}/{name}"

    def write(self, name: str, data: bytes) -> None:
        """The whole file or nothing."""
        if self.folder is not None:
            path = self.folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LexrayError(
                    f"cannot make the folder {path.parent}: {error.strerror}"
                ) from error
            write_whole(path, data)
            return
        path_there = self.path(name)
        with self._saying(f"write {name}"):
            self.system.makedirs(path_there.rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(path_there, data)

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is none."""
        if self.folder is not None:
            path = asset_at(self.folder / name)
            return None if path is None else read_plain(path, MOST_BYTES)
        with self._saying(f"read {name}"):
            if not self.system.exists(self.path(name)):
                return None
            if self.system.size(self.path(name)) > MOST_BYTES:
                raise LexrayError(f"{name} in {self.where} is larger than any file of an atlas")
            content: bytes = self.system.cat_file(self.path(name))
            return content

    def stamp(self, name: str) -> tuple[int, int] | None:
        """When a file of a folder was written and its size: another stamp, another content."""
        if self.folder is None:
            return None
        try:
            known = (self.folder / name).stat()
        except OSError:
            return None
        return known.st_mtime_ns, known.st_size

    def remove(self, name: str) -> None:
        if self.folder is not None:
            (self.folder / name).unlink(missing_ok=True)
            return
        with self._saying(f"remove {name}"):
            if self.system.exists(self.path(name)):
                self.system.rm_file(self.path(name))

    def names(self) -> set[str]:
        """All Parquet files, such as `vectors/standard/key-L003-00.parquet`; a pipe or a device,
        for which DuckDB would wait, is none."""
        return set(self._names())

    def _names(self) -> Iterator[str]:
        if self.folder is not None:
            for table in _list(self.folder):
                for view in _list(self.folder / table):
                    for name in _list(self.folder / table / view):
                        if name.endswith(".parquet") and is_plain(
                            self.folder / table / view / name
                        ):
                            yield f"{table}/{view}/{name}"
            return
        self.system.invalidate_cache()
        with self._saying("list the files"):
            root = self._remote[1].strip("/")
            for path_there in self.system.find(self._remote[1]):
                name = str(path_there).strip("/").removeprefix(root).strip("/")
                if name.endswith(".parquet") and name.count("/") == 2:
                    yield name

    def _saying(self, what: str) -> Any:
        return _Saying(self.where, what)


def _list(folder: Path) -> list[str]:
    """What lies in a folder, if it is one; what is being made beside is nobody's business, and may
    be gone in a moment."""
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LexrayError(f"cannot look into {folder}: {error.strerror}") from error


@dataclass(frozen=True)
class _Saying:
    """What goes wrong in another's file system, as an error of ours."""

    where: str
    what: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (OSError, ValueError)) and not isinstance(error, LexrayError):
            raise LexrayError(f"cannot {self.what} in {self.where}: {error}") from error
