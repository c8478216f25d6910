"""A recorded pass in a file: safetensors, with JSON inside. Nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lexray.checkpoint.fields import Fields
from lexray.checkpoint.plain import parse_json
from lexray.checkpoint.safetensors import SafetensorsFile
from lexray.edits.parse import read_edits
from lexray.errors import LexrayError
from lexray.files import writing
from lexray.model.anatomy import Anatomy
from lexray.model.origin import Origin
from lexray.trace.record.plan import choose_what
from lexray.trace.record.prompt import len_embedding
from lexray.trace.recording import Recording
from lexray.view import RAW, View

ABOUT = "lexray.trace"
"""The tensor whose bytes are the JSON."""
VERSION = 1
SOURCE = "source/"
"""Before the names of what belongs to the source of an encoder–decoder's pass."""


def save_recording(recording: Recording, path: str | Path) -> Path:
    """Writes a pass whole or not at all."""
    target, model = Path(path), recording.model
    origin, source = getattr(model, "origin", None), recording.source
    about: dict[str, Any] = {
        "version": VERSION,
        "model": model.name,
        "revision": model.checkpoint.revision,
        "origin": None if origin is None else asdict(origin),
        "view": asdict(model.options),
        "of_encoder": model.decoder is not None,
        **_describe(recording),
    }
    parts = _name_parts(recording)
    if source is not None:
        about["source"] = _describe(source)
        parts |= _name_parts(source, SOURCE)
    raw = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    with writing(target) as part:
        save_file({ABOUT: raw, **parts}, part)
    return target


def _describe(recording: Recording) -> dict[str, Any]:
    """What one stack's pass was of, and what is kept of it, in the order in which it adds up."""
    texts = [str(edit) for edit in recording.edits]
    _refuse_edits(recording, texts)
    return {
        "sizes": _sizes(recording.model),
        "ids": recording.ids.tolist(),
        "n_prompt": recording.n_prompt,
        "layers": list(recording.layers),
        "positions": list(recording.positions),
        "what": sorted(recording.what),
        "edits": texts,
        "parts": [_name_part(*key) for key in recording.parts],
    }


def _name_part(layer: int | None, name: str) -> str:
    return f"{'model' if layer is None else layer}/{name}"


def _name_parts(recording: Recording, stem: str = "") -> dict[str, Tensor]:
    return {
        f"{stem}{_name_part(*key)}": x.detach().cpu().contiguous().clone()
        for key, x in recording.parts.items()
    }


def _refuse_edits(recording: Recording, texts: list[str]) -> None:
    """Edits are kept as text, and some hold what no text does: a vector, another trace."""
    try:
        same = read_edits(texts) == recording.edits
    except LexrayError:
        same = False
    if texts and not same:
        raise LexrayError(
            f"this trace was changed by {'; '.join(texts)}, which cannot be kept as text; edits "
            "by addresses, numbers and words can"
        )


def read_about(path: str | Path) -> tuple[SafetensorsFile, Fields]:
    """What a file says of itself."""
    file = SafetensorsFile(Path(path))
    entry = file.entries.get(ABOUT)
    if entry is None or entry.dtype != torch.uint8 or len(entry.shape) != 1:
        raise LexrayError(f"{path} holds no trace of lexray's: trace.save(path) writes one")
    data = parse_json(bytes(file.read(ABOUT, ((0, entry.shape[0]),)).numpy()), str(path))
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise LexrayError(f"{path} holds a trace in a form that this lexray does not read")
    return file, Fields(data, str(path))


def read_origin(about: Fields, where: str | Path) -> tuple[Origin, View]:
    """Where the model came from that made a trace, and how it was read."""
    origin = about.object("origin")
    if not origin:
        raise LexrayError(
            f"{where} does not say from where its model can be opened: give it, as in "
            "Trace.load(path, model)"
        )
    try:
        return Origin(**origin), View(**about.object("view"))
    except TypeError as error:
        raise LexrayError(f"{where} is damaged: {error}") from error


