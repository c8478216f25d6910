"""The batch projection against dense float64 arithmetic, family by family."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray import filters
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.read import project as module
from lexray.trace.read.project import project
from tests.families.span import spanning
from tests.vocabulary.vocabularies import worded


@cache
def model(name: str, n: int = 37) -> Model:
    return worded(name, n)


def vectors(name: str, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, model(name).d_model, generator=generator)


def dense_logits(model: Model, X: Tensor, norm: bool = True) -> tuple[Tensor, Tensor]:
    """Logits before and after the cap, in float64, without the LM head's transform."""
    a, x = model.architecture, X.double()
    if norm and a.final_norm is not None:
        x = a.final_norm(x, model.checkpoint)
    logits = x @ model.W_U.double() * a.logit_scale
    if model.b_U is not None:
        logits = logits + model.b_U.double()
    return logits, logits if a.logit_cap is None else a.logit_cap * (logits / a.logit_cap).tanh()


def check(model: Model, X: Tensor, k: int, targets: list[int], norm: bool, n_tokens: int) -> None:
    found = project(model, X, k, targets, norm=norm, bottom=True)
    logits, capped = dense_logits(model, X, norm)
    probs = capped.softmax(-1)
    seen = logits[:, :n_tokens]
    best, worst = (seen.sort(1, descending=d).values[:, :k] for d in (True, False))
    close(seen.gather(1, found.top_ids), best)
    close(seen.gather(1, found.bottom_ids), worst)
    close(found.top_probs, probs.gather(1, found.top_ids))
    close(found.bottom_probs, probs.gather(1, found.bottom_ids))
    close(found.entropy, torch.distributions.Categorical(probs=probs).entropy())
    close(found.target_probs, probs[:, targets])
    close(found.target_logits, logits[:, targets])
    above = (seen[:, None] > logits[:, targets, None]).sum(-1)
    assert torch.equal(found.target_ranks, above)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@spanning
@pytest.mark.parametrize("norm", [True, False])
def test_every_family(name: str, norm: bool) -> None:
    check(model(name), vectors(name, 4), 5, [3, 17], norm, 37)


@pytest.mark.slow
@given(
    n=st.integers(1, 9),
    k=st.integers(1, 40),
    targets=st.lists(st.integers(0, 28), max_size=3),
    seed=st.integers(0, 99),
    name=st.sampled_from(["gptj", "gemma2", "cohere", "opt-350m"]),
    warm=st.sampled_from([1, 128, 2**20]),
    norm=st.booleans(),
)
@settings(max_examples=60)
def test_sizes_chunks_and_rows_without_tokens(
    n: int, k: int, targets: list[int], seed: int, name: str, warm: int, norm: bool
) -> None:
    """Ids from 29 on stand for no token: in the softmax, but in no list and no rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WARM_SCORES", warm)
        check(model(name, 29), vectors(name, n, seed), k, targets, norm, 29)


@pytest.mark.parametrize("name", ["gptj", "gemma2", "opt-350m"])
def test_a_filter_restricts_the_lists_alone(name: str) -> None:
    m, X, ids = model(name, 29), vectors(name, 4), [2, 5, 11, 17]
    free = project(m, X, 4, [3, 17], bottom=True)
    found = project(m, X, 4, [3, 17], bottom=True, filter=filters.among(ids))
    logits, capped = dense_logits(m, X)
    order = torch.tensor(ids)[logits[:, ids].argsort(1, descending=True)]
    assert torch.equal(found.top_ids, order)
    assert torch.equal(found.bottom_ids, order.flip(1))
    close(found.top_probs, capped.softmax(-1).gather(1, order))
    for name in ("entropy", "target_probs", "target_ranks", "target_logits"):
        assert torch.equal(getattr(found, name), getattr(free, name))
    with pytest.raises(LexrayError, match="no token of"):
        project(m, X, filter=filters.ascii & ~filters.ascii)


def test_targets_of_each_row() -> None:
    X, targets = vectors("llama", 3), torch.tensor([[1], [2], [3]])
    each = project(model("llama"), X, 2, targets)
    shared = project(model("llama"), X, 2, [1, 2, 3])
    assert torch.equal(each.target_ranks[:, 0], shared.target_ranks.diagonal())
    assert torch.equal(each.target_probs[:, 0], shared.target_probs.diagonal())


def test_the_bottom_is_listed_only_when_asked_for() -> None:
    found = project(model("llama"), vectors("llama", 3), 2)
    assert found.bottom_ids.shape == found.bottom_probs.shape == (3, 0)
    assert found.target_ranks.shape == (3, 0)


def test_no_vectors() -> None:
    found = project(model("llama"), vectors("llama", 0), 2, [4])
    assert [len(part) for part in found] == [0] * len(found)


@pytest.mark.parametrize("name", ["gpt2-untied-wide", "opt-350m"])
def test_the_reading_side_has_no_last_step(name: str) -> None:
    X = vectors(name, 3)
    found = project(model(name), X, 4, [9], side="reading")
    scores = X.double() @ model(name).W_U.double()
    close(found.target_logits[:, 0], scores[:, 9])
    close(found.top_probs, scores.softmax(-1).topk(4).values)
    seen_through_input = project(model(name).view(reading="input"), X, 4, [9], side="reading")
    expected = X.double() @ model(name).W_E.double().T
    close(seen_through_input.target_logits[:, 0], expected[:, 9])


@pytest.mark.parametrize("view", [{"folded": True}, {"centred": True}, {"calibrated": True}])
def test_the_view_changes_no_probability(view: dict[str, bool]) -> None:
    X = vectors("gpt2", 3)
    ours, plain = project(model("gpt2").view(**view), X, 4), project(model("gpt2"), X, 4)
    assert torch.equal(ours.top_probs, plain.top_probs)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert-biased"])
def test_the_transform_is_the_encoders_own(name: str) -> None:
    X = vectors(name, 3).double()
    found = project(model(name), X, 4, [5], transform=True)
    close(found.top_probs, model(name).logits(X).softmax(-1).topk(4).values)


def test_mistakes() -> None:
    X = vectors("llama", 2)
    with pytest.raises(LexrayError, match="k must be at least 1"):
        project(model("llama"), X, 0)
    with pytest.raises(LexrayError, match=r"targets 37 to 37 are no rows .* 0–36"):
        project(model("llama"), X, 1, [37])
    with pytest.raises(LexrayError, match="no transform in its LM head"):
        project(model("llama"), X, 1, transform=True)
    with pytest.raises(LexrayError, match="1 NaN"):
        project(model("llama"), torch.cat([X[:1], X[:1].index_fill(1, torch.tensor(3), torch.nan)]))
