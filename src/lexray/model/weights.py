"""A model's weights: a checkpoint, what its tensors mean, how they are read, and what is kept.

Everything that reads parameters needs only this; it lies under the embedding space and under all
parts of a model. `lexray.model.model.Model` is the face on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.checkpoint import Checkpoint
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError, Unknown
from lexray.families import Architecture, Family, Linear, Norm, find_family
from lexray.families.complete import check_complete
from lexray.families.linear import ALL
from lexray.families.registry import UNSUPPORTED
from lexray.families.resemble import explain
from lexray.families.shapes import Shapes, block_shapes, check
from lexray.finite import all_finite, require_finite
from lexray.model import fold
from lexray.model.cache import Cache, Drawer
from lexray.model.config import refuse_quantised, text_config
from lexray.model.open import read_vocabulary
from lexray.result.check import Check
from lexray.result.links import Links
from lexray.result.table import Result
from lexray.view import STANDARD, Head, Reading, View, ViewName
from lexray.vocabulary.vocabulary import Vocabulary

Same = TypeVar("Same", bound="Weights")

VOCABULARY: Drawer[None, Vocabulary] = Drawer(most=1)
SHAPES: Drawer[int, Shapes] = Drawer(most=1024)
ENCODER: Drawer[None, Cache] = Drawer(most=1)
"""What an encoder's own readings keep."""


