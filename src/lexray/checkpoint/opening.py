"""From what a user names (a folder, a file, a Hub id) to a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.fields import text
from lexray.checkpoint.gguf.file import PART, GGUFCheckpoint
from lexray.checkpoint.lora import CONFIG as ADAPTER_CONFIG
from lexray.checkpoint.lora import WEIGHTS as ADAPTER_WEIGHTS
from lexray.checkpoint.lora import LoraCheckpoint, adapter_config
from lexray.checkpoint.plain import exists, is_plain
from lexray.checkpoint.quant.checkpoint import open_quantised
from lexray.checkpoint.safetensors import SafetensorsFolder, weight_map
from lexray.checkpoint.torch_bin import TorchBinFolder
from lexray.errors import LexrayError

Location = str | Path
Adapt = Callable[[Checkpoint], Checkpoint]
Opener = Callable[[Path, list[Path], dict[str, str] | None], Checkpoint]

FORMATS: dict[str, Opener] = {
    "model.safetensors": SafetensorsFolder,
    "pytorch_model.bin": TorchBinFolder,
}
"""What a folder's weights are called, the better format first; shards add `.index.json`."""

SUFFIXES: dict[str, Opener] = {
    ".safetensors": SafetensorsFolder,
    ".bin": TorchBinFolder,
    ".pt": TorchBinFolder,
    ".pth": TorchBinFolder,
}
FOREIGN = {
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
    ".ckpt": "a training framework",
    ".npz": "numpy",
    ".ot": "Rust's tch",
    ".pth": "Meta's original release",
}
INDEX = ".index.json"
COMPANION = re.compile(r"(^|[-_.])(mmproj|imatrix)(?=[-_.])", re.IGNORECASE)
"""In names of GGUF files that belong to a model and are none: what turns pictures into vectors,
and how much each weight mattered when the model was quantised."""
SHARD = re.compile(r"-\d+-of-\d+(?=\.\w+$)")
KNOWN = (
    "lexray opens model.safetensors or pytorch_model.bin (in shards with their index), "
    "a .gguf file, or a LoRA adapter"
)


def open_checkpoint(
    source: Location,
    *,
    base: Location | Checkpoint | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    remote: bool = False,
    adapt: Adapt = lambda checkpoint: checkpoint,
) -> Checkpoint:
    """A checkpoint from a local folder or file, else from the Hub; what exists locally wins.

    `remote` reads byte ranges from the Hub instead of downloading. `base` is the model under a LoRA
    adapter, if not the one which the adapter names. `adapt` is applied to the model's own
    checkpoint, under an adapter too: it gives GGUF files the names that adapters use.

    `open_checkpoint("models/gpt2")`, `open_checkpoint("org/name", revision="main", remote=True)`,
    `open_checkpoint("my-adapter", base="models/gpt2")`.
    """
    path = _locate(source, revision, token, remote and base is None)
    if path is not None and _is_adapter(path, base is not None):
        folder = path if path.is_dir() else path.parent
        under = base if isinstance(base, Checkpoint) else _base(folder, base, token, remote, adapt)
        return _label(_with_adapter(folder, under), source, path)
    if base is not None:
        raise LexrayError(
            f"{source} is no adapter: it has no {ADAPTER_CONFIG}, so it needs no base"
        )
    return adapt(_model(source, path, revision, token))


def _locate(
    source: Location, revision: str | None, token: str | bool | None, remote: bool
) -> Path | None:
    """Where the files are, once they are downloaded; None if they are to stay remote."""
    if source == "":
        raise LexrayError(f"the model's name is empty; the folder you are in is called .; {KNOWN}")
    path = Path(source).expanduser()
    if exists(path):
        return path
    from lexray.checkpoint.hub.grammar import looks_like_hub_id
    from lexray.checkpoint.hub.repository import fetch_folder

    if isinstance(source, Path) or not looks_like_hub_id(source):
        raise LexrayError(
            f"{source} does not exist, and is no Hub id (such as org/name) either; {KNOWN}"
        )
    return None if remote else fetch_folder(source, revision=revision, token=token)


def _with_adapter(folder: Path, base: Checkpoint) -> Checkpoint:
    adapted = LoraCheckpoint(folder, base)
    adapted.notes = (*base.notes, f"{folder} is an adapter; the model under it is {base.name}")
    return adapted


def _model(
    source: Location, path: Path | None, revision: str | None, token: str | bool | None
) -> Checkpoint:
    """The model in a folder or file, or remote where there is no path; quantised ones under plain
    names."""
    if path is None:
        from lexray.checkpoint.hub.remote import RemoteCheckpoint

        return open_quantised(RemoteCheckpoint.open(str(source), revision, token))
    checkpoint = _open_folder(path) if path.is_dir() else _open_file(path)
    return open_quantised(_label(checkpoint, source, path))


def _label(checkpoint: Checkpoint, source: Location, path: Path) -> Checkpoint:
    checkpoint.name = str(source)
    if not exists(Path(source).expanduser()):
        from lexray.checkpoint.hub.repository import commit_of

        checkpoint.revision = commit_of(path)
    return checkpoint


def _is_adapter(path: Path, wanted: bool) -> bool:
    """Whether a path is an adapter; a folder that also has a model's weights is one if `wanted`."""
    if not path.is_dir():
        return path.name in (ADAPTER_CONFIG, *ADAPTER_WEIGHTS)
    merged = any(exists(path / name) or exists(path / f"{name}{INDEX}") for name in FORMATS)
    return exists(path / ADAPTER_CONFIG) and (wanted or not merged)


