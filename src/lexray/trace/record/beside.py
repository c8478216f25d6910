"""What stands beside attention and the feed-forward in a block: mixers, LAuReL, several streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Block, Norm
from lexray.model.fold import at_least_float32


class BesideTrace(ABC):
    """Of one block: what its mixer and LAuReL read and wrote."""

    @property
    @abstractmethod
    def spec(self) -> Block: ...

    @abstractmethod
    def _part(self, name: str) -> Tensor: ...

    @abstractmethod
    def _added(self, name: str, written: Tensor, norm: Norm | None) -> Tensor: ...

    @property
    @abstractmethod
    def resid_pre(self) -> Float[Tensor, "p d_model"]: ...

    @property
    @abstractmethod
    def streams(self) -> StreamsTrace: ...

    @property
    def resid_in(self) -> Float[Tensor, "p d_model"]:
        """What the block works on: the residual stream before it, or of several streams (Gemma 3n)
        the active one, as it is predicted from all."""
        return self.resid_pre if self.spec.altup is None else self.streams.read

    @property
    def mixer_in(self) -> Float[Tensor, "p d_model"]:
        """What a mixer reads: the residual stream after the norm."""
        return self._part("mixer_in")

    @property
    def mixer_write(self) -> Float[Tensor, "p d_model"]:
        """What a mixer writes, before any factor."""
        return self._part("mixer_write")

    @property
    def mixer_out(self) -> Float[Tensor, "p d_model"]:
        """What a mixer adds to the residual stream."""
        spec = self.spec.mixer
        norm = None if spec is None else spec.post_norm
        return self._added("mixer_out", self.mixer_write, norm)

    @property
    def laurel_write(self) -> Float[Tensor, "p d_model"]:
        """What the narrow map beside attention writes, before its norm (Gemma 3n)."""
        return self._part("laurel_write")

    @property
    def laurel_out(self) -> Float[Tensor, "p d_model"]:
        """What it adds, beside what it read and before all is divided by √2."""
        return self._part("laurel_out")


@dataclass(frozen=True, eq=False)
class StreamsTrace:
    """Several residual streams around one layer (Gemma 3n), with the numbers that mixed them.

    A layer predicts P = C X, works on the active one of P, and what leaves it is P + k · (what it
    made of that one − that one), besides what its own embedding of the token gives to all streams
    but the first.
    """

    part: Callable[[str], Tensor]
    after: Callable[[], Tensor]
    active: int
    """The stream that layers work on."""

    @property
    def entering(self) -> Float[Tensor, "p n_streams d_model"]:
        """X: all streams as they enter the layer."""
        return self.part("streams")

    @property
    def leaving(self) -> Float[Tensor, "p n_streams d_model"]:
        """As they leave it."""
        return self.after()

    @property
    def predict(self) -> Float[Tensor, "p n_streams n_streams"]:
        """C: how much of the second stream is in the prediction of the first."""
        return self.part("predict")

    @property
    def correct(self) -> Float[Tensor, "p n_streams"]:
        """k: how much of what the layer changed each stream gets."""
        return self.part("correct")

    @property
    def predicted(self) -> Float[Tensor, "p n_streams d_model"]:
        """P: all streams as they are predicted from all."""
        return (self.predict @ self.entering.to(self.predict)).to(self.entering)

    @property
    def read(self) -> Float[Tensor, "p d_model"]:
        """The one of them that the layer works on."""
        row = self.predict[:, self.active, None]
        return (row @ self.entering.to(row))[:, 0].to(self.entering)


def as_rows(x: Float[Tensor, "n_streams b n d_model"]) -> Float[Tensor, "b n n_streams d_model"]:
    """Streams as traces have them, from how modules pass them on."""
    return x.permute(1, 2, 0, 3)


def as_passed(x: Float[Tensor, "b n n_streams d_model"]) -> Float[Tensor, "n_streams b n d_model"]:
    """And back."""
    return x.permute(2, 0, 1, 3)


def read_predictions(out: Float[Tensor, "b n numbers"]) -> Float[Tensor, "b n count count"]:
    """C from what a layer's map of predictions gives: with all that stays as it was, which half
    precision would round away."""
    count = round(out.shape[-1] ** 0.5)
    out = at_least_float32(out)
    own = torch.eye(count, dtype=out.dtype, device=out.device)
    return out.reshape(*out.shape[:-1], count, count) + own
