"""Writing a model as the folder that ships: half precision, complete, free of machine paths."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from demo_models.recipe import CONTEXT, END_OF_TEXT, TITLES


def export(model: PreTrainedModel, tokenizer: Tokenizer, name: str, folder: Path) -> None:
    """Write config, weights, tokenizer and a short README into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.activation_function = "gelu_new"
    model.config.use_cache = True
    if model.can_generate():
        model.generation_config.use_cache = True
    model.to(torch.float16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "README.md").write_text(
        f"# {name}\n\n{TITLES[name]}\n\n"
        "Data, training, figures, samples and limits: see [the model card](../README.md).\n"
    )
