"""The embedding space of a model: legibility, rows without tokens, dtypes, and caches."""

from __future__ import annotations

from copy import deepcopy
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray import filters
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.space import space as space_module
from lexray.space.effective import effective_rows
from tests.dense import dense
from tests.families.zoo import build
from tests.saved import save
from tests.vocabulary.vocabularies import vocabulary, worded

VIEWS: list[dict[str, Any]] = [
    {},
    {"folded": True},
    {"centred": True},
    {"inverse": "pinv"},
    {"calibrated": True},
    {"reading": "input"},
    {"folded": True, "calibrated": True},
    {"folded": True, "centred": True, "inverse": "pinv", "calibrated": True, "reading": "input"},
    {"offset": 3},
]


def everything(model: Model) -> dict[str, Any]:
    """A little of all that depends on the view."""
    kept = filters.among(range(3, 30))
    read = {
        address: model[address].top(5, filter=each)
        for address, each in (("L0N3.key", kept), ("L1N3.value", None), ("L1N3.value", kept))
    }
    pairs = [model["L1H1"].vo.top(8, filter=kept), model["L1H1"].qk.top(8)]
    return {
        "vectors": [(r.tokens, [s.score for s in r.top], r.legibility) for r in read.values()],
        "pairs": [[(p.score, p.row.id, p.col.id) for p in found] for found in pairs],
        "nearest": [(h.address, h.score) for h in model.nearest("L0N3.key", 1, among=["values"])],
        "lookup": [(h.address, h.score) for h in model.lookup([5]).top(1)],
    }


# ---------------------------------------------------------------------- caches


@pytest.mark.slow
def test_views_share_a_cache_and_never_each_others_answers() -> None:
    """Raw and folded are read again after all others; all as a fresh model would answer."""
    module = build("qwen3")
    shared = Model.from_module(module).view("raw")
    fresh = [everything(Model.from_module(module).view("raw").view(**view)) for view in VIEWS]
    for view, expected in [*zip(VIEWS, fresh, strict=True), (VIEWS[1], fresh[1])]:
        seen = shared.view(**view)
        assert seen.cache is shared.cache
        assert everything(seen) == expected, view
    assert everything(shared) == fresh[0]
    assert len({str(answer) for answer in fresh}) == len(VIEWS)


def test_raw_folded_raw() -> None:
    model = Model.from_module(build("gpt2")).view("raw")
    kept = filters.among([1, 2, 3])
    first = model["L0N0.value"].top(3), model["L0N0.value"].top(3, filter=kept)
    folded = model.view(folded=True)
    other = folded["L0N0.value"].top(3), folded["L0N0.value"].top(3, filter=kept)
    back = folded.view(folded=False)
    again = back["L0N0.value"].top(3), back["L0N0.value"].top(3, filter=kept)
    assert first == again
    assert first != other


def test_the_embedding_is_read_once(tmp_path: Path) -> None:
    save("llama", tmp_path)
    model = Model.from_pretrained(tmp_path).view("raw")
    model["L0N0.value"].top(3)
    before = model.checkpoint.bytes_read
    for view in ({}, {"centred": True}, {"inverse": "pinv"}, {"offset": 2}):
        model.view(**view)["L0N0.value"].top(3)
    assert model.checkpoint.bytes_read - before == 4 * 24 * 4, "four times one vector"


def test_offsets_share_their_sides() -> None:
    model = Model.from_module(build("llama")).view("raw")
    kept = filters.among(range(9))
    model["L0H0"].qk.top(2, filter=kept)
    before = len(model.cache)
    for offset in range(1, 5):
        model.view(offset=offset)["L0H0"].qk.top(2, filter=kept)
    assert len(model.cache) == before


# ---------------------------------------------------------------------- legibility


TELLING = [1, 2, 5, 7, 15]
"""·law ·Law ·walk ·walked ·cities: the other tokens are pieces, markup, letters, bytes."""


def legibility(E: Tensor, ids: list[int], n_tokens: int = 37, telling: Any = TELLING) -> float:
    """Pair by pair: the cosines of the first ten words of a list, less that of all their pairs."""
    centred = E - E[:, :n_tokens].mean(1, keepdim=True)

    def cosines(some: list[int]) -> list[float]:
        pairs = [(centred[:, i], centred[:, j]) for i, j in permutations(some, 2)]
        return [float(a @ b / (a.norm() * b.norm())) for a, b in pairs]

    usual = cosines(telling)
    expected = sum(usual) / len(usual)
    words = [i for i in ids[:30] if i in telling][:10]
    n = max(len(words), min(5, len(ids)))
    return sum(cosine - expected for cosine in cosines(words)) / (n * (n - 1))


