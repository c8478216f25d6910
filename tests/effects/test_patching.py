"""Grids of patching are whole runs with one patch each; gradients are small differences."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from lexray.edits import add, cut, patch
from lexray.effects.aim import Aim, own_actions
from lexray.effects.knockout import around, knockout
from lexray.effects.patching import patching
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.apply.gradients import gradients
from lexray.trace.trace import Trace
from tests.families.oracles import close
from tests.families.span import spanning
from tests.families.zoo import build
from tests.trace.apply.test_proof import OTHER, other
from tests.trace.test_proof import IDS, case, state_of

TARGET, AGAINST = 7, 11
FEW = ["gpt2", "llama", "gemma2", "mixtral", "bert", "falcon-rw", "opt-350m"]


def metric(trace: Trace) -> float:
    return float(trace.logits[-1, TARGET] - trace.logits[-1, AGAINST])


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("of", ["residual", "attention", "mlp", "heads", "head positions"])
def test_each_cell_is_a_whole_run(name: str, of: str) -> None:
    c, there = case(name), other(name)
    ends = metric(c.trace), metric(there)
    for way, base, source in (("denoising", OTHER, c.trace), ("noising", IDS, there)):
        found = patching(c.trace, there, TARGET, of=of, way=way, against=AGAINST, approximate=False)
        start = ends[1] if way == "denoising" else ends[0]
        span = ends[0] - ends[1] if way == "denoising" else ends[1] - ends[0]
        for i, j in ((0, 2), (1, 1), (1, len(found.columns) - 1)):
            part = {"attention": ".attn", "mlp": ".mlp"}.get(of, "")
            site = f"{found.lines[i]}{found.columns[j]}" if of == "heads" else found.lines[i] + part
            edit = patch(site, source, positions=None if of == "heads" else j)
            whole = metric(c.model.trace(base, edits=[edit]))
            assert float(found.exact[i, j]) == pytest.approx((whole - start) / span, abs=5e-3)
    if of == "residual":
        assert found.exact[-1, -1] == pytest.approx(1, abs=1e-3)


@spanning
def test_gradients_are_small_differences(name: str) -> None:
    """Of the stream and of what sub-blocks write, against steps of the same run in float64."""
    import copy

    if name == "xglm":
        pytest.skip("transformers' own XGLM cannot run in float64: its mask overflows")
    module = copy.deepcopy(build(name)).double()
    wanted = [parameter.requires_grad for parameter in module.parameters()]
    model = Model.from_module(module).view("raw")
    trace = model.trace(IDS)
    aim = Aim.of(trace, TARGET, -1, AGAINST)
    before = state_of(module)
    kinds: Any = ["resid_pre", "attn_write", "mlp_write", "z"]
    found = gradients(trace, lambda logits: aim.metric(logits[-1]), kinds)
    assert state_of(module) == before
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [parameter.requires_grad for parameter in module.parameters()] == wanted
    assert found.value == pytest.approx(metric(trace), abs=1e-4)
    n, at, step = model.n_layers - 1, 3, 1e-3
    vector = torch.linspace(-1, 1, model.d_model, dtype=torch.float64)
    moved = [
        metric(model.trace(IDS, edits=[add(f"L{n}.pre", vector, s * step, positions=at)]))
        for s in (1, -1)
    ]
    slopes = found.slopes[n, "resid_pre"][at]
    slope = float(slopes @ vector.repeat(len(slopes) // len(vector)))
    assert slope == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=2e-3)
    for key in ((n, "attn_write"), (n, "mlp_write"), (0, "resid_pre")):
        entering = key[1] == "resid_pre"
        close(found.states[key], trace.entering(key[0]) if entering else trace.parts[key])
    close(found.states[n, "z"], trace[n].z.flatten(1))


def test_a_changed_run_has_its_own_gradients() -> None:
    c = case("llama")
    edits = [add("L0", torch.ones(c.model.d_model), 2.0)]
    trace = c.model.trace(IDS, edits=edits)
    aim = Aim.of(trace, TARGET, -1)
    kinds: Any = ["resid_pre"]
    changed = gradients(trace, lambda logits: aim.metric(logits[-1]), kinds, own_actions(trace))
    close(changed.states[1, "resid_pre"], trace[1].resid_pre)


@cache
def demo() -> tuple[Trace, Trace]:
    model = Model.from_pretrained("demo", dtype=torch.float32)
    return model.trace("This movie was very"), model.trace("That story is really")


@pytest.mark.slow
def test_the_gradient_is_near_where_runs_are_near() -> None:
    """Between a run and one that differs by little the approximation is the exact grid."""
    trace, _ = demo()
    model: Any = trace.model
    near = model.trace(trace.ids, edits=[add("L0.pre", torch.linspace(-1, 1, model.d_model), 1e-3)])
    for of in ("residual", "attention", "mlp", "heads", "head positions"):
        found = patching(trace, near, " good", of=of)
        assert found.approximate is not None
        assert found.correlation is not None
        assert found.correlation > 0.98, of
        assert (found.exact - found.approximate).abs().max() < 0.1


def test_it_shows_itself() -> None:
    clean, corrupted = demo()
    for of in ("residual", "heads", "head positions"):
        found = patching(clean, corrupted, " good", of=of)
        assert found.exact.shape == (len(found.lines), len(found.columns))
        assert len(found.to_csv().splitlines()) == found.exact.numel() + 1
        assert "correlation" in str(found)
        assert "<svg" in found.plot().to_svg()
        assert found.to_dict()["of"] == of
        share = found.top(1)[0][2]
        assert abs(share) == pytest.approx(float(found.exact.abs().max()))


def test_attention_is_knocked_out() -> None:
    trace, _ = demo()
    model: Any = trace.model
    found = knockout(trace, " good", window=2, layers=[1, 3])
    assert found.change.shape == (2, len(trace))
    before = float(trace.logits[-1].softmax(-1)[model.space.id(" good")])
    for i, layers in ((0, ["L1", "L2"]), (1, ["L3"])):
        whole = model.trace(trace.ids, edits=[cut(1, -1, layers)])
        after = float(whole.logits[-1].softmax(-1)[model.space.id(" good")])
        assert float(found.change[i, 1]) == pytest.approx((after - before) / before, abs=1e-3)
    assert "cannot look" in str(found)
    assert "<svg" in found.plot().to_svg()
    assert len(found.to_csv().splitlines()) == found.change.numel() + 1
    assert [list(around(n, 3, 5)) for n in (0, 2, 4)] == [[0, 1], [1, 2, 3], [3, 4]]


def test_what_cannot_be_patched() -> None:
    clean, corrupted = demo()
    model: Any = clean.model
    cases: list[tuple[Any, str]] = [
        (lambda: patching(clean, model.trace("This"), " good"), "same length"),
        (lambda: patching(clean, corrupted, " good", of="souls"), "one of residual"),
        (lambda: patching(clean, corrupted, " good", way="up"), "denoising or noising"),
        (lambda: patching(clean, clean, " good"), "no difference"),
        (lambda: patching(clean, corrupted, " good", of="heads", positions=1), "head positions"),
        (lambda: knockout(clean, " good", window=0), "a window has"),
    ]
    for ask, said in cases:
        with pytest.raises(LexrayError, match=said):
            ask()
