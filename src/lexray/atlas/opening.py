"""How a model is opened, as a value: what workers need to open it themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lexray.model.model import Model


@dataclass(frozen=True)
class Opening:
    """The arguments of `Model.from_pretrained` that fit into a message."""

    source: str
    revision: str | None = None
    remote: bool = False
    adapter: str | None = None
    family: str | None = None
    device: str = "cpu"
    dtype: str | None = None

    @property
    def absolute(self) -> Opening:
        """The same from any folder: for workers that stand elsewhere."""
        adapter = None if self.adapter is None else _absolute(self.adapter)
        return replace(self, source=_absolute(self.source), adapter=adapter)

    def open(self) -> Model:
        return Model.from_pretrained(
            self.source,
            revision=self.revision,
            remote=self.remote,
            adapter=self.adapter,
            family=self.family,
            device=self.device,
            dtype=None if self.dtype is None else getattr(torch, self.dtype),
        )


def _absolute(name: str) -> str:
    """A path that is there, as seen from everywhere; a Hub id or a shipped name as it is."""
    return str(Path(name).resolve()) if Path(name).exists() else name
