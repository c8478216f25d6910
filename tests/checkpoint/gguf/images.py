"""GGUF files as they are written: by the `gguf` package, and byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from lexray.checkpoint.gguf.file import GGUFCheckpoint


def packed(kind: GGMLQuantizationType, *shape: int) -> np.ndarray[Any, Any]:
    """Stored weights: quantised where `gguf` can, else any bytes (with scales that are finite)."""
    rng = np.random.default_rng(kind)
    try:
        stored: np.ndarray[Any, Any] = quants.quantize(
            rng.standard_normal(shape).astype(np.float32), kind
        )
        return stored
    except NotImplementedError:
        block, size = GGML_QUANT_SIZES[kind]
        width = shape[-1] // block * size
        return rng.integers(0, 64, (*shape[:-1], width), dtype=np.uint8)


def write(
    path: Path,
    tensors: dict[str, tuple[np.ndarray[Any, Any], GGMLQuantizationType]],
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama", **options)
    for key, value in (metadata or {}).items():
        sub = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value), sub)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def tensor(name: str, *dims: int, kind: int = 0, offset: int = 0, axes: int | None = None) -> bytes:
    return (
        text(name) + u32(len(dims) if axes is None else axes) + u64(*dims) + u32(kind) + u64(offset)
    )


def image(
    *tensors: bytes,
    keys: tuple[bytes, ...] = (),
    data: int = 64,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    version: int = 3,
) -> bytes:
    """A file's bytes, made by hand so that anything in it can be wrong."""
    counts = u64(
        len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    )
    header = b"GGUF" + u32(version) + counts + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + (bytes(range(256)) * (data // 256 + 1))[:data]


def opened(path: Path, content: bytes) -> GGUFCheckpoint:
    path.write_bytes(content)
    return GGUFCheckpoint(path)
