"""GGUF files under the names and in the layout of Hugging Face checkpoints.

A family declares beside its own names what llama.cpp calls them and what its converter
(https://github.com/ggml-org/llama.cpp, `convert_hf_to_gguf.py`) does to them; `GGUFModel` undoes it
while reading, so that everything after it sees one naming only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint import Box, Checkpoint, TensorInfo
from lexray.checkpoint.fields import brief
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.gguf.config import Config, Keys, common_config, share
from lexray.families.gguf.pieces import (
    GGUFJoined,
    GGUFSide,
    GGUFSource,
    GGUFValue,
    Order,
    Stored,
    find_pieces,
    is_empty,
)
from lexray.families.registry import find_family

__all__ = [
    "Config",
    "GGUFJoined",
    "GGUFModel",
    "GGUFSource",
    "GGUFValue",
    "Keys",
    "Naming",
    "Stored",
    "declare",
    "hf_named",
    "name_body",
    "share",
]

Names = Mapping[str, Stored]


@dataclass(frozen=True)
class Naming:
    """How llama.cpp writes a family: names by stem, `{n}` for the layer, and its config keys."""

    model_type: str
    names: Names
    config: Callable[[Keys, Config], Config] = lambda m, c: {}
    """What the family adds to the common config; None stands for the family's own default."""
    without: tuple[str, ...] = ()
    """Entries that are null, whatever the family's default is."""
    common: Callable[[Keys, str], Config] = common_config
    """What metadata say that all architectures have, in the words of the family's config."""
    layers: Callable[[Config], int] = lambda c: int(c["num_hidden_layers"])
    """How many layers names may count."""


ARCHITECTURES: dict[str, Callable[[Keys], Naming]] = {}


def declare(architecture: str, naming: Naming | Callable[[Keys], Naming]) -> None:
    """Says how files with this `general.architecture` are to be read."""
    ARCHITECTURES[architecture] = naming if callable(naming) else lambda _: naming


def hf_named(checkpoint: Checkpoint, family: str | None = None) -> Checkpoint:
    """A GGUF checkpoint under Hugging Face names; any other as it is.

    `family`: whose names a file has whose architecture nobody knows.
    """
    return GGUFModel(checkpoint, family) if isinstance(checkpoint, GGUFCheckpoint) else checkpoint


def own_config(keys: Keys, naming: Naming, common: Config) -> Config:
    """What an architecture's own metadata add to the config; a file without the tensors that it
    goes by (a mixture without a router) is no such model."""
    try:
        return naming.config(keys, common)
    except KeyError as error:
        raise LexrayError(
            f"{keys.file.name} is called {keys.file.architecture}, but nothing in it tells its "
            f"{error.args[0]}; convert the model again, or try its safetensors"
        ) from error


class GGUFModel(Checkpoint):
    """A GGUF file that looks like the Hugging Face checkpoint it was made from."""

    def __init__(self, file: GGUFCheckpoint, family: str | None = None) -> None:
        self.file = file
        self.name, self.revision, self.notes = file.name, file.revision, file.notes
        keys = Keys(file)
        naming = find_naming(keys, family)
        config = naming.common(keys, naming.model_type)
        config |= own_config(keys, naming, config)
        self._config = {key: value for key, value in config.items() if value is not None}
        self._config |= dict.fromkeys(naming.without)
        n_layers = naming.layers(self._config)
        self._side = GGUFSide(file, self._config)
        self._pieces = {
            name: piece
            for ours, stored in naming.names.items()
            for name, piece in find_pieces(file, ours, stored, n_layers)
        }
        known = {name for piece in self._pieces.values() for name in piece.sources}
        refuse_unread(file, known, range(n_layers, keys.size("block_count")))

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
        stored = self.file.info(piece.sources[0]).stored if piece.sources else None
        return TensorInfo(piece.shape(self._side), torch.float32, stored=stored)

    def _read(self, name: str, box: Box) -> Tensor:
        return self._pieces[name].read(self._side, box)

    def _cost(self, name: str, box: Box) -> int:
        return 0 if is_empty(box) else self._pieces[name].cost(self._side, box)


