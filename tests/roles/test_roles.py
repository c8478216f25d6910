"""Roles of heads: against dense float64, transformers' own attention, and planted ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.roles.catalogue import catalogue
from lexray.roles.induction import match_of
from lexray.roles.patterns import all_looks, by_chance, looks, pattern, repeated_tokens, states_of
from lexray.roles.spectrum import copying, eigenvalues
from lexray.space.area import area
from tests.dense import NAMES as DENSE
from tests.dense import Dense, dense
from tests.families.span import spanning
from tests.families.zoo import build
from tests.roles.planting import fresh, reopened, write_head
from tests.vocabulary.vocabularies import worded


@cache
def opened(name: str) -> Model:
    return worded(name)


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_eigenvalues_are_those_of_the_whole_matrix(name: str, folded: bool) -> None:
    model = opened(name).view(folded=folded)
    layer = model.n_layers - 1
    head = model.head(f"L{layer}H1")
    whole = torch.linalg.eigvals(reference(name).vo(layer, 1, folded=folded))
    r = min(head.d_head, model.d_model)
    theirs = whole[whole.abs().argsort(descending=True)][:r]
    ours = eigenvalues(head)
    scale = float(theirs.abs().max())
    np.testing.assert_allclose(ours.abs(), theirs.abs(), atol=1e-5 * scale)
    np.testing.assert_allclose(float(ours.real.sum()), float(theirs.real.sum()), atol=1e-4 * scale)
    score = float(whole.real.sum() / whole.abs().sum())
    assert copying(head).score == pytest.approx(score, abs=1e-4)


def test_heads_that_copy_and_heads_that_suppress() -> None:
    model = fresh("llama")
    E = model.W_U.double()
    U, _, _ = torch.linalg.svd(E, full_matrices=False)
    W = U[:, : model.d_head]
    write_head(model, 1, 2, V=W, O=W.T)
    write_head(model, 1, 1, V=W, O=-W.T)
    again = reopened(model)
    copies = copying(again.head("L1H2"))
    assert copies.score == pytest.approx(1, abs=1e-6)
    assert copies.z > 2
    # heads 0–1 and 2–3 share their values, so L1H1 reads what was written last
    assert copying(again.head("L1H1")).score == pytest.approx(-1, abs=1e-6)
    found = catalogue(again, measure=False)
    assert "copying" in [role.name for role in found["L1H2"].roles] or copies.z < 3


@spanning
def test_the_first_layer_looks_where_transformers_does(name: str) -> None:
    """There lone tokens at their places are all there is, so the pattern is the real one."""
    model = opened(name)
    ids = repeated_tokens(model).ids[0][:30]  # LongRoPE's frequencies change after 32 places
    x = states_of(model, ids, first=True)
    real = model.trace(ids.tolist(), what=["attention"], special=False)[0].pattern
    for head in model.view(folded=True).layers[0].heads:
        ours = pattern(head, x, causal=model.architecture.causal)
        np.testing.assert_allclose(ours, real[head.index], atol=2e-2)


def test_repeated_text() -> None:
    model = opened("llama")
    text = repeated_tokens(model)
    n = text.length
    assert torch.equal(text.ids[:, :n], text.ids[:, n:])
    assert all(len(set(row.tolist())) == n for row in text.ids[:, :n])
    # a head that looks at what followed the first occurrence
    A = torch.zeros(1, text.n, text.n)
    A[0, torch.arange(n, text.n), torch.arange(1, n + 1)] = 1
    seen = looks(A, text)
    assert seen.follower == pytest.approx(1)
    assert seen.double == 0
    back = torch.diag_embed(torch.ones(text.n - 1), offset=-1)[None]
    assert looks(back, text).previous == pytest.approx(1)
    spec = model.architecture.blocks[0].attention
    equal = by_chance(text, spec, causal=True)
    assert 0 < equal.previous < 0.2
    assert by_chance(text, replace(spec, window=3), causal=True).previous == pytest.approx(1 / 3)
    assert float(equal.errors[1]) == pytest.approx(
        np.std([1 / (i + 1) for i in range(9, text.n)]) / (text.n - 9) ** 0.5
    )


def test_a_match_is_that_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    S = (q @ k.T).numpy()
    S = S - S.mean(1, keepdims=True)
    others = S[~np.eye(12, dtype=bool)]
    expected = (np.diag(S).mean() - others.mean()) / others.std(ddof=1)
    found = match_of(q, k)
    assert found.effect == pytest.approx(expected)
    assert match_of(q, q * 0).effect == 0
    # keys turned at random, many times: the same spread of effects as the formula has
    turns = torch.linalg.qr(torch.randn(4000, 5, 5, generator=generator, dtype=torch.float64)).Q
    own = torch.einsum("nr,mrs,ns->mn", q, turns, k - k.mean(0)).mean(1) / others.std(ddof=1)
    assert found.z == pytest.approx(expected / np.sqrt(1 / 12 + float(own.var())), rel=0.05)


def test_areas() -> None:
    assert area(torch.tensor([1.0, 2, 3, 4]), torch.tensor([False, False, True, True])) == 1
    assert area(torch.ones(2), torch.tensor([True, False])) == 0.5
    assert np.isnan(area(torch.tensor([1.0, 2]), torch.tensor([True, True])))


def test_a_measured_catalogue() -> None:
    model = opened("llama")
    text = repeated_tokens(model)
    found = model.catalogue()
    real = torch.stack([model.trace(ids.tolist(), special=False)[1].pattern[3] for ids in text.ids])
    did = found["L1H3"].did
    assert did is not None
    assert did.looks.previous == pytest.approx(looks(real, text).previous, abs=1e-5)
    assert did.looks.follower == pytest.approx(looks(real, text).follower, abs=1e-5)
    assert set(found.agreement) == {
        *("previous token", "first token", "duplicate", "induction", "copying")
    }
    told = found.agreement["previous token"]
    measured = [e.did.looks.previous for e in found.entries if e.did is not None]
    ranks = [
        np.argsort(np.argsort(x)) for x in ([e.looks.previous for e in found.entries], measured)
    ]
    assert told.rank == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert told.heads == sum(x > 0.3 for x in measured)
    assert "nan" not in str(found)
    assert len(found.to_pandas()) == 8
    page = found.to_html()
    assert "L1H3" in page
    assert 'type="search"' in page
    static = all_looks(model, text)
    assert [entry.looks.previous for entry in found.entries] == [s.previous for s in static]
    with pytest.raises(LexrayError, match="L9H9"):
        found["L9H9"]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["L1H2", "L1N3"])
def test_cards(address: str) -> None:
    card = opened("llama")[address].describe()
    assert address in str(card)
    data = card.to_dict()
    assert {link["reader"].partition(".")[0] for link in data["writers"]} == {address}
    assert data["address"] == address
    assert card.to_csv().count("\n") > 10


@pytest.mark.slow
def test_a_card_names_the_tokens_that_move_a_head() -> None:
    model, r = opened("llama").view(folded=True), reference("llama")
    block = r.blocks[1]
    W = block.columns("V", 2, True) @ block.columns("O", 2, True)
    sizes = (r.E_out.T @ W).norm(dim=1)
    best = int(sizes.argmax())
    salient = model["L1H2"].describe(measure=False).to_dict()["salient"]
    assert salient[0]["token"] == model.vocabulary.shown(best)
    expected = float(sizes[best] / sizes.square().mean().sqrt())
    assert salient[0]["size"] == pytest.approx(expected, rel=1e-4)
