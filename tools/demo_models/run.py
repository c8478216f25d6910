"""A training run's folder: the checkpoint it resumes from and the log of its losses."""

import json
import time
from pathlib import Path
from typing import Any

import torch

from lexray.files import append_json_line, appending, read_json_lines, write_whole, writing

CHECKPOINT_SECONDS = 180.0


class Run:
    """Steps done so far, kept in a folder outside the repository."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint.pt"
        self.log_file = folder / "log.jsonl"
        self._saved_at = time.monotonic()

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the checkpoint, if any; the number of steps already done."""
        if not self.checkpoint.exists():
            self.log_file.unlink(missing_ok=True)
            return 0
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(state["step"])
        kept = [row for row in read_log(self.log_file) if row["step"] <= step]
        write_whole(self.log_file, "".join(json.dumps(row) + "\n" for row in kept))
        return step

    def due(self) -> bool:
        """Whether the last checkpoint is some minutes old."""
        return time.monotonic() - self._saved_at > CHECKPOINT_SECONDS

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write the checkpoint, which takes the place of the old one when it is whole."""
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        with writing(self.checkpoint) as part:
            torch.save(state, part)
        self._saved_at = time.monotonic()

    def log(self, **row: float) -> None:
        """Append a line to the log."""
        with appending(self.log_file) as stream:
            append_json_line(stream, row)


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of a training log."""
    return [row for _, row in read_json_lines(path)] if path.exists() else []
