"""How a model comes into being: from files, from a live module, or again from where it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.open import open_source
from lexray.model.origin import Origin, Reopen, read_dtype
from lexray.view import View
from lexray.vocabulary.vocabulary import Vocabulary

Same = TypeVar("Same", bound="Opened")


class Opened(Anatomy):
    """A model that knows where it came from."""

    origin: Origin | None = None
    """What opens it again, if it came from files."""

    @classmethod
    def from_pretrained(
        cls: type[Same],
        source: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        remote: bool = False,
        adapter: str | Path | None = None,
        family: str | None = None,
        config: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
    ) -> Same:
        """Opens a model without loading it.

        `source` is a folder, a `.safetensors`, `.bin` or `.gguf` file, a PEFT LoRA adapter's
        folder, a Hub id, or the name of a model that comes along (`demo`, `smollm2`).

        - `remote=True` downloads nothing: needed byte ranges are read over HTTP.
        - `adapter=…` puts a LoRA adapter on top of `source`.
        - `family=…` reads the model by the rules of another family.
        - `config={…}` overrides entries of `config.json`.
        """
        checkpoint = open_source(
            source,
            revision=revision,
            token=token,
            remote=remote,
            adapter=adapter,
            family=family,
        )
        own: dict[str, Any] = {
            "family": family,
            "config": config,
            "device": device,
            "dtype": read_dtype(dtype),
        }
        model = cls(checkpoint, **own)
        model.origin = Origin.of(source, adapter, revision=revision, remote=remote, **own)
        return model

    @classmethod
    def reopen(cls: type[Same], origin: Origin, view: View | None = None) -> Same:
        """The model again, from where it came."""
        kept = {field.name: getattr(origin, field.name) for field in fields(origin)}
        model = cls.from_pretrained(kept.pop("source"), **kept)
        return model if view is None else model.with_view(view)

    def __reduce__(self) -> Reopen:
        """A pickled model is where it came from, and how it is read: it reopens its files."""
        if self.origin is not None:
            return type(self).reopen, (self.origin, self.options)
        if isinstance(self.checkpoint, ModuleCheckpoint):
            return type(self).from_parts, (self.checkpoint.module, self.vocabulary, self.options)
        raise LexrayError(
            f"{self.name} cannot be pickled: it was not opened from files. Pickle the model that "
            "was edited, and edit it again; or save it to a folder and open that"
        )

    @classmethod
    def from_module(
        cls: type[Same],
        module: nn.Module,
        tokenizer: Any = None,
        *,
        family: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Same:
        """A live transformers model; its weights are not copied."""
        checkpoint = ModuleCheckpoint(module)
        vocabulary = None if tokenizer is None else Vocabulary.from_transformers(tokenizer)
        devices = (p.device for p in module.parameters() if not p.is_meta)
        device = next(devices, torch.device("cpu"))
        return cls(checkpoint, vocabulary=vocabulary, family=family, config=config, device=device)

    @classmethod
    def from_parts(cls: type[Same], module: nn.Module, vocabulary: Vocabulary, view: View) -> Same:
        """A live model that was pickled with its module."""
        return cls(ModuleCheckpoint(module), vocabulary=vocabulary).with_view(view)
