"""Models that are the same seen from outside and different inside: rotated, shuffled, renamed."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.model.model import Model
from lexray.vocabulary.sources import JsonSource
from lexray.vocabulary.vocabulary import Vocabulary
from tests.families.zoo import GPT2, LLAMA, Variant, make

LAYERS = 5


def named(tokens: list[str]) -> Vocabulary:
    """A vocabulary of whole words."""
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, tokens[0]))
    data = json.dumps(json.loads(tokenizer.to_str())).encode()
    return Vocabulary(JsonSource("words", lambda: data, None))


def words(n: int) -> list[str]:
    return [f"word{i}" for i in range(n)]


def opened(module: PreTrainedModel, tokens: list[str] | None = None) -> Model:
    return Model(ModuleCheckpoint(module), vocabulary=named(tokens or words(37))).view("raw")


def distinct(family: str) -> PreTrainedModel:
    """A model of five layers, each of which lives mostly in directions of its own."""
    sizes = {
        "gpt2": GPT2 | {"n_layer": LAYERS, "n_inner": 20},
        "llama": LLAMA | {"num_hidden_layers": LAYERS},
    }[family]
    module = make(Variant(family, family, sizes))
    generator = torch.Generator().manual_seed(1)
    state = module.state_dict()
    for layer in range(LAYERS):
        basis = torch.randn(24, 3, generator=generator)
        narrow = basis @ basis.T / 24 + 0.1 * torch.eye(24)
        for name, axis in residual_axes(family, layer).items():
            state[name].copy_(along(state[name], axis, narrow))
    return module


def residual_axes(family: str, layer: int) -> dict[str, int]:
    """The weights of a layer, and which of their axes is the residual stream."""
    if family == "gpt2":
        stem = f"transformer.h.{layer}."
        names = {"attn.c_attn": 0, "attn.c_proj": 1, "mlp.c_fc": 0, "mlp.c_proj": 1}
    else:
        stem = f"model.layers.{layer}."
        names = {f"self_attn.{name}_proj": 1 for name in "qkv"}
        names |= {"mlp.up_proj": 1, "mlp.gate_proj": 1, "self_attn.o_proj": 0, "mlp.down_proj": 0}
    return {f"{stem}{name}.weight": axis for name, axis in names.items()}


def along(W: Tensor, axis: int, M: Tensor) -> Tensor:
    """W with each vector along an axis multiplied by M."""
    return M.T @ W if axis == 0 else W @ M


@dataclass(frozen=True)
class Twin:
    """A copy of a model: layer i is its layer `layers[i]`, neuron n its neuron `neurons[n]`."""

    module: PreTrainedModel
    layers: list[int]
    neurons: list[int]


def twin(module: PreTrainedModel, family: str, seed: int = 2) -> Twin:
    """The same function of tokens, raw: layers and neurons shuffled, the residual stream turned."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(24, 24, generator=generator, dtype=torch.float64))
    layers = torch.randperm(LAYERS, generator=generator).tolist()
    neurons = torch.randperm(20, generator=generator).tolist()
    copied = copy.deepcopy(module)
    state, old = copied.state_dict(), module.state_dict()
    order = torch.tensor(neurons).argsort()
    for i, j in enumerate(layers):
        theirs = residual_axes(family, j)
        for (name, axis), new in zip(residual_axes(family, i).items(), theirs, strict=True):
            W = along(old[name].double(), axis, Q)
            if ".mlp." in name:
                W = W.index_select(1 - axis, order)
            state[new].copy_(W)
    embeddings = {"gpt2": ["transformer.wte"], "llama": ["model.embed_tokens", "lm_head"]}[family]
    for name in embeddings:
        state[f"{name}.weight"].copy_(old[f"{name}.weight"].double() @ Q)
    return Twin(copied, layers, neurons)
