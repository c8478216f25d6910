"""Roles of heads: against dense float64, transformers' own attention, and planted ones."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.roles.catalogue import catalogue
from lexray.roles.induction import induction, lone, match_of, sample
from lexray.roles.patterns import all_looks, by_chance, looks, pattern, repeated_tokens, states_of
from lexray.roles.spectrum import copying, eigenvalues
from lexray.space.area import area
from tests.dense import NAMES as DENSE
from tests.dense import Dense, dense
from tests.families.zoo import build
from tests.roles.planting import fresh, reopened, write_head
from tests.vocabulary.vocabularies import worded

EVERY_KIND = [
    *("gpt2", "gptj", "gpt-neo", "neox", "opt", "bloom", "llama", "llama-yarn", "mistral"),
    *("qwen3", "qwen2-moe", "gemma2", "falcon-rw", "olmo2", "stablelm-parallel"),
]


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


@pytest.mark.parametrize("name", EVERY_KIND)
def test_the_first_layer_looks_where_transformers_does(name: str) -> None:
    """There lone tokens at their places are all there is, so the pattern is the real one."""
    model = opened(name)
    text = repeated_tokens(model)
    ids = text.ids[0]
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
    equal = by_chance(text, causal=True)
    assert 0 < equal.previous < 0.2


def test_a_planted_head_that_looks_one_place_back() -> None:
    """Learned positions: queries of a place answer to keys of the one before."""
    model = fresh("gpt2")
    with torch.no_grad():
        table = model.checkpoint.module.transformer.wpe.weight  # type: ignore[attr-defined]
        r = model.d_head
        angles = torch.arange(len(table), dtype=torch.float64)[:, None] * torch.tensor(
            [0.5 ** (i / 2) * 2.0 for i in range(r // 2)], dtype=torch.float64
        )
        places = torch.zeros(len(table), model.d_model, dtype=torch.float64)
        places[:, : r // 2], places[:, r // 2 : r] = angles.cos(), angles.sin()
        table.copy_(20 * places)
    step = torch.tensor([0.5 ** (i / 2) * 2.0 for i in range(r // 2)], dtype=torch.float64)
    K = torch.zeros(model.d_model, r, dtype=torch.float64)
    K[range(r), range(r)] = 4
    turn = torch.zeros(r, r, dtype=torch.float64)
    half = range(r // 2)
    other = range(r // 2, r)
    turn[half, half] = turn[other, other] = step.cos()
    turn[half, other], turn[other, half] = -step.sin(), step.sin()
    write_head(model, 1, 2, Q=K @ turn * 3, K=K)
    again = reopened(model)
    found = catalogue(again, measure=False)
    scores = {entry.address: entry.looks.previous for entry in found.entries}
    assert max(scores, key=lambda address: scores[address]) == "L1H2"
    (role,) = [r for r in found["L1H2"].roles if r.name == "previous token"]
    assert role.q < 0.01
    assert role.score > 5 * role.chance
    assert [entry.address for entry in found.having("previous token")] == ["L1H2"]
    plain = catalogue(fresh("gpt2"), measure=False)
    assert plain.having("previous token") == []


def unfolded(model: Model, layer: int, W: Tensor) -> Tensor:
    """What is to be stored so that the norm's gain makes W of it."""
    norm = model.architecture.blocks[layer].attention.pre_norm
    gain = None if norm is None else norm.read_gain(model.checkpoint)
    return W if gain is None else W / gain[:, None]


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2-moe", "phi", "neox", "bloom"])
def test_a_planted_induction_pair(name: str) -> None:
    """The first head moves a code of each token; the second one's queries are the same code."""
    model, generator = fresh(name), torch.Generator().manual_seed(1)
    heads = [str(head.address) for layer in model.layers for head in layer.heads]
    looked = [0.9 if address == "L0H1" else 0.01 for address in heads]
    before, _ = induction(model, looked)
    r, d, last = model.d_head, model.d_model, model.n_layers - 1
    ids = sample(model)
    V, G = torch.randn(d, r, generator=generator), torch.randn(r, d, generator=generator)
    G = G - G.mean(1, keepdim=True)
    write_head(model, 0, 1, V=unfolded(model, 0, V), O=G)
    seen = reopened(model)
    entering, later = (lone(seen, ids, first=first) for first in (True, False))
    Q, K = torch.linalg.pinv(later) @ (entering @ V), torch.linalg.pinv(G)
    write_head(model, last, 2, Q=unfolded(model, last, Q), K=unfolded(model, last, K))
    through, _ = induction(reopened(model), looked)
    best = max(range(len(heads)), key=lambda i: through[i].effect)
    found = through[heads.index(f"L{last}H2")]
    assert heads[best] == f"L{last}H2"
    assert found.mover == "L0H1"
    assert found.z > 4
    assert found.effect > 2 * max(match.effect for match in before)


def test_a_match_is_that_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    S = (q @ k.T).numpy()
    S = S - S.mean(1, keepdims=True)
    others = S[~np.eye(12, dtype=bool)]
    expected = (np.diag(S).mean() - others.mean()) / others.std(ddof=1)
    assert match_of(q, k).effect == pytest.approx(expected)
    assert match_of(q, q * 0).effect == 0


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


@pytest.mark.parametrize("address", ["L1H2", "L1N3"])
def test_cards(address: str) -> None:
    card = opened("llama")[address].describe()
    assert address in str(card)
    data = card.to_dict()
    assert {link["reader"].partition(".")[0] for link in data["writers"]} == {address}
    assert data["address"] == address
    assert card.to_csv().count("\n") > 10


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
