"""What a checkpoint's config says before any family reads it."""

from __future__ import annotations

from typing import Any

from lexray.checkpoint.quant.find import SETTINGS, known_methods, method_name
from lexray.errors import LexrayError
from lexray.families.kinds import KINDS


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


LEFT_OUT: dict[str, dict[str, int]] = {
    "llama": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen2": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
}
"""What transformers leaves out of a config inside another one where it is as usual (LLaVA 1.5). The
files' own shapes are held against it, as against everything that a config says."""
OUTSIDE = frozenset({"vocab_size", "pad_token_id", "tie_word_embeddings", "model_type"})
"""Of what a language model's config says, what the whole model's may say for it."""


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a multimodal config, or the config as it is. Sizes that the
    whole config says of another sense are not the language model's."""
    config = _think(config)
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return config
    kind = inner.get("model_type")
    usual = LEFT_OUT.get(kind, {}) if isinstance(kind, str) else {}
    if "hidden_size" not in inner and not usual:
        return config
    key = "tie_word_embeddings"  # it is the whole model that ties its embeddings, or does not
    outside = {k: v for k, v in config.items() if k not in KINDS or k in OUTSIDE}
    return usual | outside | inner | ({key: config[key]} if config.get(key) is not None else {})


def _think(config: dict[str, Any]) -> dict[str, Any]:
    """The part of Qwen's Omni models that reads and writes text, of which one more part speaks."""
    inner = config.get("thinker_config")
    return config | inner if isinstance(inner, dict) else config
