"""What a checkpoint's config says before any family reads it."""

from __future__ import annotations

from typing import Any

from lexray.checkpoint.quant.find import SETTINGS, known_methods, method_name
from lexray.errors import LexrayError


def refuse_quantised(config: dict[str, Any], name: str) -> None:
    """Weights that are stored with scales of their own are not what they seem; those that lexray
    reads come without these words in their config."""
    for key in SETTINGS:
        quantised = config.get(key)
        if isinstance(quantised, dict):
            method = (method_name(quantised) or "an unknown method")[:60]
            raise LexrayError(
                f"{name} is quantised by {method}, which lexray does not read; it reads "
                f"{', '.join(known_methods())} and GGUF files: take one of these, or the original "
                "weights"
            )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a multimodal config, or the config as it is."""
    inner = config.get("text_config")
    if not isinstance(inner, dict) or "hidden_size" not in inner:
        return config
    key = "tie_word_embeddings"  # it is the whole model that ties its embeddings, or does not
    return config | inner | ({key: config[key]} if config.get(key) is not None else {})
