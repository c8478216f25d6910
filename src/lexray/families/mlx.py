"""Checkpoints that mlx-lm wrote, under the names of Hugging Face's.

https://github.com/ml-explore/mlx-lm stacks experts (`switch_mlp`), takes fused matrices apart and
turns the kernels of convolutions while it converts a model (`sanitize` in `mlx_lm/models`). What it
did is undone while reading; quantised tensors are de-quantised beneath.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint import Box, Checkpoint, TensorInfo
from lexray.errors import LexrayError
from lexray.families.gguf.pieces import (
    FilePiece,
    GGUFJoined,
    GGUFSide,
    GGUFSource,
    JoinedPiece,
    Piece,
    is_empty,
)

EXPERT = re.compile(r"(?P<mlp>.*)\.switch_mlp\.(?P<part>\w+)\.weight")
FUSED = re.compile(r"(?P<stem>.*\.experts)\.(?P<part>gate_proj|down_proj)\.(?P<end>weight|bias)")
QUERIES = ".embed_q.weight"
KERNELS = (".conv1d.weight", ".conv.conv.weight")
NORM = re.compile(r".*(\.(input|post_attention)_layernorm|\.[qk]_norm|model\.norm)\.weight")
W123 = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
UNGATED = {"fc1": "up_proj", "fc2": "down_proj"}
IN_FIRST = ("gpt_oss", "llama4", "llama4_text")
"""Whose experts Hugging Face stores as (in, out), gates and keys in one."""
PLUS_ONE = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Where mlx-lm keeps 1 + w for a norm that is stored as w."""

MOST = 1 << 14
"""Experts or heads in a layer: many times what models have."""

Pieces = Iterator[tuple[str, Piece]]


