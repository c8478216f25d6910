"""The files of sparse autoencoders and transcoders: SAELens folders, and plain safetensors.

| layout | weights | features |
|---|---|---|
| SAELens | `cfg.json`, `sae_weights.safetensors` | `W_enc` (d × n), `W_dec` (n × d), `b_enc`, `b_dec`, `threshold` |
| sparsify | `cfg.json`, `sae.safetensors` | `encoder.weight` (n × d), `W_dec` (n × d), `encoder.bias`, `b_dec` |
| torch modules | any `.safetensors` | `encoder.weight` (n × d), `decoder.weight` (d × n), `encoder.bias`, … |

Nothing is read but headers until a feature is asked for, and then its slice.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint.fields import brief
from lexray.checkpoint.plain import exists, read_json
from lexray.checkpoint.safetensors import SafetensorsFile
from lexray.errors import LexrayError

CONFIGS = ("cfg.json", "config.json")
WEIGHTS = ("sae_weights.safetensors", "sae.safetensors", "transcoder.safetensors")
ASIDE = ("sparsity.safetensors",)
"""What SAELens writes beside the weights."""
ENCODERS = {"W_enc": True, "encoder.weight": False, "w_enc": True}
"""Names of encoders, and whether they are stored d × n; so shapes of d × d can be told."""
DECODERS = {"W_dec": False, "decoder.weight": True, "w_dec": False}
VECTORS = {
    "b_enc": ("b_enc", "encoder.bias"),
    "b_dec": ("b_dec", "decoder.bias", "bias", "pre_bias"),
    "threshold": ("threshold", "activation_function.threshold", "log_threshold"),
    "b_gate": ("b_gate", "gate_bias"),
    "b_mag": ("b_mag", "mag_bias"),
    "r_mag": ("r_mag",),
}
LAYER = re.compile(r"(?:^|[._/-])(?:blocks|layers|layer|h|l)[._]?(\d{1,4})(?=$|[._/-])", re.I)


@dataclass(frozen=True)
class FeatureMatrix:
    """One vector for each feature, stored as rows or as columns."""

    file: SafetensorsFile
    name: str
    turned: bool
    """Whether features are columns."""

    @property
    def n(self) -> int:
        return self.file.entries[self.name].shape[int(self.turned)]

    @property
    def width(self) -> int:
        return self.file.entries[self.name].shape[int(not self.turned)]

    def rows(self, start: int, stop: int) -> Float[Tensor, "some width"]:
        """Some features' vectors; only these are read."""
        some, whole = (start, stop), (0, self.width)
        rows = self.file.read(self.name, (whole, some) if self.turned else (some, whole))
        return rows.T if self.turned else rows


@dataclass(frozen=True)
class StoredDictionary:
    """What the files of a dictionary hold."""

    path: Path
    config: Mapping[str, Any]
    encoder: FeatureMatrix | None
    decoder: FeatureMatrix
    vectors: Mapping[str, Tensor]
    """Biases and thresholds, by SAELens' names."""

    @property
    def n(self) -> int:
        return self.decoder.n

    def setting(self, *names: str) -> Any:
        """An entry of the config, or of its `metadata`, where newer versions keep some."""
        inner = self.config.get("metadata")
        for part in (self.config, inner if isinstance(inner, dict) else {}):
            for name in names:
                if part.get(name) is not None:
                    return part[name]
        return None

    @property
    def hook(self) -> str:
        """Where it was trained, in the names of its library; empty if nothing says so."""
        said = self.setting("hook_name", "hook_point", "hookpoint")
        return said if isinstance(said, str) else self._named_after()

    @property
    def hook_out(self) -> str:
        """Where a transcoder writes; empty for an autoencoder."""
        said = self.setting("hook_name_out", "hook_point_out")
        return said if isinstance(said, str) else ""

    def _named_after(self) -> str:
        """The file's or folder's name, if it names a layer, as sparsify's folders do."""
        file = self.decoder.file.path
        names = (file.stem, file.parent.name)
        return next((name for name in names if LAYER.search(name)), "")

    @property
    def layer(self) -> int | None:
        """The layer it belongs to, if anything says so."""
        said = self.setting("hook_layer", "hook_point_layer", "layer")
        if type(said) is int:
            return said
        match = LAYER.search(self.hook)
        return int(match[1]) if match else None