def _base(
    folder: Path, base: Location | None, token: str | bool | None, remote: bool, adapt: Adapt
) -> Checkpoint:
    """The model under an adapter: the given one, else the one that the adapter names."""
    source, revision = (base, None) if base is not None else _find_base(folder)
    try:
        path = _locate(source, revision, token, remote)
        if path is not None and _is_adapter(path, False):
            raise LexrayError("it is an adapter itself")
        return adapt(_model(source, path, revision, token))
    except LexrayError as error:
        raise LexrayError(
            f"{folder} is an adapter of {source}, which cannot be opened: {error}; "
            f"{_remedy(folder)}"
        ) from error


def _remedy(folder: Path) -> str:
    """How a user says which model is under an adapter."""
    return (
        f"open the base model that you mean with this adapter on top: BASE --adapter {folder} on "
        f"the command line, adapter={str(folder)!r} in Python"
    )


def _find_base(folder: Path) -> tuple[Location, str | None]:
    """The base that an adapter names, if a stranger may: on the Hub, or inside its own folder."""
    settings = adapter_config(folder)
    name = text(settings.get("base_model_name_or_path"))
    if not name:
        raise LexrayError(f"{folder / ADAPTER_CONFIG} names no base model; {_remedy(folder)}")
    own = folder / name
    if exists(own) and own.resolve().is_relative_to(folder.resolve()):
        return own, None
    if exists(Path(name).expanduser()) or exists(own):
        raise LexrayError(
            f"{folder} names the base model {name!r}, a path on this machine outside its own "
            f"folder, which an adapter may not choose; {_remedy(folder)}"
        )
    return name, settings.text("revision")


def _open_folder(folder: Path) -> Checkpoint:
    for name, opener in FORMATS.items():
        if exists(folder / name):
            return opener(folder, [folder / name], None)
        if exists(folder / f"{name}{INDEX}"):
            return _open_shards(folder / f"{name}{INDEX}", opener)
    names = _list_files(folder)
    ggufs = [folder / name for name in names if name.endswith(".gguf")]
    if any(not COMPANION.search(path.name) for path in ggufs):
        return _open_gguf(folder, ggufs)
    loose = [folder / name for name in names if name.endswith(".safetensors")]
    if len(loose) == 1 and not ggufs:
        return SafetensorsFolder(folder, loose)
    if ggufs and not loose:
        shown = ", ".join(path.name for path in ggufs[:3])
        raise LexrayError(
            f"{folder} has GGUF files that belong to a model and are none ({shown}); download the "
            "file of the model too"
        )
    raise _no_weights(folder, names, [path.name for path in ggufs + loose])


def _open_gguf(folder: Path, ggufs: list[Path]) -> Checkpoint:
    """The one model among a folder's GGUF files, in one part or several; its companions are named
    and left."""
    aside = [path.name for path in ggufs if COMPANION.search(path.name)]
    models: dict[str, list[str]] = {}
    for path in ggufs:
        if path.name not in aside:
            models.setdefault(PART.sub(r"\g<stem>", path.name), []).append(path.name)
    if len(models) > 1:
        each = [f"{found[0]}{_in_parts(found)}" for found in models.values()]
        shown = ", ".join(each[:10]) + (", …" if len(each) > 10 else "")
        raise LexrayError(
            f"{folder} has {len(models)} GGUF models ({shown}); give the path of one of them, of "
            "one in parts the path of any part"
        )
    (found,) = models.values()
    checkpoint = GGUFCheckpoint(folder / found[0])
    if aside:
        checkpoint.notes += (f"{', '.join(aside[:3])} in its folder is no part of the model",)
    return checkpoint


def _in_parts(files: list[str]) -> str:
    return f" in {len(files)} parts" if len(files) > 1 else ""


def _list_files(folder: Path) -> list[str]:
    try:
        return sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    except OSError as error:
        raise LexrayError(f"{folder} cannot be read: {error.strerror}") from error


def _no_weights(folder: Path, names: list[str], several: list[str]) -> LexrayError:
    if several:
        shown = ", ".join(several[:10])
        return LexrayError(
            f"{folder} has several files of weights and no index ({shown}); give the path of one "
            f"of them, or download {next(iter(FORMATS))}{INDEX} too"
        )
    foreign = {FOREIGN[Path(name).suffix]: name for name in names if Path(name).suffix in FOREIGN}
    if foreign:
        shown = ", ".join(f"{name} ({whose})" for whose, name in foreign.items())
        return LexrayError(
            f"{folder} has only weights in formats of others: {shown}; convert them to safetensors"
        )
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return LexrayError(f"{folder} has no weights, only: {shown or 'nothing'}. {KNOWN}")


def _open_shards(index: Path, opener: Opener) -> Checkpoint:
    where = weight_map(index)
    folder = index.parent
    shards = sorted(set(where.values()))
    missing = [shard for shard in shards if not is_plain(folder / shard)]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise LexrayError(
            f"{folder} lacks {len(missing)} of the {len(shards)} shards that {index.name} names: "
            f"{shown}; download them too"
        )
    return opener(folder, [folder / shard for shard in shards], where)


def _open_file(path: Path) -> Checkpoint:
    """One file; with a shard, or an index itself, come all the shards."""
    if path.suffix == ".gguf":
        return GGUFCheckpoint(path)
    whole = SHARD.sub("", path.name.removesuffix(INDEX))
    opener = SUFFIXES.get(Path(whole).suffix)
    if opener is None:
        raise LexrayError(f"{path} is no file of weights that lexray knows; {KNOWN}")
    index = path.with_name(whole + INDEX)
    if path.name != whole and exists(index):
        return _open_shards(index, opener)
    return opener(path.parent, [path], None)