def find_naming(keys: Keys, family: str | None) -> Naming:
    """What is declared for the file's architecture, else for the `family` that a user names."""
    file = keys.file
    if (what := COMPANIONS.get(keys.kind)) is not None:
        raise LexrayError(f"{file.name} is {what}; open the GGUF file of the model itself")
    if file.architecture in ARCHITECTURES:
        return ARCHITECTURES[file.architecture](keys)
    if family is not None:
        kinds = find_family({}, family).model_types
        near = [each for each in compare_names(keys) if each.naming.model_type in kinds]
        if near:
            return max(near, key=lambda each: each.share).naming
    asked = f", nor as one of the family {brief(family)}" if family is not None else ""
    raise LexrayError(
        f"{file.name} is a GGUF file of the architecture {brief(file.architecture)}, which lexray "
        f"does not read from GGUF{asked}; it reads {', '.join(sorted(ARCHITECTURES))}"
        f"{explain_names(keys)}"
    )


COMPANIONS = {
    "clip": "what turns pictures into vectors for a language model (mmproj), not the model",
    "mmproj": "what turns pictures or sounds into vectors for a language model, not the model",
    "imatrix": "a list of how much each weight mattered (imatrix), not a model",
    "adapter": "a LoRA adapter in llama.cpp's format, which lexray does not read (PEFT's it does)",
}
"""GGUF files that are no models, by what they call themselves."""


@dataclass(frozen=True)
class NameLikeness:
    """How the names of an architecture fit a file of another."""

    architecture: str
    naming: Naming
    common: int
    unread: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.common / max(1, self.common + len(self.unread))


def compare_names(keys: Keys) -> list[NameLikeness]:
    """Every architecture whose names the file has some of."""
    names = [name for name in keys.file.names() if name.startswith("blk.")]
    count, likenesses = len({name.split(".")[1] for name in names}), []
    for architecture, make in ARCHITECTURES.items():
        try:
            naming = make(keys)
        except LexrayError:
            continue
        found = (find_pieces(keys.file, *pair, count) for pair in naming.names.items())
        known = {name for pieces in found for _, piece in pieces for name in piece.sources}
        unread = tuple(name for name in names if name not in known)
        common = len(names) - len(unread)
        likenesses.append(NameLikeness(architecture, naming, common, unread))
    return likenesses


NEAR = 0.5
"""Of a file's tensors, those that an architecture must know to be called alike."""


def explain_names(keys: Keys) -> str:
    """Which known architecture a file resembles, and what to try; its safetensors if none does."""
    near = [each for each in compare_names(keys) if each.share >= NEAR]
    if not near:
        return ". Try the model's safetensors"
    best = max(near, key=lambda each: (each.share, each.architecture == "llama"))
    kind, total = best.naming.model_type, best.common + len(best.unread)
    left = f" and leave {', '.join(best.unread[:3])} …" if best.unread else ""
    return (
        f". It resembles {best.architecture!r}, whose names are those of {best.common} of its "
        f"{total} tensors in layers{left}. Try family={kind!r} (--family {kind}) and hold a few "
        "readings against what you know of the model before you rely on them"
    )


PASSED_OVER = (".attn_rot_embd.", ".input_scale", ".cross_attn_rel_b.")
"""In names of what says nothing of the weights: frequencies that follow from the metadata, what
llama.cpp rounds activations by where it multiplies in four bits, and biases by distance that the
first T5 has between its stacks and does not use."""


BLOCKS = ("blk.", "enc.blk.", "dec.blk.")
"""How the names of what lies in layers begin."""


def refuse_unread(file: GGUFCheckpoint, known: set[str], beyond: range) -> None:
    """A block's tensor that nothing reads would be left out of the model in silence; those of the
    layers `beyond` the model, which guess further tokens, are."""
    passed = (*PASSED_OVER, *(f"blk.{n}." for n in beyond))
    unread = [
        name
        for name in file.names()
        if name.startswith(BLOCKS) and name not in known and not any(p in name for p in passed)
    ]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        raise LexrayError(
            f"{file.name} has the tensor {unread[0]}{more}, which lexray does not know in GGUF "
            f"files of the architecture {file.architecture!r}; try the model's safetensors"
        )


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
AFTER: Names = {
    f"{LAYER}post_attention_layernorm": "blk.{n}.post_attention_norm",
    f"{LAYER}post_feedforward_layernorm": "blk.{n}.post_ffw_norm",
}
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


def name_body(names: Names) -> Names:
    """The same as a model without a head has them."""
    inner = {ours: theirs for ours, theirs in names.items() if ours.startswith("model.")}
    return {ours.removeprefix("model."): theirs for ours, theirs in inner.items()}
