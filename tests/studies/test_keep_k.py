"""keep-k against dense float64 arithmetic, and its rules both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.model.model import Model
from lexray.result.charts.series import Curve, Dots
from lexray.studies import find, keep_k
from lexray.studies.keep_k import HIDDEN, LARGE, NORMAL, SMALL, UNIT, VALUES
from lexray.studies.shared.hidden import hidden_states
from tests.dense import dense
from tests.families.span import spanning
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded


def kept(A: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    out = np.zeros_like(A)
    for i, row in enumerate(A):
        at = np.argsort(-np.abs(row), kind="stable")[:k]
        out[i, at] = row[at]
    return out


def reference(X: Tensor, A: Tensor, B: Tensor, k: int) -> float:
    x, a, b = (M.double().numpy() for M in (X, A, B))
    truth, found = (x @ x.T).ravel(), (kept(a, k) @ kept(b, k).T).ravel()
    size = np.sqrt((truth @ truth) * (found @ found))
    return float(truth @ found / size) if size else 0.0


@settings(max_examples=25)
@given(st.integers(2, 9), st.integers(2, 6), st.integers(2, 40), st.integers(0, 999))
def test_cosines_of_random_matrices(n: int, d: int, e: int, seed: int) -> None:
    torch.manual_seed(seed)
    X, A, B = torch.randn(n, d), torch.randn(n, e), torch.randn(n, e)
    ks = sorted({1, 1 + seed % e, e})
    transpose, pinv = keep_k.cosines(X, A, B, ks)
    for k, t, p in zip(ks, transpose, pinv, strict=True):
        assert t == pytest.approx(reference(X, A, A, k), abs=1e-5)
        assert p == pytest.approx(reference(X, A, B, k), abs=1e-5)


def test_columns_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    X, A, B = torch.randn(5, 3), torch.randn(5, 50), torch.randn(5, 50)
    whole = keep_k.cosines(X, A, B, [3, 20, 50])
    monkeypatch.setattr(keep_k, "COLUMNS_AT_ONCE", 7)
    for one, other in zip(whole, keep_k.cosines(X, A, B, [3, 20, 50]), strict=True):
        assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt2-untied-wide", "opt-350m"])
def test_a_model_against_its_own_tensors(name: str) -> None:
    model, E = worded(name), dense(build(name)).E_out
    result = find("keep-k")(model, n=6, seed=3)
    drawn, _ = keep_k.distributions(model, keep_k.KeepK(seed=3, n=6))
    inverse = torch.linalg.pinv(E).T
    assert result.numbers["k"] == [10, 37]
    assert set(drawn) == {NORMAL, VALUES, HIDDEN, UNIT}
    assert drawn[UNIT].norm(dim=1).tolist() == pytest.approx([1] * 6)
    for distribution, X in drawn.items():
        scores = result.numbers["cosine"][distribution]
        x = X.double()
        for i, k in enumerate((10, 37)):
            want = reference(x, x @ E, x @ E, k), reference(x, x @ E, x @ inverse, k)
            assert (scores["transpose"][i], scores["pinv"][i]) == pytest.approx(want, abs=1e-4)
        exact = scores["pinv"][1] == pytest.approx(1, abs=1e-4)
        assert exact == (int(torch.linalg.matrix_rank(E)) == model.d_model)


def test_values_are_the_models_own() -> None:
    model = worded("llama")
    values = torch.stack(list(dense(build("llama")).vectors("value", False).values()))
    found = keep_k.random_values(model, 9, seed=1)
    assert found.shape == (9, model.d_model)
    distances = torch.cdist(found.double(), values)
    assert float(distances.amin(1).max()) < 1e-6
    assert len(set(distances.argmin(1).tolist())) == 9
    assert len(keep_k.random_values(model, 10**6, seed=1)) == len(values)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_hidden_states_are_what_the_blocks_give(name: str) -> None:
    model, module = worded(name), build(name)
    seen: list[Tensor] = []
    blocks = next(m for m in module.modules() if isinstance(m, torch.nn.ModuleList))

    def record(_: Any, __: Any, out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out).reshape(-1, model.d_model))

    hooks = [block.register_forward_hook(record) for block in blocks]
    found = hidden_states(model, "law and the city")
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found, torch.cat(seen))


@spanning
def test_every_family_has_hidden_states(name: str) -> None:
    model = worded(name)
    states = hidden_states(model)
    assert states.shape[1] == model.d_model
    assert len(states) <= 256 * model.n_layers
    assert states.isfinite().all()


def test_a_model_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from lexray.errors import LexrayError

    def refuse(model: Model) -> None:
        raise LexrayError("no such class")

    monkeypatch.setattr("lexray.trace.record.run.module_of", refuse)
    result = find("keep-k")(worded("gpt2"), n=5)
    assert set(result.numbers["cosine"]) == {NORMAL, VALUES}
    assert result.evidence.notes == ("no hidden states: no such class",)
    assert result.findings[-1].verdict == "not testable"


def test_the_seed_decides() -> None:
    study, model = find("keep-k"), worded("gpt2")
    assert study(model, n=5, seed=1).numbers == study(model, n=5, seed=1).numbers
    assert study(model, n=5, seed=1).numbers != study(model, n=5, seed=2).numbers


def test_ks_fit_the_vocabulary() -> None:
    assert keep_k.choose_ks(37, 0) == [10, 37]
    assert keep_k.choose_ks(50257, 0) == sorted({*SMALL, 1000, *LARGE, 50257})
    assert keep_k.choose_ks(500, 100) == [100, 500]


KS = keep_k.choose_ks(50257, 0)


def scores(transpose: float, pinv: float, hidden: float) -> keep_k.Scores:
    both = {"transpose": [transpose] * len(KS), "pinv": [pinv] * len(KS)}
    return {
        NORMAL: both,
        VALUES: both,
        HIDDEN: {"transpose": [hidden] * len(KS), "pinv": [pinv] * len(KS)},
    }


def reversing() -> keep_k.Scores:
    """As in the paper: Eᵀ ahead up to k = 1000, behind from then on, but for hidden states."""
    falls, rises = [0.8 if k <= 1000 else 0.2 for k in KS], [min(1, k / 5000) for k in KS]
    both = {"transpose": falls, "pinv": rises}
    return {NORMAL: both, VALUES: both, HIDDEN: {"transpose": [0.9] * len(KS), "pinv": rises}}


def verdicts(ks: list[int], found: keep_k.Scores) -> list[str]:
    return [f.verdict for f in keep_k.findings(ks, 50257, found)]


def test_rules_both_ways() -> None:
    yes, no, unknown = "holds", "does not hold", "not testable"
    assert verdicts(KS, scores(0.8, 0.1, 0.9)) == [yes, yes, no, yes]
    assert verdicts(KS, scores(0.1, 0.8, 0.05)) == [no, no, no, no]
    assert verdicts(KS, scores(0.5, 0.51, 0.5)) == [no, yes, no, no]
    assert verdicts(KS, reversing()) == [yes, yes, yes, yes]
    few = {name: {e: s[:2] for e, s in both.items()} for name, both in scores(1, 0, 1).items()}
    assert verdicts([10, 37], few) == [unknown, yes, unknown, unknown]


def test_rules_do_not_look_at_unit_length() -> None:
    low = {"transpose": [0.0] * len(KS), "pinv": [0.99] * len(KS)}
    assert verdicts(KS, reversing() | {UNIT: low}) == verdicts(KS, reversing())
    assert (
        "(0.00 at unit length)" in keep_k.findings(KS, 50257, reversing() | {UNIT: low})[3].measured
    )


def test_where_the_order_changes_is_said() -> None:
    large = keep_k.findings(KS, 50257, reversing())[2]
    assert "E⁺ leads from k = 1024 on" in large.measured
    assert "E⁺ never leads" in keep_k.findings(KS, 50257, scores(0.8, 0.1, 0.9))[2].measured


def test_rules_without_hidden_states() -> None:
    found = {name: both for name, both in scores(0.8, 0.1, 0.9).items() if name != HIDDEN}
    assert verdicts(KS, found)[1] == "not testable", "two of three distributions are not enough"
    worse = {name: both for name, both in scores(0.1, 0.8, 0.9).items() if name != HIDDEN}
    assert verdicts(KS, worse)[1] == "does not hold"


def test_the_figure_marks_what_was_published() -> None:
    figure = keep_k.draw(KS, scores(0.8, 0.1, 0.9))
    (panel,) = figure.panels
    *lines, star = panel.series
    assert isinstance(star, Dots)
    assert (list(star.x), list(star.y)) == ([1000, 1000], [0.83, 0.10])
    assert len(lines) == 6
    assert {line.dash for line in lines if isinstance(line, Curve)} == {"solid", "dash"}
