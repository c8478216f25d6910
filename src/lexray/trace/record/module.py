"""transformers' own model, filled from a lexray checkpoint: what is traced is what is read.

Whatever the checkpoint is (a folder, GGUF, a LoRA adapter on its base, byte ranges of a server),
its tensors are handed to transformers one by one, when it asks for them, under the names that a
Hugging Face checkpoint has on disk. transformers renames and fuses them as it does its own files'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial, reduce
from threading import Lock

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from lexray.checkpoint.module import ModuleCheckpoint, modules_by_name
from lexray.errors import LexrayError
from lexray.families.gguf.names import GGUFModel
from lexray.families.walk import tensor_names
from lexray.model.cache import Drawer
from lexray.model.embedding import embedding
from lexray.model.weights import Weights
from lexray.trace.record.config import (
    file_beneath,
    module_class,
    module_config,
    running_entries,
)
from lexray.trace.record.quiet import quiet
from lexray.trace.record.rows import Absent, Filed, Joining, Lazy, Shelf, let_go_after, look_up
from lexray.trace.record.unroll import unroll

INSIDE = ("language_model.", "text_model.", "thinker.")
"""Where a multimodal checkpoint keeps its text model, whose own class does without it."""

FINAL_NORM = "lexray_final_norm"
"""The config's word on the final norm: "identity" where the model was trained without it."""

MakeLazy = Callable[[Weights, str, Lock, torch.dtype], Lazy]

MODULE: Drawer[None, nn.Module] = Drawer(most=1)
STORED: Drawer[None, nn.Module] = Drawer(most=1)


def module_of(model: Weights) -> nn.Module:
    """transformers' own model with this checkpoint's weights, made once; a live one as it is.

    Where layers share their weights, each layer is a module of its own, with the same parameters.
    """
    return MODULE.get(model.cache, None, lambda: unroll(model, build_module(model)))


def stored_module(model: Weights) -> nn.Module:
    """The same as a file has it: what layers share once."""
    if not model.architecture.unrolled:
        return module_of(model)
    return STORED.get(model.cache, None, lambda: build_module(model))


def build_module(model: Weights) -> nn.Module:
    """The model's transformers module, in eval mode, without gradients; a live one as it is."""
    if isinstance(model.checkpoint, ModuleCheckpoint):
        return model.checkpoint.module
    placed: nn.Module = _build(model, Lazy).to(model.device)
    return placed


def build_in_files(model: Weights) -> nn.Module:
    """The same on the processor, its large weights in files: it may be larger than the memory."""
    if isinstance(model.checkpoint, ModuleCheckpoint):
        return model.checkpoint.module
    here = model.with_view(model.options)
    here.device = torch.device("cpu")
    with Joining():
        return _build(here, _filed(here, here.checkpoint.names()))


def _build(model: Weights, lazy: MakeLazy) -> nn.Module:
    module = _fill(model, module_config(model), lazy=lazy)
    if model.config.get(FINAL_NORM) == "identity":
        _drop_final_norm(model, module)
    fixed: nn.Module = module.requires_grad_(False)
    return fixed


def _filed(model: Weights, names: Iterable[str]) -> MakeLazy:
    """How tensors are read into files, these among them."""
    return partial(Filed, shelf=Shelf(model, names, model.run_dtype))


def build_first_block(model: Weights) -> nn.Module:
    """The same with one block alone, as `model` describes no more, which looks tokens up in the
    embedding as it is stored; it has no output embedding, and its large weights lie in files. A
    live module as it is."""
    if isinstance(model.checkpoint, ModuleCheckpoint):
        return model.checkpoint.module
    config, a = deepcopy(module_config(model)), model.architecture
    config.num_hidden_layers = 1
    for entry, value in a.alone:
        setattr(config, entry, value)
    names = tensor_names(a.blocks[0]).intersection(model.checkpoint.names())
    with Joining():
        module = _fill(model, config, without=(a.embed, a.unembed), lazy=_filed(model, names))
    let_go_after(module)
    look_up(module.get_input_embeddings(), embedding(model, a.embed), model.run_dtype)
    placed: nn.Module = module.to(model.device)
    return placed.requires_grad_(False)


def _fill(
    model: Weights,
    config: PreTrainedConfig,
    without: Sequence[str] = (),
    lazy: MakeLazy = Lazy,
) -> PreTrainedModel:
    cls = module_class(model, config)
    if isinstance(file_beneath(model.checkpoint), GGUFModel):
        config = _with_biases(cls, config, model)
    return fill(cls, config, model, without, lazy)


def module_names(model: Weights, module: nn.Module) -> dict[str, str]:
    """Each tensor of the checkpoint, and the name of the module's parameter that it ends up in.

    Several may share one (experts, which transformers fuses); what the module has no place for is
    left out.
    """
    names = model.checkpoint.names()
    if isinstance(model.checkpoint, ModuleCheckpoint) or not isinstance(module, PreTrainedModel):
        return {name: name for name in names}
    conversions = get_model_conversion_mapping(module)
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    state, prefix = module.state_dict(), module.base_model_prefix

    def rename(name: str) -> str:
        key, _ = rename_source_key(name, renamings, converters, prefix, state)
        if key not in state and name in state:
            key, _ = rename_source_key(name, [], [], prefix, state)
        return str(key)

    pairs = ((name, rename(inner)) for inner, name in text_names(model).items())
    return {name: key for name, key in pairs if key in state}


