"""What is made once per model and kept on disk: small derived tensors, by the model's identity.

They lie under the cache root in `models/<identity>/`; the folder can be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families import FeedForward
from lexray.files import cache_root, write_cache
from lexray.model.cache import Drawer
from lexray.model.weights import Weights

IDENTITY: Drawer[None, str] = Drawer(most=1)
WORTH_KEEPING = 2**22
"""The least size of an embedding, in elements, for which computing again would be noticed."""


def kept(weights: Weights, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` made the first time, for this model; live modules may change and are not kept."""
    a = weights.architecture
    live = isinstance(weights.checkpoint, ModuleCheckpoint)
    if live or a.d_vocab * a.d_model < WORTH_KEEPING:
        return make()
    path = cache_root() / "models" / identity(weights) / f"{name}.safetensors"
    if (found := _read(path)) is not None:
        return found
    made = {key: x.contiguous().cpu() for key, x in make().items()}
    write_cache(path, save(made))
    return made


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError):
        return None
    return found


def identity(weights: Weights) -> str:
    """A digest of the config, of every tensor's name and shape, and of some values of each layer.

    Fine-tuned models share all but the values, so rows of every block are part of it.
    """
    return IDENTITY.get(weights.cache, None, partial(_identity, weights))


def _identity(weights: Weights) -> str:
    checkpoint, a = weights.checkpoint, weights.architecture
    digest = sha256(json.dumps(weights.config, sort_keys=True, default=str).encode())
    for name in sorted(checkpoint.names()):
        digest.update(f"{name} {checkpoint.info(name)}".encode())
    digest.update(weights.vocabulary.fingerprint.encode())
    n = checkpoint.info(a.embed).shape[0]
    for start in (0, n // 2, n - 1):
        digest.update(_bytes(checkpoint.read(a.embed, slice(start, start + 1))))
    for block in a.blocks:
        ff = block.ff if isinstance(block.ff, FeedForward) else block.ff.experts[0]
        for linear in (block.attention.o, ff.w_out):
            digest.update(_bytes(linear.read(checkpoint, inputs=slice(0, 1))))
    return digest.hexdigest()[:32]


def _bytes(x: Tensor) -> bytes:
    data: bytes = x.float().contiguous().numpy(force=True).tobytes()
    return data
