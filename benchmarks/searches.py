"""Searches and comparisons of a whole model on Llama 3 8B's shapes: memory and bytes read.

The checkpoint is sparse: embeddings and some layers with decaying spectra, holes elsewhere, which
are read like all else. Each question runs in a process of its own, which says how many bytes it
read from the file, and how much memory it held at most beside its imports and the mapped file.

    python -m benchmarks.searches DIR make             writes two checkpoints, base and tuned
    python -m benchmarks.searches DIR lookup …         asks: lookup nearest related diff align

`LAYERS=4 WIDTH=1024 TOKENS=32064` in the environment make a smaller model, whose tensors are used
as they lie in the file all the same; what is held must not depend on the number of layers.
`LAYERS=80 WIDTH=8192` make the 70B's shapes.
"""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import isqrt, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.largest import write_tokenizer
from benchmarks.pairs import status_mb

LAYERS = int(os.environ.get("LAYERS", "32"))
TOKENS = int(os.environ.get("TOKENS", "128256"))
FILLED = 2
WIDTH = int(os.environ.get("WIDTH", "4096"))
INNER = WIDTH * 7 // 2
HEAD, KEYS = 128, min(8, WIDTH // 512)
CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": WIDTH // HEAD,
    "num_key_value_heads": KEYS,
    "vocab_size": TOKENS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (TOKENS, WIDTH),
        "lm_head.weight": (TOKENS, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    for n in range(LAYERS):
        stem = f"model.layers.{n}."
        for x, rows in (("q", WIDTH), ("k", KEYS * HEAD), ("v", KEYS * HEAD), ("o", WIDTH)):
            found[f"{stem}self_attn.{x}_proj.weight"] = (rows, WIDTH)
        for x in ("gate", "up"):
            found[f"{stem}mlp.{x}_proj.weight"] = (INNER, WIDTH)
        found[f"{stem}mlp.down_proj.weight"] = (WIDTH, INNER)
        for x in ("input", "post_attention"):
            found[f"{stem}{x}_layernorm.weight"] = (WIDTH,)
    return found


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    """Rows with a spectrum that falls as 1/√rank, in directions that all tensors share: a turn by
    Q ⊗ R, of which a row costs some 2 · 64 · d."""
    if len(shape) == 1:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(seed)
    rows, cols = shape if shape[1] == WIDTH else shape[::-1]
    side = next(n for n in range(isqrt(cols), 0, -1) if cols % n == 0)
    turns = torch.Generator().manual_seed(1)
    Q, R = (torch.linalg.qr(torch.randn(n, n, generator=turns)).Q for n in (side, cols // side))
    X = torch.randn(rows, cols, generator=generator) * torch.arange(1, cols + 1).rsqrt()
    X = (Q @ X.view(rows, side, -1) @ R.T).view(rows, cols)
    return 0.02 * (X if shape[1] == WIDTH else X.T)


def write(folder: Path, seed: int = 0, source: Path | None = None) -> None:
    """A checkpoint; `source`: the same but for one filled layer, which moves a little."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_tokenizer(folder / "tokenizer.json", TOKENS, 2 * TOKENS)
    header, at = {}, 0
    for name, shape in shapes().items():
        stop = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, stop]}
        at = stop
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    filled = tuple(f"model.layers.{n}." for n in range(FILLED))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
        for i, (name, shape) in enumerate(shapes().items()):
            if "layers" in name and not name.startswith(filled) and len(shape) > 1:
                continue
            X = draw(shape, i)
            if source is not None and name.startswith(filled[-1]) and len(shape) > 1:
                X += 0.1 * draw(shape, 1000 + i)
            file.seek(8 + len(raw) + header[name]["data_offsets"][0])  # type: ignore[index]
            file.write(X.bfloat16().contiguous().view(torch.uint8).numpy().tobytes())


class Memory:
    """What this process holds by itself, mapped files aside: looked at all the time."""

    def __init__(self) -> None:
        self.start = self.most = status_mb("RssAnon")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ends.wait(0.01):
            self.most = max(self.most, status_mb("RssAnon"))

    def stop(self) -> float:
        self._ends.set()
        self._thread.join()
        return self.most - self.start


def ask(folder: Path, question: str, view: str) -> dict[str, float]:
    """One question in this process."""
    import lexray as lx
    from lexray.checkpoint import safetensors
    from lexray.space import space

    if WIDTH < 4096:
        safetensors.MAPPED_FROM, space.UPCAST_BELOW = TOKENS * WIDTH, 0
    model = lx.Model.from_pretrained(folder / "base").view(view)  # type: ignore[arg-type]
    other = lx.Model.from_pretrained(folder / "tuned").view(view)  # type: ignore[arg-type]
    words = (700, 5000)
    questions: dict[str, Callable[[], Any]] = {
        "lookup": lambda: model.lookup(words).top(10),
        "dot": lambda: model.lookup(words, by="dot").top(10),
        "nearest": lambda: model.nearest("L1N7.value", among=("values",)),
        "related": lambda: model.related(),
        "diff": lambda: lx.diff(model, other),
        "align": lambda: lx.align(model, other, "values", control=False),
    }
    import transformers  # noqa: F401  the first block is its own

    torch.zeros(8, 8) @ torch.zeros(8, 8)
    read = [m.checkpoint.bytes_read for m in (model, other)]
    memory, start = Memory(), time.process_time()
    questions[question]()
    held, seconds = memory.stop(), time.process_time() - start
    read = [m.checkpoint.bytes_read - n for m, n in zip((model, other), read, strict=True)]
    return {
        "held_mb": held,
        "cpu_seconds": seconds,
        "read_mb": read[0] / 2**20,
        "read_other_mb": read[1] / 2**20,
        "imports_mb": memory.start,
        "file_mb": 2 * sum(map(prod, shapes().values())) / 2**20,
    }


def main(folder: Path, names: list[str]) -> None:
    if names == ["make"]:
        write(folder / "base")
        write(folder / "tuned", source=folder / "base")
        return
    if names[0] == "--here":
        print(json.dumps(ask(folder, names[1], names[2])))
        return
    for name in names:
        question, _, view = name.partition(":")
        command = [sys.executable, "-m", "benchmarks.searches", str(folder), "--here"]
        done = subprocess.run(
            [*command, question, view or "raw"], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(name, {figure: round(value, 1) for figure, value in found.items()}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
