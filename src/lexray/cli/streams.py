"""What a command prints, to whatever stands behind stdout and stderr.

They may be closed, a full disk, a pipe that nobody reads any more, or a terminal that knows only
ASCII. A result arrives whole, or there is an error and the exit code says so.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from lexray.clean import HANDLER, clean
from lexray.errors import LexrayError

MOST_SAID = 4000
"""Characters of an error: a file may have names without end."""


def say(text: str) -> None:
    """Writes to stdout, and makes sure that it got there."""
    with writing():
        sys.stdout.write(text)


def say_bytes(data: bytes) -> None:
    """The same for what is encoded already."""
    with writing():
        sys.stdout.buffer.write(data)


@contextmanager
def writing() -> Iterator[None]:
    """Inside, stdout is written to; whoever no longer reads it ends the command quietly."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _mute(sys.stdout)
        raise typer.Exit(0) from None
    except OSError as error:
        _mute(sys.stdout)
        raise LexrayError(f"cannot write the result: {error.strerror}") from error


def tell(message: str) -> None:
    """One line on stderr, if there is anyone to read it."""
    line = clean("; ".join(message.splitlines()))
    line = line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]} …"
    try:
        print(f"lexray: {line}", file=sys.stderr, flush=True)
    except OSError:
        _mute(sys.stderr)


def _mute(stream: Any) -> None:
    """What is still in its buffer goes nowhere: Python would try again when it ends, and fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def preparing() -> Iterator[None]:
    """Inside, stdout and stderr are there, and replace signs that they cannot encode."""
    before = sys.stdin, sys.stdout, sys.stderr
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _occupy(number)
            setattr(sys, name, io.StringIO() if name != "stdout" else Closed())
    handlers = [getattr(stream, "errors", None) for stream in before[1:]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)
    try:
        yield
    finally:
        for stream, handler in zip((sys.stdout, sys.stderr), handlers, strict=True):
            if isinstance(stream, io.TextIOWrapper) and not stream.closed:
                with suppress(OSError):
                    stream.reconfigure(errors=handler)
        sys.stdin, sys.stdout, sys.stderr = before


def _occupy(number: int) -> None:
    """Nothing that is opened later shall be taken for stdout."""
    with suppress(OSError):
        os.fstat(number)
        return
    with suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)


class Closed(io.TextIOBase):
    """Stands for a stdout that is closed: writing to it is an error, not a silence."""

    def write(self, text: str) -> NoReturn:
        raise OSError(errno.EBADF, "standard output is closed; -o FILE writes to a file")

    @property
    def buffer(self) -> Any:
        return self
