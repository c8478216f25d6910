"""GGUF files under the names and in the layout of Hugging Face checkpoints.

A family declares beside its own names what llama.cpp calls them and what its converter
(https://github.com/ggml-org/llama.cpp, `convert_hf_to_gguf.py`) does to them; `GGUFModel` undoes it
while reading, so that everything after it sees one naming only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint import Box, Checkpoint, TensorInfo
from lexray.checkpoint.fields import brief
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.gguf.config import Config, Keys, common_config, share

__all__ = ["Config", "GGUFModel", "GGUFSource", "Keys", "Naming", "declare", "hf_named", "share"]

Order = Callable[[Config], list[int]]


@dataclass(frozen=True)
class GGUFSource:
    """A GGUF tensor and what the converter did to it."""

    stem: str
    rows: Order | None = None
    """Where each row of the Hugging Face tensor lies in the GGUF tensor."""
    added: float = 0.0
    """What was added to every element (Gemma's norms are stored as 1 + w)."""
    transposed: bool = False
    stacked: bool = False
    """One of several tensors on a new first axis; `{i}` in its own name is the place there."""
    one_row: bool = False
    """A matrix of one row, which some files hold as a vector."""


Names = Mapping[str, str | GGUFSource]


@dataclass(frozen=True)
class Naming:
    """How llama.cpp writes a family: names by stem, `{n}` for the layer, and its config keys."""

    model_type: str
    names: Names
    config: Callable[[Keys, Config], Config] = lambda m, c: {}
    """What the family adds to the common config; None stands for the family's own default."""


ARCHITECTURES: dict[str, Callable[[Keys], Naming]] = {}


def declare(architecture: str, naming: Naming | Callable[[Keys], Naming]) -> None:
    """Says how files with this `general.architecture` are to be read."""
    ARCHITECTURES[architecture] = naming if callable(naming) else lambda _: naming


def hf_named(checkpoint: Checkpoint) -> Checkpoint:
    """A GGUF checkpoint under Hugging Face names; any other as it is."""
    return GGUFModel(checkpoint) if isinstance(checkpoint, GGUFCheckpoint) else checkpoint


@dataclass(frozen=True)
class FilePiece:
    """Where a Hugging Face tensor lies in the file."""

    source: str
    stored: GGUFSource
    place: int = 0
    """Its index in the stack."""


class GGUFModel(Checkpoint):
    """A GGUF file that looks like the Hugging Face checkpoint it was made from."""

    def __init__(self, file: GGUFCheckpoint) -> None:
        self.file = file
        self.name = file.name
        keys = Keys(file)
        naming = find_naming(keys)
        refuse_scales(file)
        config = common_config(keys, naming.model_type)
        config |= naming.config(keys, config)
        self._config = {key: value for key, value in config.items() if value is not None}
        n_layers = config["num_hidden_layers"]
        self._pieces = {
            name: piece
            for ours, stored in naming.names.items()
            for name, piece in pieces(file, ours, stored, n_layers)
        }
        refuse_unread(file, {piece.source for piece in self._pieces.values()})
        self._orders: dict[Order, Tensor] = {}

    @property
    def config(self) -> Config:
        return self._config

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.file.metadata

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        return self.file.bytes_read

    def marks(self) -> tuple[str, ...]:
        return self.file.marks()

    def names(self) -> Collection[str]:
        return self._pieces.keys()

    def info(self, name: str) -> TensorInfo:
        if name not in self._pieces:
            raise self.missing(name)
        piece = self._pieces[name]
        stored, info = piece.stored, self.file.info(piece.source)
        shape = info.shape[1:] if stored.stacked else info.shape
        if stored.one_row and len(shape) == 1:
            shape = (1, *shape)
        shape = shape[::-1] if stored.transposed else shape
        return TensorInfo(shape, info.dtype, stored=info.stored)

    def _read(self, name: str, box: Box) -> Tensor:
        piece = self._pieces[name]
        index, order = self._plan(piece, box)
        tensor = self.file.read_unchecked(piece.source, *index)
        if order is not None:
            tensor = tensor[order]
        if piece.stored.added:
            tensor = tensor - piece.stored.added
        if piece.stored.transposed and tensor.ndim == 2:
            tensor = tensor.T.contiguous()
        return tensor.reshape([stop - start for start, stop in box])

    def _cost(self, name: str, box: Box) -> int:
        piece = self._pieces[name]
        return self.file.cost(piece.source, *self._plan(piece, box)[0])

    def _plan(self, piece: FilePiece, box: Box) -> tuple[list[slice], Tensor | None]:
        """The slices to read from the file, and the order of their rows if it is another."""
        stored, order = piece.stored, None
        index = [slice(*ends) for ends in (box[::-1] if stored.transposed else box)]
        if stored.rows is not None and index[0].start < index[0].stop:
            order = self._order(stored.rows)[index[0]]
            low, high = order.min(), order.max()
            index[0], order = slice(int(low), int(high) + 1), order - low
        if stored.stacked:
            index.insert(0, slice(piece.place, piece.place + 1))
        elif stored.one_row and len(self.file.info(piece.source).shape) == 1:
            del index[0]
        return index, order

    def _order(self, rows: Order) -> Tensor:
        if rows not in self._orders:
            self._orders[rows] = torch.tensor(rows(self._config))
        return self._orders[rows]


def find_naming(keys: Keys) -> Naming:
    file = keys.file
    if file.architecture not in ARCHITECTURES:
        raise LexrayError(
            f"{file.name} is a GGUF file of the architecture {brief(file.architecture)}, which "
            f"lexray does not read from GGUF; it reads {', '.join(sorted(ARCHITECTURES))}. "
            "Try the model's safetensors"
        )
    return ARCHITECTURES[file.architecture](keys)


def refuse_scales(file: GGUFCheckpoint) -> None:
    scale = next((name for name in file.names() if name.endswith((".scale", "_scale"))), None)
    if scale is not None:
        raise LexrayError(
            f"{file.name} keeps scales of its weights in tensors of their own ({scale}), as NVFP4 "
            "does, which lexray does not read; take another quantisation of the model"
        )


def refuse_unread(file: GGUFCheckpoint, known: set[str]) -> None:
    """A block's tensor that nothing reads would be left out of the model in silence."""
    unread = [
        name
        for name in file.names()
        if name.startswith("blk.") and name not in known and ".attn_rot_embd." not in name
    ]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        raise LexrayError(
            f"{file.name} has the tensor {unread[0]}{more}, which lexray does not know in GGUF "
            f"files of the architecture {file.architecture!r}; try the model's safetensors"
        )


def pieces(
    file: GGUFCheckpoint, ours: str, stored: str | GGUFSource, n_layers: int
) -> Iterator[tuple[str, FilePiece]]:
    """Every tensor of the file that a pair of names stands for: (Hugging Face name, piece)."""
    stored = stored if isinstance(stored, GGUFSource) else GGUFSource(stored)
    for n in range(n_layers if "{n}" in ours else 1):
        for suffix in (".weight", ".bias"):
            for piece in places(file, stored, n, suffix):
                yield ours.format(n=n, i=piece.place) + suffix, piece


def places(file: GGUFCheckpoint, stored: GGUFSource, n: int, suffix: str) -> Iterator[FilePiece]:
    """One piece for a tensor, several for a stack or for a row of numbered tensors."""
    for i in count():
        source = stored.stem.format(n=n, i=i) + suffix
        if source not in file.names() or (stored.stacked and i >= file.info(source).shape[0]):
            return
        yield FilePiece(source, stored, i)
        if not stored.stacked and "{i}" not in stored.stem:
            return


def turn_rows(heads: str) -> Order:
    """llama.cpp turns adjacent rows where Hugging Face turns halves: row s·½ + i lies at 2i + s."""

    def rows(c: Config) -> list[int]:
        size = c["head_dim"]
        order = [2 * i + s for s in range(2) for i in range(size // 2)]
        return [h * size + row for h in range(c[heads]) for row in order]

    return rows


def regroup(c: Config) -> list[int]:
    """All queries, keys, values, where Hugging Face has each group's side by side."""
    n, n_kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    group = n // n_kv
    return [
        head * size + i
        for g in range(n_kv)
        for head in (*range(g * group, (g + 1) * group), n + g, n + n_kv + g)
        for i in range(size)
    ]


LAYER = "model.layers.{n}."
EMBEDDINGS: Names = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
ATTENTION: Names = {
    f"{LAYER}self_attn.q_proj": "blk.{n}.attn_q",
    f"{LAYER}self_attn.k_proj": "blk.{n}.attn_k",
    f"{LAYER}self_attn.v_proj": "blk.{n}.attn_v",
    f"{LAYER}self_attn.o_proj": "blk.{n}.attn_output",
}
TURNED: Names = {
    f"{LAYER}self_attn.q_proj": GGUFSource("blk.{n}.attn_q", rows=turn_rows("num_attention_heads")),
    f"{LAYER}self_attn.k_proj": GGUFSource("blk.{n}.attn_k", rows=turn_rows("num_key_value_heads")),
}
MLP: Names = {
    f"{LAYER}mlp.gate_proj": "blk.{n}.ffn_gate",
    f"{LAYER}mlp.up_proj": "blk.{n}.ffn_up",
    f"{LAYER}mlp.down_proj": "blk.{n}.ffn_down",
}
NORMS: Names = {
    f"{LAYER}input_layernorm": "blk.{n}.attn_norm",
    f"{LAYER}post_attention_layernorm": "blk.{n}.ffn_norm",
}
LLAMA: Names = {**EMBEDDINGS, **ATTENTION, **MLP, **NORMS}
QK_NORMS: Names = {
    f"{LAYER}self_attn.q_norm": "blk.{n}.attn_q_norm",
    f"{LAYER}self_attn.k_norm": "blk.{n}.attn_k_norm",
}
