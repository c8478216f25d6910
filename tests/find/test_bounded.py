"""Searches and comparisons of whole models: one pass over the file, and memory that does not grow
with the number of layers. Bytes are counted where the checkpoint is read, memory by what torch
allocates; a mapped embedding is not in it, and no question copies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

import lexray as lx
from lexray import scratch
from lexray.checkpoint import safetensors
from lexray.compare.align import align as module
from lexray.compare.diff import read
from lexray.model import vectors
from lexray.model.model import Model
from lexray.space import side, space, usual
from lexray.space.topk import vectors as lists
from tests.dispatch import tensors_in
from tests.saved import words, write_tokenizer

D, INNER, TOKENS = 96, 256, 9000
LAYER = 4 * D * INNER
"""The bytes of one layer's keys, gates or values in float32."""
EMBEDDING = 2 * D * TOKENS
"""Those of an embedding as it is stored."""
ROWS = 128
"""Vectors and tokens that are taken at a time, here."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the model were large: tensors stay where they lie, and steps are small beside them."""
    monkeypatch.setattr(safetensors, "MAPPED_FROM", EMBEDDING)
    monkeypatch.setattr(space, "UPCAST_BELOW", 0)
    monkeypatch.setattr(side, "ROWS_AT_ONCE", ROWS)
    monkeypatch.setattr(vectors, "ELEMENTS_AT_ONCE", ROWS * D)
    monkeypatch.setattr(usual, "AT_ONCE", ROWS * D)
    monkeypatch.setattr(lists, "_SCORES_AT_ONCE", 16 * TOKENS)
    monkeypatch.setattr(read, "AT_ONCE", 8)
    monkeypatch.setattr(lists, "_BLOCK_COLUMNS", 4 * ROWS)


@cache
def written(folder: Path, layers: int, seed: int) -> Path:
    config = LlamaConfig(
        hidden_size=D,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=TOKENS,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_config(config)
    path = folder / f"{layers}-{seed}"
    module.to(torch.bfloat16).save_pretrained(path)
    write_tokenizer(path, words(TOKENS - 10))
    return path


def both(folder: Path, layers: int, view: str) -> tuple[Model, Model]:
    """Two models, opened anew: nothing is kept of what was asked before."""
    a, b = (lx.Model.from_pretrained(written(folder, layers, seed)) for seed in (0, 1))
    return a.view(view), b.view(view)  # type: ignore[arg-type]


Question = Callable[[Model, Model], Any]
QUESTIONS: dict[str, Question] = {
    "lookup": lambda a, b: a.lookup("word5").top(2),
    "dot": lambda a, b: a.lookup("word5", by="dot").top(2),
    "nearest": lambda a, b: a.nearest("L1N7.value", 1, among=["values"]),
    "related": lambda a, b: a.related(k=20),
    "diff": lambda a, b: lx.diff(a, b, groups=["keys", "values"], n=5, each=1),
    "align": lambda a, b: lx.align(a, b, ["values"], control=False),
}
READ = {"lookup": 2, "dot": 1, "nearest": 1, "related": 2, "diff": 2, "align": 1}
"""How often a layer's worth of one kind of vectors is read from either file: related and diff look
at keys and values, and the first lookup of all also at how values vary."""
asked = pytest.mark.parametrize("question", QUESTIONS)


class Allocated(TorchDispatchMode):
    """Counts the bytes that tensors hold which are made inside, and the most of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self._alive: dict[int, ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = {_memory(x)._cdata for x in tensors_in((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for x in tensors_in(found):
            memory = _memory(x)
            if (key := memory._cdata) not in given and key not in self._alive:
                self.held += (size := memory.nbytes if memory is x else memory.nbytes())
                self.most = max(self.most, self.held)
                self._alive[key] = ref(memory, lambda _, key=key, size=size: self._free(key, size))
        return found

    def _free(self, key: int, size: int) -> None:
        del self._alive[key]
        self.held -= size


def _memory(x: torch.Tensor) -> Any:
    """Its storage; packed matrices have none that can be asked for."""
    return x if x.layout == torch._mkldnn else x.untyped_storage()


@asked
def test_every_layer_is_read_once(question: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    counts = []
    for layers in (2, 4):
        models = both(tmp_path_factory.getbasetemp(), layers, "raw")
        before = [model.checkpoint.bytes_read for model in models]
        QUESTIONS[question](*models)
        counts.append([m.checkpoint.bytes_read - n for m, n in zip(models, before, strict=True)])
    grown = [more - less for less, more in zip(*counts, strict=True)]
    other = 1 if question in ("diff", "align") else 0
    few = 40 * D * 2  # hits are read again, one by one; norms and biases
    for bytes_read, times in zip(grown, (1, other), strict=True):
        expected = times * READ[question] * LAYER  # two more layers, of half precision
        assert expected <= bytes_read <= expected + few * 2


@pytest.mark.slow
@asked
@pytest.mark.parametrize("view", ["raw", "standard"])
def test_memory_does_not_grow_with_layers(
    question: str,
    view: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HELD", LAYER)
    found = []
    for layers in (2, 4):
        models = both(tmp_path_factory.getbasetemp(), layers, view)
        for model in models:
            for layer in (0, 1):  # what is made once is another matter
                for kind in ("key", "value"):
                    space.space_of(model, layer).whole(kind)
        with Allocated() as memory:
            QUESTIONS[question](*models)
        found.append(memory.most)
    less, more = found
    assert more - less < LAYER / 4
    assert less < EMBEDDING


def test_align_reads_both_files_once_where_layers_lie_in_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("once")

    def align() -> tuple[int, Any]:
        a, b = both(folder, 4, "raw")
        aligned = QUESTIONS["align"](a, b)
        return b.checkpoint.bytes_read, aligned.to_dict()

    monkeypatch.setattr(module, "HELD", LAYER)
    often, expected = align()
    monkeypatch.setattr(scratch, "HELD", LAYER // 2)
    once, found = align()
    monkeypatch.setattr(module, "room", lambda: 0)
    without_room, _ = align()
    assert found == expected
    assert without_room == often == once + 3 * 4 * LAYER // 2
