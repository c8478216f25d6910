"""The small files beside a model's weights: the one list, for folders, the Hub and vocabularies.

It lies here, not in `hub/`, since opening a local folder imports nothing of the network.
"""

from __future__ import annotations

CONFIG = "config.json"
QUANTISED = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""What says how older checkpoints are quantised whose config does not, and by which method."""
TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""What a tokenizer can be read from; the first one that is there is taken."""
BESIDE = (
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""What may belong to it."""
TOKENIZER_FILES = (*TOKENIZERS, *BESIDE)