@pytest.mark.parametrize("n_tokens", [37, 21])
def test_legibility_is_the_mean_cosine_of_words_above_chance(n_tokens: int) -> None:
    model = worded("llama", n_tokens)
    E = dense(build("llama")).E_out
    lists = [[1, 5, 7], [20, 2, 7], [1, 2, 19], [15, 7, 1]]
    found = model.space.legibility(torch.tensor(lists)).tolist()
    assert found == pytest.approx([legibility(E, ids, n_tokens) for ids in lists], abs=1e-5)
    assert min(map(abs, found)) > 1e-3
    assert model.space.legibility(torch.tensor([[1], [5]])).tolist() == [0, 0]
    assert model.space.legibility(torch.zeros(0, 5, dtype=torch.long)).shape == (0,)


def test_pieces_bytes_and_markup_do_not_score() -> None:
    """A list of them has no legibility, and one word among them makes none."""
    model = worded("llama")
    silent = [[13, 11, 12, 8, 9, 10], [16, 17, 18, 19, 20, 21], [0, 3, 4, 6, 14, 1]]
    assert model.space.legibility(torch.tensor(silent)).tolist() == [0, 0, 0]


def test_ten_words_among_thirty_tokens_count() -> None:
    words = tuple(f"Ġword{chr(97 + i)}" for i in range(12))
    n = 25 + len(words)
    model = worded("llama", 25, words)
    telling = [*TELLING, *range(25, n)]
    E = dense(build("llama")).E_out
    ids = [25, 1, 8, 9, 10, *range(26, 34), 5, 7, *range(34, 37), 15]
    (found,) = model.space.legibility(torch.tensor([ids])).tolist()
    assert found == pytest.approx(legibility(E, ids, n, telling), abs=1e-5)
    (same,) = model.space.legibility(torch.tensor([ids[:12]])).tolist()
    assert same == pytest.approx(legibility(E, ids[:12], n, telling), abs=1e-5)
    far = [*[8, 9, 10] * 10, *telling]
    assert model.space.legibility(torch.tensor([far])).tolist() == [0]


def test_legibility_is_zero_on_average() -> None:
    """Over all pairs of words, exactly: that is what "against random lists" means."""
    model = worded("gpt2")
    pairs = torch.combinations(torch.tensor(TELLING), 2)
    assert float(model.space.legibility(pairs).mean()) == pytest.approx(0, abs=1e-6)


def test_where_there_are_no_words_all_tokens_count() -> None:
    model = Model.from_module(build("gpt2")).view("raw")
    E = dense(build("gpt2")).E_out
    n = E.shape[1]
    found = model["L0N3.value"].top(20)
    ids = [s.token.id for s in found.top]
    expected = legibility(E, ids, n, range(n))
    assert model.space.token(3).shown == "#3"
    assert expected != 0
    assert found.legibility == pytest.approx(expected, abs=1e-5)


def test_readings_carry_their_legibility_whatever_their_length() -> None:
    model = worded("gpt2")
    E = dense(build("gpt2")).E_out
    for seen in (model, model.view(folded=True, calibrated=True)):
        long = seen["L0N3.value"].top(30)
        expected = legibility(E, [s.token.id for s in long.top])
        assert expected != 0
        for k in (1, 5, 30):
            short = seen["L0N3.value"].top(k)
            assert short.legibility == pytest.approx(expected, abs=1e-5)
            assert short.top == long.top[:k]
            assert short.bottom == long.bottom[:k]


def test_readers_are_compared_as_they_see() -> None:
    """Through the effective embedding for layer 1, the entering one for layer 0."""
    model = worded("llama").view("standard", trained=False)
    for layer in (0, 1):
        rows, _ = effective_rows(model, first=layer == 0)
        assert rows is not None
        gates = model.layers[layer].gates.top(37)
        expected = [legibility(rows.double().T, [s.token.id for s in r.top]) for r in gates]
        assert [r.legibility for r in gates] == pytest.approx(expected, abs=2e-3)
        assert max(map(abs, expected)) > 0.02


# ---------------------------------------------------------------------- vocabularies


@pytest.mark.parametrize("view", VIEWS[:8], ids=str)
def test_rows_without_token_are_left_out(view: dict[str, Any]) -> None:
    """Of 37 rows 20 have a token; the others are huge and must not show, nor count anywhere."""
    module = deepcopy(build("gpt2-untied-wide"))
    with torch.no_grad():
        for name in ("lm_head.weight", "transformer.wte.weight"):
            module.get_parameter(name)[20:] *= 1e3
    model = (
        Model(Model.from_module(module).view("raw").checkpoint, vocabulary=vocabulary(20))
        .view("raw")
        .view(**view)
    )
    r, tokens = dense(module), torch.arange(20)
    for address, kind in (("L0N3.value", "value"), ("L1H1.Q2", "Q")):
        x = r.vectors(kind, view.get("folded", False))[address]  # type: ignore[arg-type]
        scores = (x @ r.columns(kind, tokens=tokens, **view))[:20]  # type: ignore[arg-type]
        found = model[address].top(99)
        assert [s.token.id for s in found.top] == scores.argsort(descending=True).tolist()
        assert found.top[0].score == pytest.approx(float(scores.max()), rel=1e-4)
    pairs = model["L0H1"].vo.top(9999)
    assert len(pairs) == 400
    assert max(p.row.id for p in pairs) == max(p.col.id for p in pairs) == 19
    assert len(model["L0H1"].qk.attends_to(3, 99).top) == 20
    assert all(s.token.id < 20 for s in model["L0H1"].vo.svd(1, 99)[0].input.top)


