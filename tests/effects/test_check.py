"""Checks and the backward lens, against their definitions."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from lexray.edits import ablate, add
from lexray.effects.aim import Aim
from lexray.effects.check import Bench, Spot
from lexray.errors import LexrayError
from lexray.families import Experts, FeedForward
from lexray.model.anatomy import Anatomy
from lexray.model.model import Model
from lexray.result.check import Check
from lexray.trace.apply.gradients import gradients
from lexray.trace.record.attention import configure
from lexray.trace.record.experts import SETTING
from lexray.trace.trace import Trace
from tests.families.apart import with_own_layers
from tests.families.oracles import close
from tests.families.span import spanning
from tests.families.zoo import build
from tests.trace.test_proof import IDS

TEXT = (
    "This movie was a very good film. The story is about a man who goes home to his family and "
    "finds that nothing is as it was. I liked the actors and the music, but the end was bad."
)


@cache
def demo() -> Model:
    return Model.from_pretrained("demo", dtype=torch.float32)


@cache
def found() -> Check:
    return demo().check(["L3N17", "L2H1", "L2N40"], TEXT, others=2)


@pytest.mark.slow
def test_a_line_for_each() -> None:
    check = found()
    assert [c.address for c in check] == ["L3N17", "L2H1", "L2N40"]
    assert len(check.others) == 6
    assert all(0 <= c.area <= 1 and 0 <= c.overlap <= 1 for c in (*check, *check.others))
    assert check["L2H1"].places <= 4
    assert len({c.address for c in (*check, *check.others)}) >= 8
    shown = str(check)
    assert "6 others" in shown
    assert "L3N17" in check.to_csv()
    assert check.to_dict()["checked"][0]["address"] == "L3N17"
    with pytest.raises(LexrayError, match="was not checked"):
        check["L0N0"]


def test_the_figures_are_those_of_whole_runs() -> None:
    """The area by pairs, the overlap by sets, at one place, from whole forward passes."""
    model, k = demo(), 7
    ids = model.vocabulary.encode(TEXT, special=True)[:12]
    bench = Bench(model, 3, [ids], k, removing=True, places=1)
    neuron = model.neuron("L3N17")
    (spot,) = bench._spots(neuron)
    trace = model.trace(ids)
    coefficients = trace[3].coefficients
    assert coefficients is not None
    p = int(coefficients[1:, 17].abs().argmax()) + 1
    assert (spot.position, spot.strength) == (p, pytest.approx(float(coefficients[p, 17])))
    plain = trace.logits[p].softmax(-1)
    without = model.trace(ids, edits=[ablate("L3N17", positions=p)]).logits[p].softmax(-1)
    fall = (plain - without)[: model.space.n_rows]
    close(bench._change(neuron, spot), fall)
    reading = neuron.value.top(5)
    promised = bench._promise(neuron, Spot(0, p, 1.0))
    assert promised[reading.top[0].token.id] == pytest.approx(reading.top[0].score, rel=1e-3)
    checked = bench.check(neuron, torch.Generator().manual_seed(0))
    sign = 1 if spot.strength > 0 else -1
    scores, known = sign * promised, bench.known
    wanted = set(fall.topk(k).indices.tolist())
    inside = [float(scores[i]) for i in wanted if known[i]]
    outside = scores[known & ~torch.isin(torch.arange(len(scores)), torch.tensor(list(wanted)))]
    below = sum(float((outside < x).sum()) + 0.5 * float((outside == x).sum()) for x in inside)
    assert checked.area == pytest.approx(below / (len(inside) * len(outside)), abs=1e-6)
    top = scores.masked_fill(~known, -torch.inf).topk(k).indices.tolist()
    assert checked.overlap == pytest.approx(len(wanted & set(top)) / k)


def test_parts_check_themselves() -> None:
    one = demo()["L3N17"].check(TEXT, others=2)
    assert one[0] == found()["L3N17"] or one[0].area == pytest.approx(found()["L3N17"].area)
    more = demo()["L2H1"].check(["This movie was", "I liked the"], others=0, how="amplify")
    assert more.others_area is None
    assert "doubled" in str(more)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: demo().check([], TEXT), "at least one"),
        (lambda: demo().check("L3", TEXT), "cannot be checked"),
        (lambda: demo().check("L9N0", TEXT), "no layer 9"),
        (lambda: demo().check("L3N0", TEXT, how="look"), "remove or amplify"),
        (lambda: demo().check("L3N0", TEXT, k=0), "at least 1"),
        (lambda: demo().check("L3N0", ["a"]), "at least two tokens"),
        (lambda: Model.from_module(build("bert")).check("L0N0", "x"), "no causal"),
        (lambda: Anatomy(demo().checkpoint)["L3N0"].check(TEXT), "weights alone"),
    ],
)
def test_what_cannot_be_checked(ask: Any, said: str) -> None:
    with pytest.raises(LexrayError, match=said):
        ask()


@spanning
def test_imprints_rebuild_the_gradients_of_the_matrices(name: str) -> None:
    """Σ over positions of the outer products is autograd's gradient of W_out and W_in."""
    if name == "xglm":
        pytest.skip("transformers' own XGLM cannot run in float64: its mask overflows")
    module = with_own_layers(copy.deepcopy(build(name)).double())
    model = Model.from_module(module).view("raw")
    n = model.n_layers - 1
    ff = model.architecture.blocks[n].ff
    trace = model.trace(IDS)
    if isinstance(ff, Experts) and ff.own_norm is not None:
        with pytest.raises(LexrayError, match="a norm of their own"):
            trace.backward(7)
        return
    names: Any = ["mlp_write", "mlp_in", "coefficients", "pre", "shared_weight"]

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return -logits[-1].log_softmax(-1)[7]

    found = gradients(trace, loss, names)
    units = [(ff, slice(None))] if isinstance(ff, FeedForward) else list(in_mixture(ff, trace, n))
    with configure(module, SETTING, "eager"):  # grouped matrices know no float64
        out = module(input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, len(IDS)).long())
    linears = [linear for unit, _ in units for linear in (unit.w_out, unit.w_in)]
    theirs = [module.get_parameter(linear.weight) for linear in linears]
    grads = list(torch.autograd.grad(loss(out.logits[0].double()), theirs))
    assert found.states[n, "coefficients"].shape == found.slopes[n, "pre"].shape
    for i, (unit, columns) in enumerate(units):
        coefficients, slopes = found.states[n, "coefficients"], found.slopes[n, "pre"]
        if isinstance(columns, torch.Tensor):  # which of the side by side are this expert's
            coefficients, slopes = (
                (
                    x[:, : columns.shape[1] * unit.d_mlp].unflatten(1, (-1, unit.d_mlp))
                    * columns[..., None]
                ).sum(1)
                for x in (coefficients, slopes)
            )
        else:
            coefficients, slopes = coefficients[:, columns], slopes[:, columns]
        ours = [
            coefficients.T @ found.slopes[n, "mlp_write"],
            found.states[n, "mlp_in"].T @ slopes,
        ]
        for linear, grad, mine in zip((unit.w_out, unit.w_in), grads[2 * i :], ours, strict=False):
            whole = grad if linear.expert is None else grad[linear.expert]
            plane = whole if linear.in_first else whole.T
            if linear.rows is not None:  # all experts' end to end
                plane = plane[linear.rows[0] :][: linear.rows[1]]
            size = model.d_model if linear is unit.w_out else unit.d_mlp
            torch.testing.assert_close(
                plane[:, linear.start :: linear.step][:, :size], mine, rtol=1e-3, atol=1e-5
            )


