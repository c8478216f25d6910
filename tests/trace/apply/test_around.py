"""What is around an edited run: the module afterwards, other threads, the tokens that follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.edits import Edit, ablate, add, cut, patch, scale
from lexray.trace.apply.editor import EDITING
from lexray.trace.record.module import module_of
from lexray.trace.record.run import Runner
from tests.families.oracles import close, run
from tests.families.span import WHOLE, every_variant
from tests.families.zoo import find
from tests.trace.apply.test_proof import other
from tests.trace.test_proof import IDS, case, state_of


@every_variant
def test_nothing_stays_behind(name: str) -> None:
    """After a run, after an error inside it, and after ctrl-C."""
    c = case(name)
    before = state_of(c.module)
    edits = [ablate("L0H1"), cut(0, -1), scale("L0.mlp", 2), add("L0", torch.ones(c.model.d_model))]
    c.model.trace(IDS, edits=edits)
    assert state_of(c.module) == before
    for error in (RuntimeError, KeyboardInterrupt):

        def fail(*_: Any, error: type[BaseException] = error) -> None:
            raise error

        weights = Runner(c.model, module_of(c.model)).weights
        block = module_of(c.model).get_submodule(weights.architecture.blocks[-1].module)
        handle = block.register_forward_pre_hook(fail)
        with pytest.raises(error):
            c.model.trace(IDS, edits=edits)
        handle.remove()
        assert state_of(c.module) == before
        assert EDITING.get() is None
    assert torch.equal(c.model.trace(IDS).logits, c.trace.logits)


def test_threads_do_not_see_each_others_edits() -> None:
    c = case("llama")
    edits = [[ablate(f"L{n}H{h}")] for n in range(2) for h in range(4)]
    alone = [c.model.trace(IDS, edits=e).logits for e in edits]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda e: c.model.trace(IDS, edits=e).logits, edits * 3))
    assert all(torch.equal(x, y) for x, y in zip(together, alone * 3, strict=True))


def test_a_plain_pass_in_another_thread_is_unchanged() -> None:
    """While one thread is inside an edited run, another one calls the module itself."""
    c = case("gpt2")
    plain = run(c.module, torch.tensor([IDS])).logits
    seen: list[Tensor] = []

    def call(*_: Any) -> None:
        if not seen:
            seen.append(plain)  # only once, not in the pass that this starts
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(run, c.module, torch.tensor([IDS])).result().logits)

    handle = c.module.transformer.h[1].register_forward_pre_hook(call)
    try:
        trace = c.model.trace(IDS, edits=[ablate("L0H1"), ablate("L1.mlp")], what="logits")
    finally:
        handle.remove()
    assert (trace.logits - plain[0]).abs().max() > 1e-3
    assert torch.equal(seen[1], plain)


CAUSAL = [n for n in WHOLE if not find(n).masked and "both-ways" not in n]


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_under_edits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new token is the changed run's most probable one, out of a cache or not; positions
    count in the prompt."""
    c, seen, step = case(name), [], Runner._step

    def watch(self: Runner, ids: list[int], cache: Any, *, keep: bool = True) -> Any:
        seen.append(cache is None)
        return step(self, ids, cache, keep=keep)

    monkeypatch.setattr(Runner, "_step", watch)
    monkeypatch.setattr(Runner, "_ends", lambda _: set())
    edits: list[Edit] = [
        scale("L0.mlp", 3),
        add("L0", torch.ones(c.model.d_model), positions=-1),
        ablate(f"L{c.model.n_layers - 1}H1", to=other(name)),
        patch("L1.mlp", other(name), positions=slice(1, None)),
    ]
    trace = c.model.trace([5, 11, 3], new_tokens=3, edits=edits)
    keeps = name != "gpt1"  # which keeps no keys and values
    assert seen == [True, not keeps, not keeps]
    assert trace.logits[2:-1].argmax(-1).tolist() == trace.ids[3:].tolist()
    more = trace.entering(1) - c.model.trace(trace.ids, edits=edits[:1]).entering(1)
    assert more[2].allclose(torch.ones(len(more[2])), atol=1e-4)
    close(more[3:], torch.zeros_like(more[3:]))
    del seen[:]
    trace = c.model.trace([5, 11, 3], new_tokens=2, edits=[*edits[:3], cut(0, -1)])
    assert seen == [True, True]
    assert trace.logits[2:-1].argmax(-1).tolist() == trace.ids[3:].tolist()


def test_what_a_cache_does_not_keep() -> None:
    """A mean of all positions changes with each new token: every step is a whole run."""
    c, edits = case("llama"), [ablate("L0H1", to="mean")]
    ids = [5, 11, 3]
    for _ in range(3):
        ids.append(int(c.model.trace(ids, edits=edits).logits[-1].argmax()))
    assert c.model.trace(ids[:3], new_tokens=3, edits=edits).ids.tolist() == ids
