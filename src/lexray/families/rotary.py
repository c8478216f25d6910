"""Rotary position embeddings: their frequencies, and the rotation between two places.

With queries and keys as rows, the score of a query at position m and a key at n is q R(n − m) kᵀ,
so that one r × r matrix per offset says all there is to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lexray.checkpoint.fields import brief, check
from lexray.errors import LexrayError
from lexray.families.kinds import KINDS

MOST = 1 << 16
"""More dimensions than any head has."""


@dataclass(frozen=True)
class Rotary:
    """Turns 2·len(frequencies) of a head's dimensions, in pairs: the first ones, unless said."""

    frequencies: tuple[float, ...]
    """The angle per position of each pair."""
    kind: Literal["half", "pair"] = "half"
    """Pairs are (i, i + n/2), or adjacent (2i, 2i + 1)."""
    factor: float = 1.0
    """Multiplies the turned dimensions of queries and of keys (YaRN, LongRoPE)."""
    start: int = 0
    """The first dimension that is turned."""

    def matrix(self, offset: int, d_head: int) -> Tensor:
        """R(offset), d_head × d_head in float64; offset = key position − query position."""
        n = len(self.frequencies)
        angles = torch.tensor(self.frequencies, dtype=torch.float64) * offset
        pairs = torch.arange(n)
        first, second = (pairs, pairs + n) if self.kind == "half" else (2 * pairs, 2 * pairs + 1)
        first, second = first + self.start, second + self.start
        rotation = torch.eye(d_head, dtype=torch.float64)
        rotation[first, first] = rotation[second, second] = angles.cos() * self.factor**2
        rotation[first, second] = -angles.sin() * self.factor**2
        rotation[second, first] = angles.sin() * self.factor**2
        return rotation

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys x (positions, heads, d_head), each turned as at its position."""
        n = len(self.frequencies)
        exact = torch.float32 if x.device.type == "mps" else torch.float64
        frequencies = torch.tensor(self.frequencies, dtype=exact, device=x.device)
        angles = positions.to(frequencies)[:, None, None] * frequencies
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        at, end = self.start, self.start + 2 * n
        first, second = (
            (slice(at, at + n), slice(at + n, end))
            if self.kind == "half"
            else (slice(at, end, 2), slice(at + 1, end, 2))
        )
        wide, turned = x.to(exact), x.to(exact).clone()
        turned[..., first] = wide[..., first] * cos - wide[..., second] * sin
        turned[..., second] = wide[..., first] * sin + wide[..., second] * cos
        return turned.to(x.dtype)


def rotary(
    config: Mapping[str, Any],
    d_head: int,
    *,
    kind: Literal["half", "pair"] = "half",
    layer_type: str | None = None,
    theta: float = 10_000.0,
    partial: float = 1.0,
    dims: int | None = None,
) -> Rotary:
    """The rotary embedding that a config describes, in transformers 5's words or the older ones.

    `theta` and `partial` are the family's defaults, `layer_type` picks one of several embeddings,
    `dims` overrides the number of turned dimensions.
    """
    parameters = rope_parameters(config, layer_type, theta, partial)
    if parameters["rope_type"] == "proportional":
        return _proportional(parameters, d_head, kind)
    if dims is None:
        dims = int(d_head * parameters["partial_rotary_factor"])
    if not 0 <= dims <= min(d_head, MOST):
        raise LexrayError(f"a rotary embedding cannot turn {dims} of {d_head} dimensions")
    base = float(parameters["rope_theta"])
    exponents = torch.arange(0, dims, 2, dtype=torch.float64) / dims
    frequencies, factor = _SCALED[parameters["rope_type"]](base**-exponents, parameters, config)
    return Rotary(tuple(frequencies.tolist()), kind, factor)


def _proportional(p: dict[str, Any], d_head: int, kind: Literal["half", "pair"]) -> Rotary:
    """Gemma 4's: pairs are as far apart as if all turned, and the last ones do not."""
    turned, pairs = int(p["partial_rotary_factor"] * d_head // 2), d_head // 2
    if not 0 <= turned <= pairs <= MOST:
        raise LexrayError(f"a rotary embedding cannot turn {2 * turned} of {d_head} dimensions")
    exponents = 2 * torch.arange(turned, dtype=torch.float64) / d_head
    frequencies = float(p["rope_theta"]) ** -exponents / float(p.get("factor") or 1.0)
    return Rotary((*frequencies.tolist(), *[0.0] * (pairs - turned)), kind)


def rope_parameters(
    config: Mapping[str, Any], layer_type: str | None, theta: float, partial: float
) -> dict[str, Any]:
    """`rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before), filled up."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if layer_type is not None and isinstance(parameters.get(layer_type), Mapping):
        parameters = dict(parameters[layer_type])
    for key, value in parameters.items():
        if value is not None and key in KINDS:
            parameters[key] = check(value, KINDS[key], key, "the config's rotary embedding")
    parameters["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters["rope_type"] not in _SCALED:
        raise LexrayError(
            f"the config asks for the rotary embedding {brief(parameters['rope_type'])}; "
            f"known: {', '.join(_SCALED)}"
        )
    if parameters.get("rope_theta") is None:
        parameters["rope_theta"] = config.get("rope_theta") or theta
    if parameters.get("partial_rotary_factor") is None:
        given = config.get("partial_rotary_factor")
        parameters["partial_rotary_factor"] = partial if given is None else given
    context = config.get("max_position_embeddings")
    original = config.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = (
        original or parameters.get("original_max_position_embeddings") or context
    )
    return parameters


Scaled = tuple[Tensor, float]


def _default(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    return frequencies, 1.0


def _dynamic(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    """Stretches only beyond the trained context, unless a fixed alpha does (Hunyuan)."""
    if not p.get("alpha"):
        return frequencies, 1.0
    n = len(frequencies)
    return frequencies * p["alpha"] ** (-torch.arange(n, dtype=torch.float64) / (n - 1)), 1.0


def _linear(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    return frequencies / p["factor"], 1.0


def _llama3(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    """Long waves are stretched by `factor`, short ones left, those between blended."""
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    turns = p["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (blend + (1 - blend) / p["factor"]), 1.0


def _yarn(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    """Dimensions that turn seldom within the original context are stretched, the rest left."""
    original = p["original_max_position_embeddings"]
    stretch = p.get("factor") or config["max_position_embeddings"] / original
    dims = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        return float(
            dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(p["rope_theta"]))
        )

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(len(frequencies), dtype=torch.float64) - low) / (high - low)).clamp(0, 1)

    def mscale(weight: float = 1.0) -> float:
        return 1.0 if stretch <= 1 else 0.1 * weight * math.log(stretch) + 1.0

    factor = p.get("attention_factor")
    if factor is None and p.get("mscale") and p.get("mscale_all_dim"):
        factor = mscale(p["mscale"]) / mscale(p["mscale_all_dim"])
    if factor is None:
        factor = mscale()
    return frequencies * (1 - ramp) + frequencies / stretch * ramp, float(factor)


def _longrope(frequencies: Tensor, p: dict[str, Any], config: Mapping[str, Any]) -> Scaled:
    """Each dimension has a factor of its own; the short ones hold within the original context."""
    original = p["original_max_position_embeddings"]
    stretch = p.get("factor") or config["max_position_embeddings"] / original
    factor = p.get("attention_factor")
    if factor is None:
        factor = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    short = torch.tensor(p["short_factor"], dtype=torch.float64)
    return frequencies / short, float(factor)


_SCALED = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "mrope": _default,  # three positions for pictures, which are one in text
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _default,  # made by itself, above
    "su": _longrope,  # LongRoPE's name in early Phi-3 configs
}
