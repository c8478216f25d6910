"""A PEFT LoRA adapter on top of any checkpoint: W + scale·B·A, part by part, when read.

The adapter's arithmetic follows PEFT's `merge_and_unload`
(https://github.com/huggingface/peft, `tuners/lora`); what cannot be merged is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo
from lexray.checkpoint.fields import Fields, brief
from lexray.checkpoint.low_rank import LowRank, Shift
from lexray.checkpoint.patterns import matches
from lexray.checkpoint.plain import asset_at, exists, read_json
from lexray.checkpoint.safetensors import SafetensorsFolder
from lexray.checkpoint.torch_bin import TorchBinFolder
from lexray.errors import LexrayError

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)"
    r"(?P<kind>\.weight|\.bias)?"
)
HEAD = "lm_head"
"""Where transformers keeps the output head; tied heads have no tensor of their own."""

CANNOT_MERGE = (
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication"),
    *("monteclora_config", "target_parameters", "trainable_token_indices"),
    *("use_bdlora", "use_qalora"),
)
"""Settings of LoRA with which the model is no longer W + scale·B·A."""

CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations which take something away from the base model's weights when they are loaded."""

DEFAULT_ALPHA = 8
"""PEFT's, where the config does not say."""


class LoraCheckpoint(Checkpoint):
    """A base checkpoint, seen with an adapter folder's changes."""

    def __init__(self, folder: Path, base: Checkpoint) -> None:
        self.name = str(folder)
        self.folder = folder
        self.base = base
        self.adapter = adapter_weights(folder)
        self.bytes_read = self._total()
        settings = adapter_config(folder)
        parts, whole = _sort(self.adapter.names(), str(folder))
        partners = NameMatcher(base.names())
        self._whole = _replacements(self, whole, partners, settings)
        self._added = [name for name in self._whole if name not in base.names()]
        self._names = dict.fromkeys([*base.names(), *self._added])
        self._changes = _changes(self, parts, partners, settings)
        self._stretches: dict[str, Tensor | None] = {}

    def names(self) -> Collection[str]:
        return self._names.keys()

    def marks(self) -> tuple[str, ...]:
        under = self.base.marks()
        return (*under, *self.adapter.marks()) if under else ()

    def info(self, name: str) -> TensorInfo:
        if name not in self._whole:
            return self.base.info(name)
        own = self.adapter.info(self._whole[name])
        return own if name in self._added else TensorInfo(own.shape, self.base.info(name).dtype)

    def peek(self, name: str) -> TensorInfo | None:
        known = name in self._whole or self.base.peek(name) is not None
        return self.info(name) if known else None

    def touched(self) -> set[str]:
        """The tensors that the adapter changes or replaces."""
        return {*self._changes, *self._whole}

    def factors(self, name: str) -> tuple[Tensor, Tensor, float] | None:
        """A (r×columns), B (rows×r) and scale, so that the change is scale·B·A as stored.

        None where the adapter leaves the tensor as it is, replaces it, or stretches it (DoRA).
        """
        change = self._changes.get(name)
        if not isinstance(change, LowRank) or change.magnitude or name in self._whole:
            return None
        left, right = change.factors(self._box(name, ()))
        return right, left, change.scale

    @property
    def config(self) -> dict[str, Any]:
        """The base's; a head that the adapter brings is no longer tied to the embedding."""
        untied = {"tie_word_embeddings": False} if f"{HEAD}.weight" in self._added else {}
        return {**self.base.config, **untied}

    def asset(self, filename: str) -> Path | None:
        """The adapter's own file (a tokenizer with new tokens, say), else the base's."""
        return asset_at(self.folder / filename) or self.base.asset(filename)

    def _total(self) -> int:
        return self.base.bytes_read + self.adapter.bytes_read

    def _read_base(self, name: str, *index: slice) -> Tensor:
        if name in self._whole:
            return self.adapter.read_unchecked(self._whole[name], *index).to(self.info(name).dtype)
        return self.base.read_unchecked(name, *index)

    def _read(self, name: str, box: Box) -> Tensor:
        before = self._total()
        weight = self._read_base(name, *(slice(*bounds) for bounds in box))
        change = self._changes.get(name)
        if change is not None:
            weight = change.apply(weight, box, self._stretch(name, change))
        self.bytes_read += self._total() - before
        return weight

    def _stretch(self, name: str, change: LowRank | Shift) -> Tensor | None:
        if name not in self._stretches:
            read = partial(self._read_base, name)
            self._stretches[name] = change.stretch(read, self.info(name).shape)
        return self._stretches[name]

    def _cost(self, name: str, box: Box) -> int:
        """Besides, the first look at a tensor of DoRA reads all of it, to measure it."""
        index = [slice(*bounds) for bounds in box]
        if name in self._whole:
            cost = self.adapter.cost(self._whole[name], *index)
        else:
            cost = self.base.cost(name, *index)
        change = self._changes.get(name)
        wanted = change.slices(box) if change else ()
        return cost + sum(self.adapter.cost(key, *part) for key, part in wanted)