def mlx_named(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint that mlx-lm rewrote, under Hugging Face's names; any other as it is."""
    pieces = dict(find_changed(checkpoint))
    return MLXModel(checkpoint, pieces) if pieces else checkpoint


def find_changed(checkpoint: Checkpoint) -> Pieces:
    """What mlx-lm stacked, took apart or turned: (Hugging Face name, piece)."""
    kind = _model_type(checkpoint)
    turned = False
    for name in checkpoint.names():
        if ".switch_mlp." in name and (found := EXPERT.fullmatch(name)):
            yield from unstack(checkpoint, name, found["mlp"], found["part"], kind)
        elif kind in IN_FIRST and (found := FUSED.fullmatch(name)):
            yield from rejoin(name, found["stem"], found["part"], found["end"], kind)
        elif name.endswith(QUERIES):
            stem = name.removesuffix(QUERIES)
            yield f"{stem}.kv_b_proj.weight", heads_of(checkpoint, stem)
        elif name.endswith(KERNELS) and _is_turned(checkpoint, name):
            turned = True
            yield name, FilePiece(name, GGUFSource(name, transposed=True))
    if turned and kind.removesuffix("_text") in PLUS_ONE:
        for name in checkpoint.names():
            if NORM.fullmatch(name):
                yield name, FilePiece(name, GGUFSource(name, added=1.0))


def unstack(checkpoint: Checkpoint, name: str, mlp: str, part: str, kind: str) -> Pieces:
    """Experts one by one; Granite has gates and keys of all in one tensor."""
    sparse = mlp.endswith("block_sparse_moe")
    if sparse and kind.startswith("granite"):
        if part == "down_proj":
            yield f"{mlp}.output_linear.weight", FilePiece(name, GGUFSource(name))
        elif part == "gate_proj":
            both = tuple(GGUFSource(name.replace("gate_proj", x)) for x in ("gate_proj", "up_proj"))
            yield f"{mlp}.input_linear.weight", _join(GGUFJoined(both, 1))
        return
    lettered = sparse or kind.startswith("lfm2")
    ours = W123.get(part, part) if lettered else UNGATED.get(part, part)
    for e in range(_count(checkpoint, name)):
        yield f"{mlp}.experts.{e}.{ours}.weight", FilePiece(name, GGUFSource(name, stacked=True), e)


def rejoin(name: str, stem: str, part: str, ending: str, kind: str) -> Pieces:
    """gpt-oss' and Llama 4's gates and keys in one tensor, stored as (in, out)."""
    suffix = "_bias" if ending == "bias" else ""
    across = ending == "weight"
    if part == "down_proj":
        yield f"{stem}.down_proj{suffix}", FilePiece(name, GGUFSource(name, transposed=across))
        return
    names = name, name.replace("gate_proj", "up_proj")
    both = tuple(GGUFSource(each, transposed=across) for each in names)
    joined = GGUFJoined(both, axis=2 if across else 1, alternate=kind == "gpt_oss")
    yield f"{stem}.gate_up_proj{suffix}", _join(joined)


def heads_of(checkpoint: Checkpoint, stem: str) -> Piece:
    """DeepSeek's keys and values of each head, the keys' turned."""
    keys = GGUFSource(f"{stem}.embed_q.weight", stacked=True, transposed=True)
    values = GGUFSource(f"{stem}.unembed_out.weight", stacked=True)
    places = range(_count(checkpoint, keys.stem))
    parts = (FilePiece(source.stem, source, h) for h in places for source in (keys, values))
    return JoinedPiece(tuple(parts), GGUFJoined((keys, values)))


def _join(joined: GGUFJoined) -> JoinedPiece:
    return JoinedPiece(tuple(FilePiece(part.stem, part) for part in joined.parts), joined)


def _is_turned(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a kernel's axis of length one, in the middle elsewhere, comes last."""
    shape = checkpoint.info(name).shape
    return len(shape) == 3 and shape[-1] == 1 and shape[1] > 1


def _count(checkpoint: Checkpoint, name: str) -> int:
    """How many experts or heads a stack has."""
    shape = checkpoint.info(name).shape
    if len(shape) != 3 or not 1 <= shape[0] <= MOST:
        raise LexrayError(
            f"{checkpoint.name}: {name} should be a stack of matrices as mlx-lm writes them; its "
            f"shape is {shape}"
        )
    return shape[0]


def _model_type(checkpoint: Checkpoint) -> str:
    """Of the text model; empty where no config says it."""
    try:
        config = checkpoint.config
    except LexrayError:
        return ""
    inner = config.get("text_config")
    return str((inner if isinstance(inner, dict) else config).get("model_type"))


class MLXModel(Checkpoint):
    """A checkpoint of mlx-lm's that looks like the one it was made from."""

    def __init__(self, base: Checkpoint, pieces: dict[str, Piece]) -> None:
        self.base = base
        self.name, self.revision, self.remote = base.name, base.revision, base.remote
        self.notes = base.notes
        self._pieces, self._side = pieces, GGUFSide(base, {})
        used = {name for piece in pieces.values() for name in piece.sources}
        self._names = dict.fromkeys(name for name in base.names() if name not in used)
        self._names |= dict.fromkeys(pieces)

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        return self.base.bytes_read

    @property
    def config(self) -> dict[str, Any]:
        return self.base.config

    def asset(self, filename: str) -> Path | None:
        return self.base.asset(filename)

    def marks(self) -> tuple[str, ...]:
        return self.base.marks()

    def metadata_of(self, name: str) -> dict[str, str]:
        piece = self._pieces.get(name)
        return self.base.metadata_of(name if piece is None else piece.sources[0])

    def names(self) -> Collection[str]:
        return self._names.keys()

    def info(self, name: str) -> TensorInfo:
        if name not in self._names:
            raise self.missing(name)
        if name not in self._pieces:
            return self.base.info(name)
        piece = self._pieces[name]
        stored = self.base.info(piece.sources[0])
        dtype = stored.dtype if isinstance(piece, FilePiece) else torch.float32
        return TensorInfo(piece.shape(self._side), dtype, stored=stored.stored)

    def _read(self, name: str, box: Box) -> Tensor:
        if name not in self._pieces:
            return self.base.read_unchecked(name, *(slice(*ends) for ends in box))
        return self._pieces[name].read(self._side, box)

    def _cost(self, name: str, box: Box) -> int:
        if name not in self._pieces:
            return self.base.cost(name, *(slice(*ends) for ends in box))
        return 0 if is_empty(box) else self._pieces[name].cost(self._side, box)