def in_mixture(ff: Experts, trace: Trace, n: int) -> Iterator[tuple[FeedForward, Any]]:
    """Experts with where they were chosen (position, choice), and the shared one's columns."""
    did = trace[n].experts
    assert did is not None
    for e in sorted(set(did.chosen.flatten().tolist())):
        yield ff.experts[e], did.chosen == e
    if ff.shared is not None:
        yield ff.shared, slice(-ff.shared.d_mlp, None)


def test_the_backward_lens() -> None:
    trace = demo().trace("This movie was")
    lens = trace.backward(" bad", layers=[0, 2, 3], k=4)
    assert lens.at(3, -1).written.tokens[0] == "·bad"
    assert lens.at(3, 0).written_size == pytest.approx(0, abs=1e-9)
    assert lens.at(2, -1).read.tokens[0] == "·was"
    assert len(lens.imprints) == 9
    target = demo().space.id(" bad")
    assert lens.loss == pytest.approx(-float(trace.logits[-1].log_softmax(-1)[target]), abs=1e-4)
    assert len(lens.to_csv().splitlines()) == 10
    assert "written into values" in str(lens)
    assert "·bad" in lens.to_html()
    assert "<svg" in lens.plot().to_svg()
    assert lens.to_dict()["imprints"][0]["layer"] == 0
    with pytest.raises(LexrayError, match="nothing was asked"):
        lens.at(1, 0)
    # a step along what would be written lowers the loss
    aim = Aim.of(trace, " bad", -1)
    names: Any = ["mlp_write"]
    slope = gradients(trace, lambda x: -x[-1].log_softmax(-1)[aim.target.id], names)
    step = -slope.slopes[2, "mlp_write"][-1]
    after = demo().trace("This movie was", edits=[add("L2", step / step.norm(), positions=-1)])
    assert -float(after.logits[-1].log_softmax(-1)[aim.target.id]) < lens.loss