def adapter_weights(folder: Path) -> Checkpoint:
    """The adapter's own tensors."""
    for filename, opener in zip(WEIGHTS, (SafetensorsFolder, TorchBinFolder), strict=True):
        if exists(folder / filename):
            return opener(folder, [folder / filename])
    raise LexrayError(f"{folder} has {CONFIG}, but no {' or '.join(WEIGHTS)}; download it again")


def adapter_config(folder: Path) -> Fields:
    """`adapter_config.json`, unless it describes what cannot be read as W + scale·B·A."""
    path = folder / CONFIG
    config = Fields(read_json(path), str(path))
    remedy = "if PEFT can merge it (`merge_and_unload()`), save that and open the result"
    kind = config.text("peft_type")
    if kind != "LORA":
        raise LexrayError(f"{path} is an adapter of type {brief(kind)}, not LORA; {remedy}")
    odd = [key for key in CANNOT_MERGE if config.get(key)]
    if odd:
        raise LexrayError(f"{path} uses {', '.join(odd)}, which lexray cannot read; {remedy}")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.startswith(CHANGES_BASE):
        raise LexrayError(
            f"{path} was initialised with {brief(start)}, which changes the base model's weights; "
            "save it with `path_initial_model_for_weight_conversion`; " + remedy
        )
    return config


def _sort(keys: Iterable[str], where: str) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The adapter's keys: by module and part (`lora_A`, …), and those of whole tensors by name."""
    parts: dict[str, dict[str, str]] = {}
    whole = {}
    for key in keys:
        name = key.removeprefix(PREFIX)
        match = PART.fullmatch(name)
        if match:
            part = match["part"] + (".bias" if match["kind"] == ".bias" else "")
            parts.setdefault(match["module"], {})[part] = key
        elif ".lora_" in name:
            raise LexrayError(f"{where} has a tensor that lexray does not know: {key}")
        else:
            whole[name.replace(".base_layer.", ".").replace(".modules_to_save.", ".")] = key
    return parts, whole


class NameMatcher:
    """Finds tensors whose names differ from the base's only in what comes first."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._by_ending: dict[str, list[str]] = {}
        for name in names:
            for ending in _endings(name):
                self._by_ending.setdefault(ending, []).append(name)

    def find(self, name: str) -> str | None:
        """The same name, else the only one with the longest ending in common."""
        if name in self._names:
            return name
        candidates = next((self._by_ending[e] for e in _endings(name) if e in self._by_ending), [])
        return candidates[0] if len(candidates) == 1 else None


def _endings(name: str) -> Iterable[str]:
    """`a.h.0.b.weight` → itself and `h.0.b.weight`: a layer's number keeps its list's name."""
    words = name.split(".")
    first = next((i for i, word in enumerate(words) if word.isdigit()), len(words) - 1)
    return [".".join(words[i:]) for i in range(max(first, 1))]


@dataclass(frozen=True)
class _Layer:
    """One module's share of an adapter: its keys, and what its config says of it."""

    module: str
    A: str
    B: str
    out: int
    inner: int
    scale: float
    embedding: bool
    magnitude: str | None
    bias: str | None


def _layer(adapter: Checkpoint, module: str, keys: dict[str, str], settings: Fields) -> _Layer:
    kind = "lora_embedding_" if "lora_embedding_A" in keys else "lora_"
    A, B = keys.get(f"{kind}A"), keys.get(f"{kind}B")
    if A is None or B is None:
        raise LexrayError(f"{adapter.name} is incomplete: of {module} it has only {[*keys]}")
    magnitude, bias = keys.get("lora_magnitude_vector"), keys.get("lora_B.bias")
    shapes = [adapter.info(key).shape for key in (A, B, magnitude, bias) if key]
    match shapes:
        case [(rank, inner), (out, other), *rest] if rank == other > 0 and {*rest} <= {(out,)}:
            scale = _scale(module, rank, settings, adapter.name)
            return _Layer(module, A, B, out, inner, scale, kind != "lora_", magnitude, bias)
    raise LexrayError(f"{adapter.name}: {A} and {B} are no factors of a matrix: shapes {shapes}")