class Weights:
    """Named, placed, folded as the view wants them; read when they are asked for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        vocabulary: Vocabulary | None = None,
        family: str | None = None,
        config: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = text_config(checkpoint.config) | dict(config or {})
        if not isinstance(checkpoint, ModuleCheckpoint):  # quantised tensors in memory say so
            refuse_quantised(self.config, checkpoint.name)
        self.family: Family = self._find_family(family)
        self.architecture: Architecture = self.family.architecture(self.config, checkpoint.names())
        if not isinstance(checkpoint, ModuleCheckpoint):
            check_complete(self.architecture, checkpoint)
        self.device = torch.device(device)
        self.dtype = dtype
        self.options = STANDARD
        self.decoder: Weights | None = None
        """Of an encoder: the decoder that it belongs to, which is the model."""
        self.cache = Cache()
        """What is made once and shared by all views: the embedding, its moments, …"""
        if vocabulary is not None:
            VOCABULARY.put(self.cache, None, vocabulary)

    def _find_family(self, name: str | None) -> Family:
        """The family by name or by the config; where there is none, what comes nearest."""
        try:
            return find_family(self.config, name)
        except LexrayError as error:
            if name or str(self.config.get("model_type")) in UNSUPPORTED:  # it says what is near
                raise
            hint = explain(self.config, self.checkpoint.names())
            first, known, types = str(error).partition("; known: ")  # a long list, and so the last
            raise LexrayError(f"{first}{hint}{known}{types}") from error

    def view(
        self: Same,
        name: ViewName | None = None,
        *,
        folded: bool | None = None,
        inverse: Literal["transpose", "pinv"] | None = None,
        centred: bool | None = None,
        calibrated: bool | None = None,
        standardised: bool | None = None,
        reading: Reading | None = None,
        trained: bool | None = None,
        offset: int | None = None,
        head: Head | None = None,
        **unknown: Unknown,
    ) -> Same:
        """The same model, read differently; see `View`.

        >>> model.view("raw")                    # the papers' way
        >>> model.view("raw", folded=True)       # the same with norms folded in
        >>> model.view(reading="output")         # standard, but readers through E: what they expect

        What is not given stays as it is.
        """
        if unknown:
            raise LexrayError(
                f"no reading option {', '.join(sorted(unknown))}; there are "
                f"{', '.join(View.options())}"
            )
        given = {
            "folded": folded,
            "inverse": inverse,
            "centred": centred,
            "calibrated": calibrated,
            "standardised": standardised,
            "reading": reading,
            "trained": trained,
            "offset": offset,
            "head": head,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        now = self.options
        base = now if name is None else replace(View.named(name), offset=now.offset)
        if head == "jacobian" and self.architecture.head is None:
            raise LexrayError(
                f"{self.name} has no prediction head that is not linear, and so no Jacobian of one "
                "to read through; that is for encoders such as BERT"
            )
        return self.with_view(replace(base, **changes))  # type: ignore[arg-type]

    def with_view(self: Same, view: View) -> Same:
        """The same model under this view."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.options = view
        return other

    # ------------------------------------------------------------------ two stacks

    @property
    def encoder(self: Same) -> Same:
        """The encoder of an encoder–decoder as a model of its own: its layers are `enc.L0` …"""
        if self.architecture.encoder is None:
            raise LexrayError(f"{self.name} has no encoder beside it: it is one stack of layers")
        other = self.with_view(self.options)
        other.architecture = self.architecture.encoder
        other.cache = ENCODER.get(self.cache, None, Cache)
        other.decoder = self
        return other

    @property
    def stacks(self: Same) -> list[Same]:
        """The encoder and the decoder of an encoder–decoder; else these weights alone."""
        return [self] if self.architecture.encoder is None else [self.encoder, self]

    def stack_at(self: Same, address: Address) -> Same:
        """The stack that an address is in: the encoder for `enc.L3`, if there is one beside."""
        return self.encoder if address.encoder and self.decoder is None else self

    def at(self, layer: int, **parts: Any) -> Address:
        """The address of a part of this stack."""
        return Address(layer, encoder=self.decoder is not None, **parts)

    def lone_states(
        self, *, entering: bool, finish: Callable[[Tensor], Tensor] | None = None
    ) -> Float[Tensor, "d_vocab d_model"]:
        """Each token alone, as it enters the first block or leaves it; `Model` can run that."""
        raise LexrayError(f"{self.name} is open as weights alone, and nothing can be run")

    def typical_inputs(self) -> Float[Tensor, "n d_model"]:
        """What reaches the prediction head in a text; `Model` can run one."""
        raise LexrayError(f"{self.name} is open as weights alone, and nothing can be run")

    def check_part(self, address: str, prompts: str | Sequence[str], **options: Any) -> Check:
        """Whether a reading predicts effects; `Model` can run that."""
        raise LexrayError(f"{self.name} is open as weights alone, and nothing can be run")

    def evidence(self, address: str, text: str | None = None, n: int = 10) -> Any:
        """What a parameter does on running text; `Model` can run one."""
        raise LexrayError(f"{self.name} is open as weights alone, and no text can be run")

    def find_links(self, address: Address, n: int, via: str | None, *, reading: bool) -> Links:
        """What reads a part, or (`reading`) what writes for it; `Model` can look for that."""
        raise LexrayError(f"{self.name} is open as weights alone; open it as a Model")

    def describe_part(self, address: Address, *, measure: bool) -> Result:
        """All there is to say of a head or neuron; `Model` can say it."""
        raise LexrayError(f"{self.name} is open as weights alone; open it as a Model")

    # ------------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        """As it was opened, or as its folder or file is called."""
        return self.checkpoint.name

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, from the checkpoint's tokenizer, which is read when first asked for."""
        if self.decoder is not None:
            return self.decoder.vocabulary
        return VOCABULARY.get(
            self.cache, None, lambda: read_vocabulary(self.checkpoint, self._n_embedded())
        )

    def _n_embedded(self) -> int:
        """How many tokens the embedding has, which the config's `vocab_size` may not know."""
        embed, checkpoint = self.architecture.embed, self.checkpoint
        known = embed in checkpoint.names()
        return checkpoint.info(embed).shape[0] if known else self.architecture.d_vocab

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return self.architecture.d_model

    @property
    def n_layers(self) -> int:
        """How many blocks there are."""
        return len(self.architecture.blocks)

    @property
    def n_heads(self) -> int:
        """Query heads of a layer."""
        return self.architecture.n_heads

    @property
    def n_kv_heads(self) -> int:
        """Heads of keys and values, of which several queries may share one."""
        return self.architecture.n_kv_heads

    @property
    def d_head(self) -> int:
        """The width of queries and keys."""
        return self.architecture.d_head

    @property
    def d_mlp(self) -> int:
        """Neurons of a feed-forward, or of an expert."""
        return self.architecture.d_mlp

    @property
    def d_vocab(self) -> int:
        """Tokens of the output embedding."""
        return self.architecture.d_vocab

    # ------------------------------------------------------------------ reading slices

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor on the model's device, in its dtype if one was asked for.

        Floats of 8 bits, which torch cannot calculate with, become float32.
        """
        small = tensor.is_floating_point() and tensor.dtype.itemsize == 1
        dtype = self.dtype or (torch.float32 if small else None)
        return tensor.to(device=self.device, dtype=dtype)

    def reader(
        self, layer: int, linear: Linear, norm: Norm | None, outputs: slice = ALL
    ) -> Float[Tensor, "d_model n"]:
        """A reader W[:, outputs] of what `norm` gives."""
        self._check(layer, linear)
        W = linear.read(self.checkpoint, outputs=outputs)
        return self.place(fold.reader(W, norm, self.checkpoint) if self.options.folded else W)

    def writer(
        self, layer: int, linear: Linear, norm: Norm | None, inputs: slice = ALL
    ) -> Float[Tensor, "n d_model"]:
        """A writer W[inputs] into what `norm` normalises."""
        self._check(layer, linear)
        W = linear.read(self.checkpoint, inputs=inputs)
        return self.place(fold.writer(W, norm, self.checkpoint) if self.options.folded else W)

    def read_bias(
        self, linear: Linear, norm: Norm | None, outputs: slice = ALL
    ) -> Float[Tensor, "n"] | None:
        """The reader's bias, with what the norm's own bias adds to it."""
        bias = linear.read_bias(self.checkpoint, outputs)
        if self.options.folded and norm is not None and norm.bias is not None:
            W = linear.read(self.checkpoint, outputs=outputs)
            bias = fold.reader_bias(bias, W, norm, self.checkpoint)
        return None if bias is None else self.place(bias)

    def write_bias(self, linear: Linear, norm: Norm | None) -> Float[Tensor, "d_model"] | None:
        """The writer's bias, as it leaves the norm."""
        bias = linear.read_bias(self.checkpoint)
        if bias is None:
            return None
        return self.place(fold.writer(bias, norm, self.checkpoint) if self.options.folded else bias)

    def _check(self, layer: int, linear: Linear) -> None:
        """Raises if the weight's size is not the config's."""
        a = self.architecture
        shapes = SHAPES.get(self.cache, layer, lambda: block_shapes(a, a.blocks[layer]))
        check(linear, self.checkpoint, shapes)

    def tensor(self, name: str, *index: slice) -> Tensor:
        """A tensor as it is stored, or the part of it inside `index`; raises if it is damaged.

        Where rows are tokens, those without one may hold anything: nobody reads them.
        """
        a, checkpoint = self.architecture, self.checkpoint
        if name not in (a.embed, a.unembed, a.unembed_bias):
            return checkpoint.read(name, *index)
        values = checkpoint.read_unchecked(name, *index)
        if not all_finite(values):
            n, rows = checkpoint.info(name).shape[0], index[0] if index else ALL
            used = self.vocabulary.mask(n)[rows].view(-1, *[1] * (values.ndim - 1))
            kept = torch.where(used.to(values.device), values, torch.zeros_like(values))
            require_finite(checkpoint.describe(name), kept, [part.start or 0 for part in index])
        return values

    @property
    def run_dtype(self) -> torch.dtype:
        """That of a forward pass: the one asked for, else the one most of the weights have; 8 bits
        become float32."""
        if self.dtype is not None:
            return self.dtype
        counts: Counter[torch.dtype] = Counter()
        for info in map(self.checkpoint.info, self.checkpoint.names()):
            if info.dtype.is_floating_point:
                counts[info.dtype] += prod(info.shape)
        most = max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
        return torch.float32 if most.itemsize == 1 else most

    # ------------------------------------------------------------------ the embeddings

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The input embedding."""
        W = self.tensor(self.architecture.embed)
        if self.architecture.project_in is not None:
            W = W @ self.architecture.project_in.read(self.checkpoint)
        return self.place(W)

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """E, the output embedding: columns are tokens. Folded: C diag(γ_f) E, times the scale."""
        a = self.architecture
        W = self.unembedding().T
        if a.project_out is not None:
            W = a.project_out.read(self.checkpoint) @ W
        if self.options.folded:
            W = fold.reader(W, a.final_norm, self.checkpoint) * a.logit_scale
        return self.place(W)

    def unembedding(self, *index: slice) -> Float[Tensor, "tokens width"]:
        """The output embedding as it is stored, tokens as rows, or the part of it inside `index`;
        for those who only look at all of it, see `embedding`."""
        return self.tensor(self.unembed_name, *index)

    @property
    def unembed_name(self) -> str:
        """What the checkpoint calls it."""
        name = self.architecture.unembed
        if name not in self.checkpoint.names():
            raise LexrayError(
                f"{self.name} has no tensor {name!r}, the output embedding: it is no language "
                "model, or one with tied embeddings; config={'tie_word_embeddings': True} reads "
                "it through the input embedding"
            )
        return name

    @property
    def b_U(self) -> Float[Tensor, "d_vocab"] | None:
        """The bias of the logits; folded, with the final norm's bias read through E."""
        a = self.architecture
        bias = None if a.unembed_bias is None else self.tensor(a.unembed_bias).flatten()
        if self.options.folded and a.final_norm is not None and a.final_norm.bias is not None:
            W = fold.at_least_float32(self.view(folded=False).W_U) * a.logit_scale
            bias = fold.reader_bias(bias, W, a.final_norm, self.checkpoint)
        return None if bias is None else self.place(bias)

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"] | None:
        """Learned position embeddings, from position 0 on; None for rotary and ALiBi models."""
        a = self.architecture
        if a.positions is None:
            return None
        W = self.place(self.checkpoint.read(a.positions, slice(a.position_offset, None)))
        if a.projects_last and a.project_in is not None:
            W = W @ a.project_in.read(self.checkpoint).to(W)
        return W

    def logits(self, residual: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_vocab"]:
        """The model's own way from the last residual to logits: norm, head, E, scale, cap."""
        a, x = self.architecture, residual
        if a.final_norm is not None:
            x = a.final_norm(x, self.checkpoint)
        if a.head is not None:
            x = a.head(x, self.checkpoint)
        raw = self.view(folded=False)
        E = raw.W_U if a.head is None else self.place(self.unembedding().T)
        logits = x @ E.to(x) * a.logit_scale
        if (b_U := raw.b_U) is not None:
            logits = logits + b_U.to(x)
        return logits if a.logit_cap is None else a.logit_cap * (logits / a.logit_cap).tanh()
