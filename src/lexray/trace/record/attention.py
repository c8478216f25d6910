"""Attention that is watched: queries, keys and weights, on their way through transformers' own.

Most architectures look their attention up in transformers' interface by a name in the config. Under
our name they find a function that hands everything to the architecture's own eager attention (so
masks, scales, caps and windows are its own) and shows what passed to the recorder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from lexray.checkpoint import Checkpoint
from lexray.families import Architecture, Attention
from lexray.model.head_matrices import alibi_slopes, visible

NAME = "lexray_recording"
SETTING = "_attn_implementation_internal"

Watch = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor], None]
"""Told the attention module, its queries, keys (both rotated) and values (batch, head, position,
width), and its weights (batch, head, query, key)."""


@runtime_checkable
class ChangesAttention(Protocol):
    """Who may change what passes."""

    def before_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def after_attention(
        self, module: nn.Module, v: Tensor, out: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]: ...


def eager_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The eager attention of a module's architecture, if it uses transformers' interface."""
    home = sys.modules.get(type(module).__module__)
    return getattr(home, "eager_attention_forward", None)


def uses_interface(architecture: Architecture, modules: Mapping[str, nn.Module]) -> bool:
    """Whether all of a model's attention is looked up in transformers' interface."""
    specs = (block.attention for block in architecture.blocks)
    modules_of = (modules[spec.module] for spec in specs if not spec.absent)
    return all(eager_attention(module) is not None for module in modules_of)


@contextmanager
def watch_attention(
    root: nn.Module, watch: Watch | None, change: ChangesAttention | None = None
) -> Iterator[None]:
    """Inside, every attention of `root` that uses the interface is eager, and shown to `watch`
    as `change` left it."""

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,  # which some give by its name
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        eager = eager_attention(module)
        assert eager is not None
        if change is not None:
            query, key, value = change.before_attention(module, query, key, value)
        mask = leave_out(attention_mask, options.pop("indices", None), key.shape[2])
        out, weights = eager(module, query, key, value, mask, **options)
        weights = without_sinks(module, value, out, weights)
        if change is not None:
            out, weights = change.after_attention(module, value, out, weights)
        if watch is not None:
            watch(module, query, key, value, weights)
        return out, weights

    masks = AttentionMaskInterface._global_mapping
    try:
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, masks["eager"])
        with configure(root, SETTING, NAME):
            yield
    finally:
        AttentionInterface._global_mapping.pop(NAME, None)
        masks.pop(NAME, None)


def without_sinks(module: nn.Module, value: Tensor, out: Tensor, weights: Tensor) -> Tensor:
    """Weights less what sinks take of them, where an architecture takes it from the sum of values
    alone (Granite with windows): by how much that is smaller than its weights make it."""
    whole = weights.float().sum(-1)
    if getattr(module, "sinks", None) is None or not torch.allclose(
        whole, torch.ones_like(whole), atol=0.01
    ):
        return weights
    values = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1).float()
    plain, given = weights.float() @ values, out.transpose(1, 2).float()
    left = (given * plain).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True)
    return (weights * left.nan_to_num(1.0)).to(weights)


def leave_out(mask: Any, chosen: Tensor | None, n: int) -> Any:
    """A mask without the keys that an indexer has not chosen (DeepSeek V3.2), as the architecture
    itself makes it for the implementations that it knows."""
    if chosen is None or mask is None:
        return mask
    left = chosen.new_ones((*chosen.shape[:2], n), dtype=torch.bool)
    left = left.scatter(-1, chosen.long(), False).unsqueeze(1)
    if mask.dtype == torch.bool:
        return mask & ~left
    return mask.masked_fill(left, torch.finfo(mask.dtype).min)


def only_first(see: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`see` for a module's first call alone; what later ones are about passes as it is."""
    done: list[bool] = []

    def look(x: Any) -> Any:
        if done:
            return x
        done.append(True)
        return see(x)

    return look


@contextmanager
def configure(root: nn.Module, setting: str, value: str) -> Iterator[None]:
    """Inside, every config of the module and its parts has this setting."""
    configs = {
        id(c): c for m in root.modules() if hasattr(c := getattr(m, "config", None), setting)
    }
    before = {key: getattr(config, setting) for key, config in configs.items()}
    try:
        for config in configs.values():
            setattr(config, setting, value)
        yield
    finally:
        for key, config in configs.items():
            setattr(config, setting, before[key])


def weights_of(
    spec: Attention,
    q: Float[Tensor, "p n_heads d_head"],
    k: Float[Tensor, "n n_kv_heads d_head"],
    at: Int[Tensor, "p"],
    causal: bool,
    checkpoint: Checkpoint,
) -> Float[Tensor, "n_heads p n"]:
    """Attention weights from rotated queries and keys, where the architecture keeps its own back
    (Falcon, whose attention is a fused kernel)."""
    grouped = k.float().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("phr,nhr->hpn", q.float(), grouped) * spec.scale
    if spec.temperature is not None:
        scores = scores * spec.temperature(at)[:, None]
    seen = torch.arange(len(k), device=k.device)
    if spec.alibi:
        slopes = (
            torch.tensor(alibi_slopes(q.shape[1], spec.alibi_most), device=k.device) * spec.alibi
        )
        scores = scores + slopes[:, None, None] * seen
    if spec.relative is not None:
        scores = scores + spec.relative.scores(checkpoint, q.float(), grouped, at, seen)
    if spec.cap is not None:
        scores = spec.cap * (scores / spec.cap).tanh()
    return scores.masked_fill(~visible(spec, at, seen, causal), -torch.inf).softmax(-1).to(q.dtype)
