"""What is made once per model and kept on disk: small derived tensors, by the model's identity.

They lie under the cache root in `models/<identity>/`; the folder can be deleted at any time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.errors import LexrayError
from lexray.families.walk import tensor_names
from lexray.files import cache_root, writing
from lexray.model.cache import Drawer
from lexray.model.weights import Weights

FORM = 2
"""To be raised when something that is kept comes to be made otherwise."""
IDENTITY: Drawer[None, str] = Drawer(most=1)
WORTH_KEEPING = 2**22
"""The least size of an embedding, in elements, for which computing again would be noticed."""
WORTH_KEEPING_RUNS = 2**18
AT_ONCE = 2**22
HUGE = 2**29
"""Elements of a tensor that are looked at together, and of one that is not looked at whole."""
GLANCED = 2**26
"""The latter where a file's time and number say the same already: each process looks anew."""


def keep(
    weights: Weights, name: str, make: Callable[[], dict[str, Tensor]], *, runs: bool = False
) -> dict[str, Tensor]:
    """What `make` made the first time, for this model.

    Live modules may change at any time and are not kept. What a text has to be run for (`runs`) is
    also kept of small models.
    """
    a = weights.architecture
    if (
        a.d_vocab * a.d_model < (WORTH_KEEPING_RUNS if runs else WORTH_KEEPING)
        or not weights.checkpoint.marks()
    ):
        return make()
    path = cache_root() / "models" / identity(weights) / f"{name}.safetensors"
    if (kept := _read(path)) is not None:
        return kept
    made = {key: x.contiguous().cpu() for key, x in make().items()}
    with suppress(OSError, SafetensorError, LexrayError):  # no place, no cache
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as part:
            save_file(made, part)
    return _read(path) or made  # what lies in a file need not be held


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError):
        return None
    return tensors


def identity(weights: Weights) -> str:
    """A digest of all that what is kept depends on, which is every weight: fine-tuned models share
    all but the values, and a file may be written again in its place.

    Local files count with path, size, time and number, a server's with its commit; the embeddings
    and the first block, of which most is made, with their content.
    """
    return IDENTITY.get(weights.cache, None, partial(_identity, weights))


def _identity(weights: Weights) -> str:
    checkpoint, a = weights.checkpoint, weights.architecture
    digest = sha256(json.dumps(weights.config, sort_keys=True, default=str).encode())
    stack = " encoder" if weights.decoder is not None else ""
    digest.update(f"{FORM} {weights.family.name} {weights.dtype}{stack}".encode())
    for name in sorted(checkpoint.names()):
        digest.update(f"{name} {checkpoint.info(name)}".encode())
    digest.update(weights.vocabulary.fingerprint.encode())
    digest.update(" ".join(checkpoint.marks()).encode())
    if checkpoint.remote:
        return digest.hexdigest()[:32]
    first = tensor_names(replace(a, blocks=a.blocks[:1]))
    for data in each_bytes(checkpoint, first.intersection(checkpoint.names()), GLANCED):
        digest.update(data)
    return digest.hexdigest()[:32]


def each_bytes(checkpoint: Checkpoint, names: Iterable[str], huge: int = HUGE) -> Iterator[bytes]:
    """What tensors hold, some of them at a time; of huge ones not all."""
    for name in sorted(names):
        for part in _parts(checkpoint, name, huge):
            yield _bytes(checkpoint.read_unchecked(name, *part))


def _parts(checkpoint: Checkpoint, name: str, huge: int) -> Iterator[tuple[slice, ...]]:
    """A tensor some rows at a time; of a huge one, its first, middle and last rows alone."""
    shape = checkpoint.info(name).shape
    if not shape or not all(shape):
        yield ()
        return
    n, step = shape[0], max(1, AT_ONCE * shape[0] // prod(shape))
    starts: Iterable[int] = range(0, n, step)
    if prod(shape) > huge:
        starts = sorted({0, (n - step) // 2, n - step})
    for start in starts:
        yield (slice(start, min(start + step, n)),)


def _bytes(x: Tensor) -> bytes:
    data: bytes = x.detach().reshape(-1).contiguous().view(torch.uint8).numpy(force=True).tobytes()
    return data