def _with_biases(
    cls: type[PreTrainedModel], config: PreTrainedConfig, model: Weights
) -> PreTrainedConfig:
    """GGUF has no word for which maps have biases: the config under which its tensors find room."""
    best, fewest = config, _misfits(cls, config, model)
    for flag, value in config.to_dict().items():
        if fewest and "bias" in flag and isinstance(value, bool):
            other = deepcopy(best)
            setattr(other, flag, not value)
            if (misfits := _misfits(cls, other, model)) < fewest:
                best, fewest = other, misfits
    return best


def _misfits(cls: type[PreTrainedModel], config: PreTrainedConfig, model: Weights) -> int:
    """How many tensors have no parameter, and how many biases no tensor."""
    with torch.device("meta"), quiet():
        module = cls(deepcopy(config))
    placed = module_names(model, module)
    filled = set(placed.values())
    empty = [n for n in module.state_dict() if n.endswith(".bias") and n not in filled]
    return len(model.checkpoint.names()) - len(placed) + len(empty)


def text_names(model: Weights) -> dict[str, str]:
    """The text model's tensors: their names in a model of text alone, and on disk."""
    names, a = model.checkpoint.names(), model.architecture
    inner = [word for word in INSIDE if word in a.embed and a.encoder is None]
    ends = (a.unembed, a.unembed_bias)
    inside = (name for name in names if name in ends or all(word in name for word in inner))
    return {reduce(lambda x, word: x.replace(word, "", 1), inner, name): name for name in inside}


def fill(
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    model: Weights,
    without: Sequence[str] = (),
    lazy: MakeLazy = Lazy,
) -> PreTrainedModel:
    """A module of this class with the checkpoint's tensors; none missing, none made up. Those that
    it is to be `without` take no memory and are no numbers."""
    names, lock, info, dtype = text_names(model), Lock(), model.checkpoint.info, model.run_dtype
    tensors = {
        inner: Absent(info(name).shape, dtype)
        if name in without
        else lazy(model, name, lock, dtype)
        for inner, name in names.items()
    }
    try:
        with quiet():
            module, report = cls.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                output_loading_info=True,
            )
    except LexrayError:
        raise
    except Exception as error:  # each class checks its config and its tensors in its own way
        raise LexrayError(f"{model.name} does not fit {cls.__name__}: {error}") from error
    if missing := sorted(name for name in report["missing_keys"] if BESIDE not in f".{name}"):
        raise LexrayError(
            f"{model.name} cannot be run as {cls.__name__}: it has no tensor for {_some(missing)}; "
            "its config's architectures should name the class it was saved from"
        )
    if left := sorted(_read_by(model) - module_names(model, module).keys()):
        raise LexrayError(
            f"{model.name} cannot be run as {cls.__name__}, which has no place for {_some(left)}"
        )
    if more := _left_over(model, module):
        raise LexrayError(
            f"{model.name} cannot be run as {cls.__name__}, which has no place for {_some(more)}: "
            f"a model of type {model.config.get('model_type')!r} is no {model.family.title} to the "
            "letter, and its passes are not told; its weights are read"
        )
    return module


BESIDE = ".pooler."
"""In names of what reads the last layer and is read by nothing that is recorded: GGUF files and
models that embed texts leave BERT's out."""

BUFFERS = ("inv_freq", "masked_bias", "attn.bias", "attention.bias", "position_ids")
"""How names of tensors end that old files keep, and that are calculated."""


def _left_over(model: Weights, module: PreTrainedModel) -> list[str]:
    """Tensors of the layers that a family by which a model of another type is read leaves out."""
    if model.config.get("model_type") in model.family.model_types:
        return []
    layers = {block.module.rpartition(".")[0] + "." for block in model.architecture.blocks}
    placed = module_names(model, module)
    inside = (n for n in text_names(model).values() if n.startswith(tuple(layers)))
    return sorted(n for n in inside if n not in placed and not n.endswith(BUFFERS))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _read_by(model: Weights) -> set[str]:
    """The tensors of the body that readings use: those that the family's description names."""
    body = replace(model.architecture, unembed="", unembed_bias=None, head=None)
    return tensor_names(body) & set(model.checkpoint.names())


class SkippedNorm(nn.Module):
    """A norm that is not applied; it keeps its parameters, so that the model can be saved."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        for name, parameter in norm.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _drop_final_norm(model: Weights, module: PreTrainedModel) -> None:
    path = final_norm_path(model, module)
    if path is None:
        raise LexrayError(
            f'{model.name} says {FINAL_NORM}: "identity", but has no final norm with a gain'
        )
    module.set_submodule(path, SkippedNorm(module.get_submodule(path)))


def final_norm_path(model: Weights, module: nn.Module) -> str | None:
    """Where the final norm lies in the module; None for a model without one, or without gains."""
    norm = model.architecture.final_norm
    name = None if norm is None else module_names(model, module).get(norm.gain or "")
    return None if name is None else name.rpartition(".")[0]


def block_modules(model: Weights, module: nn.Module) -> list[nn.Module]:
    """The module of each layer, in order."""
    entries = running_entries(model)
    there = model.family.architecture(entries, ModuleCheckpoint(module, values=False).names())
    modules = modules_by_name(module)
    return [modules[block.module] for block in there.blocks[: len(model.architecture.blocks)]]
