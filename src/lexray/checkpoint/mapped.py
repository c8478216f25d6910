"""A file of weights, mapped into memory: the one place where its bytes are looked at.

Reading a mapped file behind its end kills the process (SIGBUS), and a file may shrink while it is
open: a download that begins anew, a disk that is tidied up. So its size is looked up before every
read, and a file that has become shorter is an error like any other.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch
from torch import Tensor

from lexray.checkpoint.plain import open_plain
from lexray.errors import LexrayError


class Mapped:
    """The bytes of a regular file. `size` is what it had when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_plain(path) as file:
                # A private mapping may be written to, as torch insists on; nothing ever does.
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise LexrayError(f"{path} is empty; download it again") from error
        except OSError as error:
            raise LexrayError(f"{path} cannot be read: {error.strerror or error}") from error
        self.size = len(self.buffer)
        self._bytes = torch.frombuffer(self.buffer, dtype=torch.uint8)

    def part(self, start: int, stop: int) -> Tensor:
        """The bytes from `start` up to `stop`, still in the file: copied at once, unless many."""
        self.refuse_shorter(stop)
        return self._bytes[start:stop]

    def refuse_shorter(self, stop: int) -> None:
        """Raises if the file no longer reaches `stop`."""
        if (now := self.buffer.size()) < stop:
            raise LexrayError(
                f"{self.path} has become shorter since it was opened ({self.size} bytes, now "
                f"{now}); open the model again"
            )
