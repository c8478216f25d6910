"""A repository, a server that counts, and a model that is opened there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from lexray.checkpoint.hub.remote import RemoteCheckpoint
from tests.checkpoint.hub.sample import FILE, Open, tensors
from tests.checkpoint.hub.server import FakeHub, serve


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return tensors()


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Tensor]) -> Path:
    root = tmp_path_factory.mktemp("repos")
    one, two = root / "org" / "one", root / "org" / "two"
    for folder in (one, two):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
        (folder / "tokenizer.json").write_text("{}")
    save_file(weights, one / FILE)
    shards = {"s1.safetensors": [*weights][:3], "s2.safetensors": [*weights][3:]}
    for shard, names in shards.items():
        save_file({name: weights[name] for name in names}, two / shard)
    where = {name: shard for shard, names in shards.items() for name in names}
    (two / f"{FILE}.index.json").write_text(json.dumps({"weight_map": where}))
    return root


@pytest.fixture
def hub(repos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve(repos) as hub:
        hub.use(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits, ours and huggingface_hub's, which are only written down."""
    waits: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
    return waits


@pytest.fixture
def start(hub: FakeHub, slept: list[float]) -> Open:
    """Opens a model; sleeping is only written down."""

    def open_(repo: str = "org/one", **options: str) -> RemoteCheckpoint:
        return RemoteCheckpoint.open(repo, sleep=slept.append, **options)

    return open_


@pytest.fixture
def opened(hub: FakeHub, start: Open) -> RemoteCheckpoint:
    """A model whose header was read; the log is empty again."""
    checkpoint = start()
    checkpoint.names()
    hub.reset()
    return checkpoint
