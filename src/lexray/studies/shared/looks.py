"""One head at the last position: what its query and keys say, read in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model import fold
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.studies.shared.measures import seed_generator
from lexray.trace.read.vectors import key_directions, key_readers, query_directions, query_readers
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class HeadLook:
    """One head at the last position: its query, all keys, and where it looks."""

    head: Head
    layer: int
    inputs: Float[Tensor, "n d_model"]
    q: Float[Tensor, "d_head"]
    k: Float[Tensor, "n d_head"]
    v: Float[Tensor, "n d_head"]
    logits: Float[Tensor, "n"]
    seen: Int[Tensor, "some"]
    best: int
    other: int | None
    """Another position that it sees."""
    W_K: Float[Tensor, "d_model d_model"] | None
    """Of the whole layer, where it fits."""

    @classmethod
    def of(
        cls, layer: LayerTrace, head: Head, W_K: Tensor | None, *, skip_first: bool, seed: int
    ) -> HeadLook:
        device, kv = head.weights.device, head.kv_index

        def place(x: Tensor) -> Tensor:
            return at_least_float32(x.to(device))

        weights = place(layer.pattern[head.index, -1])
        seen = (weights > 0).nonzero()[:, 0]
        later = seen[seen > 0]
        among = later if skip_first and len(later) else seen
        best = int(among[weights[among].argmax()])
        rest = seen[seen != best]
        draw = seed_generator(seed, layer.trace.ids.tolist(), layer.index, head.index)
        other = int(rest[torch.randint(len(rest), (), generator=draw)]) if len(rest) else None
        turned = place(layer.q_rotated[-1, head.index]), place(layer.k_rotated[:, kv])
        return cls(
            head,
            layer.index,
            place(layer.attn_in),
            place(layer.q[-1, head.index]),
            place(layer.k[:, kv]),
            place(layer.v[:, kv]),
            turned[1] @ turned[0] * head.spec.scale,
            seen,
            best,
            other,
            W_K,
        )

    @property
    def last(self) -> int:
        return len(self.k) - 1

    @property
    def places(self) -> tuple[int, int, int]:
        """Of the residual streams: where it looks, where it is, and another position."""
        return self.best, self.last, self.last if self.other is None else self.other

    def value(self) -> Float[Tensor, "d_model"]:
        """The value behind the best key, through W_O."""
        W_O = at_least_float32(self.head.W_O).to(self.v)
        checkpoint = self.head.weights.checkpoint
        return fold.writer(self.v[self.best] @ W_O, self.head.spec.post_norm, checkpoint)

    def readings(self, method: str) -> tuple[Float[Tensor, "d_model"], Float[Tensor, "d_model"]]:
        """The query and its best key as vectors of the residual stream."""
        if method == "right":
            at = torch.tensor([self.best - self.last], device=self.q.device)
            q, k = self.q[None], self.k[[self.best]]
            return query_readers(self.head, q, at)[0], key_readers(self.head, k, at)[0]
        query = self._multiply(method, self.q[None], "query")
        key = self._multiply(method, self.k[[self.best]], "key")
        return query[0], key[0]

    def correlations(self, method: str) -> tuple[float, float]:
        """Of the attention logits with what the query says of each input, and each key of ours."""
        if method == "right":
            by_query, by_key = self._scores()
        else:
            by_query = self.inputs @ self._multiply(method, self.q[None], "query")[0]
            by_key = self._multiply(method, self.k, "key") @ self.inputs[-1]
        true = self.logits[self.seen]
        return correlation(by_query[self.seen], true), correlation(by_key[self.seen], true)

    def _multiply(
        self, method: str, x: Float[Tensor, "n d_head"], name: str
    ) -> Float[Tensor, "n d_model"]:
        """Queries or keys as the naive reading and the original code take them."""
        assert self.W_K is not None
        if (method, name) == ("code", "key"):
            return x @ at_least_float32(self.head.W_Q).to(x).T
        start, d = self.head.index * x.shape[1], len(self.W_K)
        place = torch.nn.functional.pad(x, (start, d - start - x.shape[1]))
        return place if method == "naive" else place @ self.W_K.to(x)

    def _scores(self) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """With the biases of what is multiplied: x W_K + b_K, x W_Q + b_Q."""
        head, n = self.head, len(self.k)
        offsets = torch.arange(n, device=self.k.device) - self.last
        q = self.q.expand(n, -1)
        by_query = (self.inputs * query_readers(head, q, offsets, norm=False)).sum(1)
        by_key = key_readers(head, self.k, offsets, norm=False) @ self.inputs[-1]
        if (b_K := head.b_K) is not None:
            by_query = by_query + query_directions(head, q, offsets) @ b_K.to(q) * head.spec.scale
        if (b_Q := head.b_Q) is not None:
            by_key = by_key + key_directions(head, self.k, offsets) @ b_Q.to(q) * head.spec.scale
        return by_query, by_key


def whole_W_K(trace: Trace, layer: int) -> Float[Tensor, "d_model d_model"] | None:
    """Every query head's keys side by side, and zeros; None if they are wider than d_model."""
    heads, d = trace.weights.layers[layer].heads, trace.model.d_model
    width = len(heads) * heads[0].d_head
    if width > d:
        return None
    W_K = at_least_float32(torch.cat([head.W_K for head in heads], 1))
    return torch.nn.functional.pad(W_K, (0, d - width))


def correlation(a: Float[Tensor, "n"], b: Float[Tensor, "n"]) -> float:
    """Pearson's; NaN for fewer than three numbers, and where one does not vary."""
    if len(a) < 3:
        return nan
    both = torch.stack([a, b]).cpu().double()
    return float(torch.corrcoef(both)[0, 1]) if (both.std(1) > 0).all() else nan
