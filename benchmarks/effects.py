"""Every head of SmolLM2 removed in turn: faster than a loop of whole forward passes.

The loop is what one writes by hand: a hook on the output projection zeroes the head, and the whole
model runs, once for each of 270 heads (only the last position's logits are computed, as in ours).
One thread, CPU time, the same run; the figures must agree.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.vectors import seconds

PROMPT = "When Mary and John went to the store, John gave a drink to"
TARGET, OTHER = " Mary", " John"


def by_hand(module: Any, ids: Tensor, width: int, pair: tuple[int, int]) -> list[float]:
    """The difference of two logits without each head, by whole passes."""
    found = []
    with torch.no_grad():
        for layer in module.model.layers:
            for head in range(module.config.num_attention_heads):
                at = slice(head * width, (head + 1) * width)

                def hook(_: Any, args: tuple[Tensor], at: slice = at) -> tuple[Tensor]:
                    z = args[0].clone()
                    z[..., at] = 0
                    return (z,)

                handle = layer.self_attn.o_proj.register_forward_pre_hook(hook)
                logits = module(input_ids=ids, logits_to_keep=1, use_cache=False).logits[0, -1]
                handle.remove()
                found.append(float(logits[pair[0]] - logits[pair[1]]))
    return found


def run() -> dict[str, float]:
    """`ratio`: the loop over `trace.effects("heads")`, which also computes direct contributions."""
    from lexray.model.model import Model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = Model.from_pretrained("smollm2")
        trace, module = model.trace(PROMPT), model.module()
        pair = model.space.id(TARGET), model.space.id(OTHER)
        found: list[Any] = []
        ours = seconds(lambda: found.append(trace.effects("heads", TARGET, against=OTHER)))
        hand: list[list[float]] = []
        naive = seconds(lambda: hand.append(by_hand(module, trace.ids[None], model.d_head, pair)))
    finally:
        torch.set_num_threads(threads)
    before = float(trace.logits[-1, pair[0]] - trace.logits[-1, pair[1]])
    changes = torch.tensor([removed.change for removed in found[0]])
    torch.testing.assert_close(changes, torch.tensor(hand[0]) - before, rtol=0, atol=5e-3)
    return {"ratio": naive / ours, "seconds": ours, "heads": float(len(changes))}


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
