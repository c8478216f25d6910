"""A model: a checkpoint, what its tensors mean, its vocabulary, and how it is read."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.address import Address
from lexray.checkpoint import Checkpoint
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.families import Architecture, Family, find_family
from lexray.find.lookup import Lookup, Nearest, lookup, nearest
from lexray.find.related import Related, related
from lexray.model import fold
from lexray.model.feedforward import FeedForward, Layer, Mixture, Parts
from lexray.model.head import Head
from lexray.model.open import open_source, read_vocabulary
from lexray.model.vectors import Vector, VectorGroup
from lexray.space.kinds import Kind
from lexray.space.space import EmbeddingSpace
from lexray.view import View
from lexray.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lexray.trace.record.plan import TraceOptions
    from lexray.trace.trace import Trace


class Model:
    """A language model whose parameters are read when they are asked for.

    >>> model = lx.Model.from_pretrained("gpt2-medium")
    >>> model["L19H4"].W_V.shape                 # reads one head's slice, nothing else
    torch.Size([1024, 64])
    >>> model.layers[23].ff.neurons[907].W_out   # the same as model["L23N907"].W_out
    """

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
        self.family: Family = find_family(self.config, family)
        self.architecture: Architecture = self.family.architecture(self.config, checkpoint.names())
        self.device = torch.device(device)
        self.dtype = dtype
        self.options = View()
        self.cache: dict[Hashable, Any] = {}
        """What is made once and shared by all views: the embedding, its moments, …"""
        if vocabulary is not None:
            self.cache["vocabulary"] = vocabulary

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        remote: bool = False,
        adapter: str | Path | None = None,
        family: str | None = None,
        config: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Model:
        """Opens a model without loading it.

        `source` is a folder, a `.safetensors`, `.bin` or `.gguf` file, a PEFT LoRA adapter's
        folder, a Hub id, or the name of a model that comes along (`demo`, `smollm2`).

        - `remote=True` downloads nothing: needed byte ranges are read over HTTP.
        - `adapter=…` puts a LoRA adapter on top of `source`.
        - `family=…` reads the model by the rules of another family.
        - `config={…}` overrides entries of `config.json`.
        """
        checkpoint = open_source(
            source, revision=revision, token=token, remote=remote, adapter=adapter
        )
        return cls(checkpoint, family=family, config=config, device=device, dtype=dtype)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        tokenizer: Any = None,
        *,
        family: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Model:
        """A live transformers model; its weights are not copied."""
        checkpoint = ModuleCheckpoint(module)
        vocabulary = None if tokenizer is None else Vocabulary.from_transformers(tokenizer)
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        return cls(checkpoint, vocabulary=vocabulary, family=family, config=config, device=device)

    def view(self, **options: Any) -> Model:
        """The same model, read differently: `model.view(folded=True)`; see `View`."""
        unknown = options.keys() - set(View.options())
        if unknown:
            raise LexrayError(
                f"no reading option {', '.join(sorted(unknown))}; there are "
                f"{', '.join(View.options())}"
            )
        other = object.__new__(Model)
        other.__dict__.update(self.__dict__)
        other.options = replace(self.options, **options)
        other.__dict__.pop("space", None)
        return other

    @cached_property
    def space(self) -> EmbeddingSpace:
        """The embedding space under this view."""
        return EmbeddingSpace(self)

    def groups(self, kind: Kind) -> Iterator[VectorGroup]:
        """All vectors of a kind, group after group, layer after layer."""
        for layer in self.layers:
            yield from layer.groups(kind)

    def vectors(self, kind: Kind) -> Iterator[Float[Tensor, "_ d_model"]]:
        """All vectors of a kind as blocks of rows."""
        return (group.tensor for group in self.groups(kind))

    def lookup(
        self,
        words: Sequence[str | int],
        among: str = "values",
        *,
        by: Literal["dot", "cosine"] = "dot",
    ) -> Lookup:
        """Which parameters know about these words: `model.lookup(["cm", "kg", "inches"])`.

        `among` is values, keys, gates, Q, K, V or O. See `lexray.find.lookup.lookup`.
        """
        return lookup(self, words, among, by=by)

    def related(
        self, k: int = 100, overlap: float = 0.15, *, read: Literal["key", "gate"] = "key"
    ) -> Related:
        """Feed-forward neurons whose key and value share tokens; see `lexray.find.related`."""
        return related(self, k, overlap, read=read)

    def nearest(self, address: str | Address, n: int = 20, *, among: Sequence[str] = ()) -> Nearest:
        """The most similar parameters anywhere in the model; see `lexray.find.lookup.nearest`."""
        return nearest(self, address, n, among=among)

    def __repr__(self) -> str:
        a = self.architecture
        return (
            f"<Model {self.name}: {self.family.title}, {self.n_layers} layers × {a.n_heads} heads, "
            f"width {a.d_model}, {a.d_vocab} tokens, {self.options}>"
        )

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, from the checkpoint's tokenizer, which is read when first asked for."""
        if "vocabulary" not in self.cache:
            made = read_vocabulary(self.checkpoint, self._n_embedded())
            self.cache["vocabulary"] = made
        vocabulary: Vocabulary = self.cache["vocabulary"]
        return vocabulary

    def _n_embedded(self) -> int:
        """How many tokens the embedding has, which the config's `vocab_size` may not know."""
        embed, checkpoint = self.architecture.embed, self.checkpoint
        known = embed in checkpoint.names()
        return checkpoint.info(embed).shape[0] if known else self.architecture.d_vocab

    @property
    def d_model(self) -> int:
        return self.architecture.d_model

    @property
    def n_layers(self) -> int:
        return len(self.architecture.blocks)

    @property
    def n_heads(self) -> int:
        return self.architecture.n_heads

    @property
    def n_kv_heads(self) -> int:
        return self.architecture.n_kv_heads

    @property
    def d_head(self) -> int:
        return self.architecture.d_head

    @property
    def d_mlp(self) -> int:
        return self.architecture.d_mlp

    @property
    def d_vocab(self) -> int:
        return self.architecture.d_vocab

    @property
    def layers(self) -> Parts[Layer]:
        return Parts("layer", "this model", lambda i: Layer(self, i), self.n_layers)

    def __getitem__(self, address: str | Address) -> Any:
        """The layer, head, neuron, expert, matrix or vector at an address; see `lexray.address`."""
        at = address if isinstance(address, Address) else Address.parse(address)
        layer = self.layers[at.layer]
        if at.part is not None:
            return layer.vector(at.part)
        if at.head is not None:
            return _inside_head(layer.heads[at.head], at)
        ff = layer.ff
        if at.expert is not None or at.shared:
            ff = _expert(ff, at)
        if at.neuron is None:
            return layer if at == layer.address else ff
        if isinstance(ff, Mixture):
            raise LexrayError(
                f"{at}: layer {at.layer} is a mixture of {len(ff.experts)} experts; "
                f"say which, as in L{at.layer}E0N{at.neuron}"
            )
        neuron = ff.neurons[at.neuron]
        return neuron if at.vector is None else getattr(neuron, at.vector)

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor on the model's device, in its dtype if one was asked for.

        Floats of 8 bits, which torch cannot calculate with, become float32.
        """
        small = tensor.is_floating_point() and tensor.dtype.itemsize == 1
        dtype = self.dtype or (torch.float32 if small else None)
        return tensor.to(device=self.device, dtype=dtype)

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The input embedding."""
        W = self.checkpoint.read(self.architecture.embed)
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

    def unembedding(self) -> Float[Tensor, "d_vocab width"]:
        """The output embedding as it is stored, tokens as rows."""
        name = self.architecture.unembed
        if name not in self.checkpoint.names():
            raise LexrayError(
                f"{self.name} has no tensor {name!r}, the output embedding: it is no language "
                "model, or one with tied embeddings; config={'tie_word_embeddings': True} reads "
                "it through the input embedding"
            )
        return self.checkpoint.read(name)

    @property
    def b_U(self) -> Float[Tensor, "d_vocab"] | None:
        """The bias of the logits; folded, with the final norm's bias read through E."""
        a = self.architecture
        bias = None if a.unembed_bias is None else self.checkpoint.read(a.unembed_bias)
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
        return self.place(self.checkpoint.read(a.positions, slice(a.position_offset, None)))

    def final_norm(self, part: Literal["gain", "bias"] = "gain") -> Vector:
        """The final norm's gain or bias as a readable vector."""
        norm = self.architecture.final_norm
        read = norm and (norm.read_gain if part == "gain" else norm.read_bias)
        tensor = read(self.checkpoint) if read else None
        if tensor is None:
            raise LexrayError(f"{self.name} has no {part} in its final norm")
        found = self.place(tensor)
        return Vector(self, f"final_norm.{part}", "norm", lambda: found, "final_norm")

    def module(self) -> nn.Module:
        """transformers' own model with this checkpoint's weights; a live one as it is."""
        from lexray.trace.record.module import build_module  # imports transformers

        if "module" not in self.cache:
            self.cache["module"] = build_module(self)
        module: nn.Module = self.cache["module"]
        return module

    @overload
    def trace(
        self, prompt: str | Sequence[int] | Tensor, **options: Unpack[TraceOptions]
    ) -> Trace: ...

    @overload
    def trace(
        self, prompt: list[str] | list[list[int]], **options: Unpack[TraceOptions]
    ) -> list[Trace]: ...

    def trace(self, prompt: Any, **options: Any) -> Any:
        """Runs a prompt through transformers' own model and records it.

        `prompt` is a text or its token ids; a list of either is run as one batch and gives a list.

        - `new_tokens=n` first continues the prompt by up to n of the most probable tokens.
        - `what=` chooses what is kept: some of "residual", "attention", "heads", "mlp", "logits".
        - `layers=`, `positions=` choose where: numbers (negative: from the end) or slices.
        - `device=` is where it is kept (the model's own by default).
        - `special=False` leaves out the tokens that a tokenizer adds (BOS, [CLS]).
        """
        from lexray.trace.record.run import trace_prompt  # imports transformers

        return trace_prompt(self, prompt, **options)

    def logits(self, residual: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_vocab"]:
        """The model's own way from the last residual to logits: norm, head, E, scale, cap."""
        a, x = self.architecture, residual
        if a.final_norm is not None:
            x = a.final_norm(x, self.checkpoint)
        if a.head is not None:
            x = a.head(x, self.checkpoint)
        raw = self.view(folded=False)
        logits = x @ raw.W_U.to(x) * a.logit_scale
        if (b_U := raw.b_U) is not None:
            logits = logits + b_U.to(x)
        return logits if a.logit_cap is None else a.logit_cap * (logits / a.logit_cap).tanh()


def refuse_quantised(config: dict[str, Any], name: str) -> None:
    """Weights that are stored with scales of their own are not what they seem."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        method = quantised.get("quant_method", "an unknown method")
        raise LexrayError(
            f"{name} is quantised by {method}, which lexray does not read; take the original "
            "weights, or a GGUF file of the model"
        )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a multimodal config, or the config as it is."""
    inner = config.get("text_config")
    return config | inner if isinstance(inner, dict) and "hidden_size" in inner else config


def _inside_head(head: Head, at: Address) -> Any:
    if at.matrix is not None:
        return head.vo if at.matrix == "VO" else head.qk
    if at.subhead is None:
        return head
    assert at.index is not None
    return head.subheads(at.subhead)[at.index]


def _expert(ff: FeedForward | Mixture, at: Address) -> FeedForward:
    if isinstance(ff, FeedForward):
        raise LexrayError(f"{at}: layer {at.layer} has no experts; its neurons are L{at.layer}N0 …")
    if at.expert is not None:
        return ff.experts[at.expert]
    if ff.shared is None:
        raise LexrayError(f"{at}: layer {at.layer} has no shared expert")
    return ff.shared
