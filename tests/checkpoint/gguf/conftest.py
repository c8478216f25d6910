"""A file that is as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from tests.checkpoint.gguf.images import packed, write


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"a": GGMLQuantizationType.Q4_0, "b": GGMLQuantizationType.F16}
    tensors = {name: (packed(kind, 3, 64), kind) for name, kind in kinds.items()}
    keys = {"n": 7, "x": 0.5, "yes": True, "s": "héllo", "t": ["a", "", "ßc"], "i": [1, -2, 3]}
    return write(tmp_path_factory.mktemp("valid") / "model.gguf", tensors, keys)