def _scale(module: str, rank: int, settings: Fields, where: str) -> float:
    """alpha / r, where a pattern may give some modules another alpha."""
    try:
        special = settings.object("alpha_pattern")
        pattern = next((p for p in special if _matches(p, module)), None)
        if pattern is not None:
            alpha = special.number(pattern)
        else:
            alpha = settings.number("lora_alpha") if "lora_alpha" in settings else DEFAULT_ALPHA
        if alpha is None:
            raise LexrayError("it is null")
    except LexrayError as error:
        raise LexrayError(f"{where}/{CONFIG} has no usable lora_alpha: {error}") from error
    return float(alpha) / (sqrt(rank) if settings.flag("use_rslora") else rank)


def _matches(pattern: str, module: str) -> bool:
    """PEFT's rule: a pattern matches the end of a module's name."""
    return matches(rf"(.*\.)?({pattern})", module, whole=True)


def _changes(
    lora: LoraCheckpoint,
    parts: dict[str, dict[str, str]],
    partners: NameMatcher,
    settings: Fields,
) -> dict[str, LowRank | Shift]:
    """What the adapter does to which tensor of the base."""
    layers = [_layer(lora.adapter, module, keys, settings) for module, keys in parts.items()]
    weights = [f"{layer.module}.weight" for layer in layers]
    biases = [f"{layer.module}.bias" for layer in layers if layer.bias is not None]
    matched = {name: partners.find(name) for name in weights + biases}
    _refuse_strangers(matched, lora)
    flips = _flips(
        {str(matched[f"{layer.module}.weight"]): layer for layer in layers}, lora, settings
    )
    changes: dict[str, LowRank | Shift] = {}
    read = lora.adapter.read
    for layer in layers:
        name = str(matched[f"{layer.module}.weight"])
        changes[name] = LowRank(read, layer.A, layer.B, layer.scale, flips[name], layer.magnitude)
        if layer.bias is not None:
            changes[str(matched[f"{layer.module}.bias"])] = Shift(read, layer.bias, layer.scale)
    return changes


def _replacements(
    lora: LoraCheckpoint, whole: dict[str, str], partners: NameMatcher, settings: Fields
) -> dict[str, str]:
    """The key of each tensor that the adapter brings whole; only saved modules may be new."""
    own = {HEAD, *(str(name) for name in settings.listing("modules_to_save"))}
    matched = {
        name: partners.find(name) or (None if own.isdisjoint(name.split(".")) else name)
        for name in whole
    }
    _refuse_strangers(matched, lora)
    return {str(matched[name]): key for name, key in whole.items()}


def _refuse_strangers(matched: dict[str, str | None], lora: LoraCheckpoint) -> None:
    strangers = [name for name, partner in matched.items() if partner is None]
    if not strangers and len(set(matched.values())) < len(matched):
        strangers = list(matched)  # two of them would change the same tensor
    if not strangers:
        return
    shown = ", ".join(strangers[:5]) + (", …" if len(strangers) > 5 else "")
    hint = f"is {lora.base.name} the model that it was trained on?"
    if strangers == [f"{HEAD}.weight"]:
        hint = "the base keeps its head tied to the embedding: merge the adapter with PEFT first"
    raise LexrayError(
        f"{lora.folder} changes {len(strangers)} tensors that the base does not have "
        f"({shown}); {hint}"
    )


def _flips(layers: dict[str, _Layer], lora: LoraCheckpoint, settings: Fields) -> dict[str, bool]:
    """Which matrices are stored in×out. Square ones are like the rest of their stack.

    PEFT's `fan_in_fan_out` comes last: it is one value for all modules, the one met last.
    """
    square, flips, stacks = {}, {}, {}
    for name, layer in layers.items():
        shape = lora.info(name).shape
        stack = re.split(r"\.\d+\.", layer.module)[0]  # `transformer.h` of `transformer.h.0.mlp`
        flipped = shape == (layer.inner, layer.out)
        if not flipped and (layer.embedding or shape != (layer.out, layer.inner)):
            raise LexrayError(
                f"the adapter's {layer.A} and {layer.B} cannot change {name} of shape {shape}; "
                f"is {lora.base.name} the model that it was trained on?"
            )
        if layer.embedding:
            flips[name] = True
        elif layer.out == layer.inner:
            square[name] = stack
        else:
            flips[name] = stacks[stack] = flipped
    default = bool(settings.flag("fan_in_fan_out"))
    return flips | {name: stacks.get(stack, default) for name, stack in square.items()}
