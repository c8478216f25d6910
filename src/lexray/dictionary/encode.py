"""What a dictionary's encoder reads in a forward pass, and when its features are active."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.dictionary.files import StoredDictionary
from lexray.errors import LexrayError

Point = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_in", "mlp_out"]
"""A place in a layer, by the name it has in a trace."""

HOOKS: dict[str, Point] = {
    r"hook_resid_pre$": "resid_pre",
    r"hook_resid_(mid|after_attn)$|hook_mlp_in$": "resid_mid",
    r"hook_resid_post$": "resid_post",
    r"hook_attn_out$|(self_)?attn(\.hook_out)?$|self_attention$": "attn_out",
    r"ln2\.hook_normalized$|mlp\.hook_in$|mlp_in$": "mlp_in",
    r"hook_mlp_out$|mlp(\.hook_out)?$": "mlp_out",
    r"(layers|blocks|layer|h)[._]?\d+$": "resid_post",
}
"""Names of TransformerLens, then the modules whose output transformers' hooks see."""


@dataclass(frozen=True)
class Encoder:
    """The encoder of some files."""

    stored: StoredDictionary

    @cached_property
    def point(self) -> Point:
        """What it reads: the stream before or after a layer, a sub-block's output, the MLP's input.

        Transcoders of modules (`layers.3.mlp`) read the module's input.
        """
        hook = self.stored.hook
        if re.search(r"hook_z$|hook_result$", hook):
            raise LexrayError(f"{self.stored.path} reads the heads' outputs ({hook}), not a stream")
        hooked: Point = next(
            (point for name, point in HOOKS.items() if re.search(name, hook)), "resid_post"
        )
        transcodes = self.stored.hook_out or self.stored.setting("transcode")
        return "mlp_in" if hooked == "mlp_out" and transcodes else hooked

    @property
    def gained(self) -> bool:
        """Whether it reads what a norm gives, gain included."""
        return self.point == "mlp_in" and "hook_normalized" not in self.stored.hook

    def active(self, x: Float[Tensor, "p d_model"]) -> Float[Tensor, "p n_features"]:
        """Every feature's activation at some positions."""
        encoder, vectors = self.stored.encoder, self.stored.vectors
        if encoder is None:
            raise LexrayError(f"{self.stored.path} has no encoder: its features cannot be active")
        W = encoder.rows(0, encoder.n).float()
        pre = self._entering(x.cpu().float()) @ W.T
        if "r_mag" in vectors:
            gate = pre + vectors.get("b_gate", torch.zeros(()))
            size = pre * vectors["r_mag"].exp() + vectors.get("b_mag", torch.zeros(()))
            return size.relu() * (gate > 0)
        pre = pre + vectors.get("b_enc", torch.zeros(()))
        if "threshold" in vectors:
            return pre.relu() * (pre > vectors["threshold"])
        return self._largest(pre.relu())

    def _entering(self, x: Float[Tensor, "p d_model"]) -> Float[Tensor, "p d_model"]:
        """x as the encoder takes it: centred, normed, less the decoder's bias, as configured."""
        setting = self.stored.setting
        kwargs = setting("model_from_pretrained_kwargs")
        if isinstance(kwargs, dict) and kwargs.get("center_writing_weights"):
            x = x - x.mean(-1, keepdim=True)
        match setting("normalize_activations"):
            case "constant_norm_rescale":
                x = x * sqrt(x.shape[-1]) / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)
            case "layer_norm":
                x = x - x.mean(-1, keepdim=True)
                x = x / (x.std(-1, keepdim=True) + 1e-5)
        less = setting("apply_b_dec_to_input")
        if less is None:  # sparsify's autoencoders do, its transcoders do not
            less = setting("num_latents", "expansion_factor") and not setting("transcode")
        if less and "b_dec" in self.stored.vectors:
            x = x - self.stored.vectors["b_dec"]
        return x

    def _largest(self, active: Float[Tensor, "p n"]) -> Float[Tensor, "p n"]:
        """The k largest of each position, if it is one of those that keep k."""
        setting = self.stored.setting
        inner = setting("activation_fn_kwargs")
        k = setting("k") or (inner.get("k") if isinstance(inner, dict) else None)
        if type(k) is not int or not 0 < k < active.shape[1]:
            return active
        sizes = torch.ones(active.shape[1])
        if setting("rescale_acts_by_decoder_norm"):
            decoder = self.stored.decoder
            sizes = decoder.rows(0, decoder.n).float().norm(dim=1)
        best = (active * sizes).topk(k, dim=1)
        return torch.zeros_like(active).scatter(1, best.indices, best.values)