def load_recording(
    path: str | Path, file: SafetensorsFile, about: Fields, model: Anatomy
) -> Recording:
    """The pass again, with its model."""
    if about.get("of_encoder") is True and model.decoder is None:
        model = model.encoder
    beside = about.object("source") if about.get("source") is not None else None
    if (beside is None) != (model.architecture.encoder is None):
        raise LexrayError(
            f"{path} is a trace of {'one stack' if beside is None else 'a source and a target'}, "
            f"and {model.name} is not: open the model that made it"
        )
    names = _texts(about, "parts", path)
    if beside is None:
        _refuse_other_parts(file, names, path)
        return _load_stack(path, file, about, model)
    inner = Fields(beside, str(path))
    theirs = [f"{SOURCE}{name}" for name in _texts(inner, "parts", path)]
    _refuse_other_parts(file, [*names, *theirs], path)
    source = _load_stack(path, file, inner, model.encoder, stem=SOURCE)
    return _load_stack(path, file, about, model, source)


def _load_stack(
    path: str | Path,
    file: SafetensorsFile,
    about: Fields,
    model: Anatomy,
    source: Recording | None = None,
    *,
    stem: str = "",
) -> Recording:
    """The pass of one stack: of the whole model, or of either of two."""
    sizes = _sizes(model)
    if about.get("sizes") != sizes:
        raise LexrayError(
            f"{path} is a trace of a model with {about.get('sizes')}, and "
            f"{model.name} has {sizes}: open the model that made it"
        )
    ids, layers, positions = (
        _numbers(about, name, path) for name in ("ids", "layers", "positions")
    )
    n, rows = len(ids), len_embedding(model)
    sound = (
        ids
        and all(0 <= i < rows for i in ids)
        and all(0 <= i < model.n_layers for i in layers)
        and all(0 <= i < n for i in positions)
    )
    n_prompt = about.get("n_prompt")
    if not sound or not isinstance(n_prompt, int) or not 0 < n_prompt <= n:
        raise LexrayError(f"{path} is damaged: its tokens, layers or positions are not the model's")
    lengths = {len(positions), n} if source is None else {len(positions), n, len(source)}
    names = _texts(about, "parts", path)
    return Recording(
        model=model,
        weights=model.with_view(RAW),
        ids=torch.tensor(ids),
        n_prompt=n_prompt,
        layers=tuple(layers),
        positions=tuple(positions),
        what=choose_what(_texts(about, "what", path)),
        parts=dict(_parts(file, names, path, lengths, stem)),
        edits=read_edits(_texts(about, "edits", path)),
        source=source,
    )


def _sizes(model: Anatomy) -> dict[str, int]:
    a = model.architecture
    names = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "d_vocab")
    several = {} if a.streams is None else {"streams": a.streams.count}
    own = {name: int(getattr(a, name)) for name in names}
    return {"n_layers": model.n_layers, **own, **several}


def _numbers(about: Fields, name: str, path: str | Path) -> list[int]:
    numbers = about.get(name)
    if not isinstance(numbers, list) or not all(type(i) is int for i in numbers):
        raise LexrayError(f"{path} is damaged: its {name} are no list of numbers")
    return numbers


def _texts(about: Fields, name: str, path: str | Path) -> list[str]:
    texts = about.get(name)
    if not isinstance(texts, list) or not all(isinstance(x, str) for x in texts):
        raise LexrayError(f"{path} is damaged: its {name} are no list of texts")
    return texts


def _refuse_other_parts(file: SafetensorsFile, names: list[str], path: str | Path) -> None:
    if {*names, ABOUT} != file.entries.keys():
        raise LexrayError(f"{path} is damaged: it does not hold the parts that it names")


def _parts(
    file: SafetensorsFile, names: list[str], path: str | Path, lengths: set[int], stem: str
) -> Iterator[tuple[tuple[int | None, str], Tensor]]:
    """The tensors by layer and name; each has a row for every kept position, or every token."""
    for key in names:
        entry = file.entries[f"{stem}{key}"]
        layer, _, name = key.partition("/")
        whole: tuple[tuple[int, int], ...] = tuple((0, size) for size in entry.shape)
        if not name or not (layer == "model" or layer.isdecimal()):
            raise LexrayError(f"{path} is damaged: {key[:100]!r} is no part of a pass")
        if not lengths & set(entry.shape[:2]):
            raise LexrayError(f"{path} is damaged: {key[:100]} has the shape {entry.shape}")
        place = None if layer == "model" else int(layer)
        yield (place, name), file.read(f"{stem}{key}", whole)
