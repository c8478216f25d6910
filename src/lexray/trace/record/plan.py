"""What to keep of a forward pass, and whether it fits into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import psutil
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families import Architecture, Attention, Experts, FeedForward
from lexray.model.anatomy import Anatomy
from lexray.result.format import show_bytes

What = Literal["residual", "attention", "heads", "mlp", "logits"]
"""The words of `what=`."""

PARTS: dict[What, tuple[str, ...]] = {
    "residual": (
        *("resid_pre", "resid_mid", "resid_post"),
        *("attn_in", "attn_write", "attn_out", "mlp_in", "mlp_write", "mlp_out"),
        *("mixer_in", "mixer_write", "mixer_out", "cross_in", "cross_write"),
        *("cross_out", "laurel_write", "laurel_out", "streams", "predict", "correct"),
    ),
    "attention": (
        "cross_q",
        "cross_k",
        "cross_v",
        "cross_pattern",
        "q",
        "k",
        "q_rotated",
        "k_rotated",
        "v",
        "pattern",
        "gate",
    ),
    "heads": ("z", "head_out", "cross_z"),
    "mlp": ("pre", "gate_pre", "coefficients", "experts"),
    "logits": ("logits", "logits_uncapped"),
}
"""What each of them keeps."""


@dataclass(frozen=True)
class RecordPlan:
    """What to keep of each sequence of a batch, and where."""

    lengths: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    what: frozenset[What]
    device: torch.device
    stops: bool = False
    """Whether the pass ends with the last layer that is kept: what comes after is not run."""

    def rows(self, sequence: int, device: torch.device) -> Tensor:
        """The kept positions of one sequence, as an index."""
        return torch.tensor(self.positions[sequence], dtype=torch.long, device=device)


def choose_what(what: str | Iterable[str] | None) -> frozenset[What]:
    """The words that were given; all by default."""
    names = get_args(What) if what is None else [what] if isinstance(what, str) else list(what)
    if unknown := [str(name) for name in names if name not in get_args(What)]:
        raise LexrayError(
            f"a trace cannot keep {', '.join(unknown)}; what= takes some of "
            f"{', '.join(get_args(What))}"
        )
    return frozenset(cast("Iterable[What]", names))


def kept_bytes(model: Anatomy, plan: RecordPlan, itemsize: int) -> int:
    """How much a trace takes."""
    a, total = model.architecture, 0
    for n, rows in zip(plan.lengths, map(len, plan.positions), strict=True):
        numbers = _count_ends(a) * rows * a.d_model
        if "logits" in plan.what:
            numbers += rows * a.d_vocab * (2 if a.logit_cap is not None else 1)
        for layer in plan.layers:
            block = a.blocks[layer]
            if "residual" in plan.what:
                both = [part for part in (block.attention, block.ff) if not part.absent]
                normed = (part.post_norm for part in both)
                behind = sum(norm is not None and norm.module is not None for norm in normed)
                pairs = len(both) + (block.mixer is not None)
                last = None if block.mixer is None else block.mixer.post_norm
                behind += last is not None and last.module is not None
                if block.laurel is not None:
                    behind += 2
                numbers += (_count_streams(a) + 2 * pairs + behind) * rows * a.d_model
                if a.streams is not None:
                    numbers += rows * a.streams.count * (a.streams.count + 1)
            if "attention" in plan.what:
                numbers += _count_attention(block.attention, n, rows)
            if "heads" in plan.what:
                numbers += rows * len(block.attention.q.starts) * block.attention.v.d_head
            if "mlp" in plan.what:
                numbers += rows * _count_mlp(block.ff)
        total += numbers * itemsize
    return total


def _count_ends(a: Architecture) -> int:
    """The stream before and behind all blocks, behind the final norm, and the embedding's parts."""
    beside = (a.positions, a.sinusoids, a.token_types)
    parts = sum(part is not None for part in beside)
    if (parts or a.embed_norm) and a.embedder != "":
        parts += 1
    if a.streams is not None:
        parts += 1
    return 2 * _count_streams(a) + (a.final_norm is not None) + parts


def _count_streams(a: Architecture) -> int:
    """The stream around a layer; of several, each, and what they come to together."""
    return 1 if a.streams is None else a.streams.count + 1


def _count_attention(spec: Attention, n: int, rows: int) -> int:
    heads, kv, width = len(spec.q.starts), len(spec.k.starts), spec.q.d_head
    times = 2 if spec.turns else 1
    gate = 0 if spec.gate is None else rows * heads * spec.gate.d_head
    return (
        gate + times * (rows * heads + n * kv) * width + n * kv * spec.v.d_head + heads * rows * n
    )


def _count_mlp(ff: FeedForward | Experts) -> int:
    if isinstance(ff, FeedForward):
        return (2 if ff.w_gate is None else 3) * ff.d_mlp
    shared = 0 if ff.shared is None else ff.shared.d_mlp + 1
    return ff.top_k * (ff.experts[0].d_mlp + 2) + shared


def passing_bytes(model: Anatomy, plan: RecordPlan, itemsize: int) -> int:
    """How much the forward pass itself takes at its widest: attention scores, or logits."""
    a, batch, n = model.architecture, len(plan.lengths), max(plan.lengths)
    scores = 2 * a.n_heads * n * n * 4 if "attention" in plan.what else 0
    logits = n * a.d_vocab * 4 if "logits" in plan.what else 0
    widest = max(scores, logits, n * (4 * _count_streams(a) * a.d_model + 3 * a.d_mlp) * itemsize)
    return batch * widest


def available_bytes(device: torch.device) -> int | None:
    """The memory that is free on a device, if it can be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    free = int(psutil.virtual_memory().available)
    return min([free, *_free_in_container()])


def _free_in_container() -> list[int]:
    """What is left of a control group's limit, where containers or batch systems set one: psutil
    sees only the machine."""
    try:
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current")
        )
        return [max(limit - used, 0)]
    except (OSError, ValueError):
        return []


def refuse_too_large(
    model: Anatomy, plan: RecordPlan, device: torch.device, dtype: torch.dtype
) -> None:
    """Raises before a run that would not fit, with the figures and what to choose."""
    kept, passing = (f(model, plan, dtype.itemsize) for f in (kept_bytes, passing_bytes))
    needs = {plan.device: kept}
    needs[device] = needs.get(device, 0) + passing
    for where, needed in needs.items():
        free = available_bytes(where)
        if free is not None and needed > free:
            raise LexrayError(
                f"this trace would not fit: it keeps {show_bytes(kept)} and passes through "
                f"{show_bytes(passing)}, of which {show_bytes(needed)} on {where}, where "
                f"{show_bytes(free)} are free. It has {sum(plan.lengths)} tokens, "
                f"{len(plan.layers)} layers and keeps {', '.join(sorted(plan.what))}; choose fewer "
                "with what=, layers= or positions=, shorten the prompt, or keep it "
                "elsewhere with device="
            )


def not_kept(name: str, what: Collection[What]) -> LexrayError:
    """The error for a part that was not recorded."""
    needed = next(word for word, names in PARTS.items() if name in names)
    if needed not in what:
        return LexrayError(
            f"{name} was not kept: this trace has what={sorted(what)}; trace again with "
            f"what={sorted({*what, needed})}, or without what= to keep all"
        )
    return LexrayError(f"the model computed no {name} that could be recorded")