def test_not_even_rows_that_are_no_numbers() -> None:
    module = deepcopy(build("gpt2-untied-wide"))
    with torch.no_grad():
        module.get_parameter("lm_head.weight")[20:] = torch.nan
    model = Model(Model.from_module(module).view("raw").checkpoint, vocabulary=vocabulary(20)).view(
        "raw"
    )
    for view in VIEWS[:5]:
        seen = model.view(**view)
        found = seen["L0N3.value"].top(5)
        assert all(abs(s.score) < 1e6 for s in found.top)
        assert abs(found.legibility) <= 2
        assert len(seen["L0H0"].vo.top(5)) == 5
        assert len(seen["L0H0"].vo.of(3, 5).top) == 5
        assert len(seen.nearest("L0N3.value", 2)) == 2


def test_more_tokens_than_rows() -> None:
    model = worded("gpt2", extra=("Ġadded", "more"))
    assert model.space.n_rows == 37
    assert len(model["L0N3.value"].top(99).top) == 37
    assert len(model["L0H0"].vo.top(9999, exclude_same=True)) < 37 * 37
    assert model.space.id("city") == 14
    with pytest.raises(LexrayError, match=r"more \(38\) has no row in the embedding .* 0–36"):
        model.space.id("more")


def test_a_filter_that_admits_nothing() -> None:
    model = worded("gpt2")
    with pytest.raises(LexrayError, match="no token of awkward tokens passes"):
        model["L0N3.value"].top(5, filter=filters.ascii & ~filters.ascii)


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("upcast", [True, False])
@pytest.mark.parametrize("view", VIEWS[:8], ids=str)
@pytest.mark.parametrize("name", ["gpt2-untied-wide", "gemma3"])
def test_half_precision_is_read_without_further_rounding(
    name: str, view: dict[str, Any], upcast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the dense float64 products of the very bfloat16 weights; held in either dtype."""
    if not upcast:
        monkeypatch.setattr(space_module, "UPCAST_BELOW", 0)
    save(name, tmp_path, dtype=torch.bfloat16)
    model = Model.from_pretrained(tmp_path).view("raw").view(**view)
    r = dense(deepcopy(build(name)).bfloat16())
    assert model.space.writing.rows.dtype == (torch.float32 if upcast else torch.bfloat16)
    scores = r.vo(1, 1, **view)
    best = scores.flatten().sort(descending=True).values[:9]
    found = model["L1H1"].vo.top(9)
    assert [p.score for p in found] == pytest.approx(best.tolist(), rel=2e-4)
    x = r.vectors("value", view.get("folded", False))["L0N3.value"]
    best = (x @ r.columns("value", **view)).sort(descending=True).values[:9]
    assert [s.score for s in model["L0N3.value"].top(9).top] == pytest.approx(
        best.tolist(), rel=2e-4
    )


def test_a_checkpoint_in_double_precision(tmp_path: Path) -> None:
    save("opt-350m", tmp_path, dtype=torch.float64)
    for view in VIEWS[:8]:
        model = Model.from_pretrained(tmp_path).view("raw").view(**view)
        scores = dense(build("opt-350m")).qk(0, 1, **view)
        order = scores.flatten().argsort(descending=True)[:9]
        found = model["L0H1"].qk.top(9)
        assert [p.row.id * 37 + p.col.id for p in found] == order.tolist()
        assert model["L0N3.value"].top(3).legibility < 1


def test_on_another_device_nothing_stays_behind(tmp_path: Path) -> None:
    """The meta device computes nothing, but refuses to mix with others."""
    save("llama", tmp_path)
    model = Model.from_pretrained(tmp_path, device="meta").view("raw")
    for view in ({}, {"folded": True, "reading": "input"}):
        seen = model.view(**view)
        A, B = seen["L0H1"].vo.factors()
        assert A.device.type == B.device.type == "meta"
        A, B = seen.view(offset=2)["L0H1"].qk.factors()
        assert A.device.type == B.device.type == "meta"
        assert seen["L0N3.value"].tensor.device.type == "meta"