def open_files(path: str | Path, width: int) -> StoredDictionary:
    """A dictionary for vectors of `width` numbers: a SAELens folder, or a safetensors file."""
    path = Path(path).expanduser()
    if not exists(path):
        raise LexrayError(f"there is no {path}; a dictionary is a SAELens folder or a .safetensors")
    weights = _weights_in(path) if path.is_dir() else path
    if weights.suffix != ".safetensors":
        raise LexrayError(f"{weights} is no dictionary: its weights have to be .safetensors")
    folder = weights.parent
    config = next((read_json(folder / name) for name in CONFIGS if exists(folder / name)), {})
    file = SafetensorsFile(weights)
    encoder = _matrix(file, ENCODERS, width)
    decoder = _matrix(file, DECODERS, width)
    if decoder is None:
        raise LexrayError(
            f"{weights} is no dictionary: it has none of {', '.join(DECODERS)} among "
            f"{', '.join(map(brief, list(file.entries)[:12]))}"
        )
    return StoredDictionary(path, config, encoder, decoder, _vectors(file, encoder, decoder))


def _weights_in(folder: Path) -> Path:
    for name in WEIGHTS:
        if exists(folder / name):
            return folder / name
    files = [file for file in sorted(folder.glob("*.safetensors")) if file.name not in ASIDE]
    if len(files) == 1:
        return files[0]
    several = files or [file.parent for file in sorted(folder.glob("*/*.safetensors"))]
    if several:
        names = ", ".join(dict.fromkeys(str(part.relative_to(folder)) for part in several[:20]))
        raise LexrayError(f"{folder} holds several dictionaries; open one of them: {names}")
    raise LexrayError(f"{folder} is no dictionary: it has no .safetensors file")


def _find_named(file: SafetensorsFile, names: Iterable[str]) -> str | None:
    """The tensor with one of these names, perhaps after a prefix such as `sae.`."""
    for name in names:
        for entry in file.entries:
            if entry == name or entry.endswith(f".{name}"):
                return entry
    return None


def _matrix(file: SafetensorsFile, names: Mapping[str, bool], width: int) -> FeatureMatrix | None:
    entry = _find_named(file, names)
    if entry is None:
        return None
    shape, dtype = file.entries[entry].shape, file.entries[entry].dtype
    if len(shape) != 2 or width not in shape or not dtype.is_floating_point:
        raise LexrayError(
            f"{file.path}: {entry} has the shape {shape}; for a model of width {width} one of its "
            "two sides has to be that. It is of another model, or reads head outputs (hook_z)"
        )
    usual = next(turned for name, turned in names.items() if entry.endswith(name))
    turned = usual if shape[0] == shape[1] else shape[0] == width
    return FeatureMatrix(file, entry, turned)


def _vectors(
    file: SafetensorsFile, encoder: FeatureMatrix | None, decoder: FeatureMatrix
) -> dict[str, Tensor]:
    if encoder is not None and encoder.n != decoder.n:
        raise LexrayError(f"{file.path}: {encoder.n} encoder and {decoder.n} decoder vectors")
    vectors: dict[str, Tensor] = {}
    for name, known in VECTORS.items():
        entry = _find_named(file, known)
        if entry is None:
            continue
        shape = file.entries[entry].shape
        size = decoder.width if name == "b_dec" else decoder.n
        if shape not in ((size,), (1,), ()):
            raise LexrayError(f"{file.path}: {entry} has the shape {shape}, not ({size},)")
        x = file.read(entry, tuple((0, n) for n in shape)).float()
        vectors[name] = (x.exp() if entry.endswith("log_threshold") else x).expand(size)
    return vectors


def blocks(matrix: FeatureMatrix, at_once: int = 4096) -> Iterable[Float[Tensor, "_ width"]]:
    """All vectors, some at a time, in float32."""
    for start in range(0, matrix.n, at_once):
        yield matrix.rows(start, min(start + at_once, matrix.n)).to(torch.float32)
