"""VO and QK as token pairs, lines and singular directions against dense float64 matrices."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from lexray import filters
from lexray.errors import LexrayError
from lexray.model.circuits import factored_svd
from lexray.model.model import Model
from lexray.result.pairs import Pairs
from lexray.result.readings import Reading
from tests.dense import NAMES, Dense, dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

VIEWS: dict[str, dict[str, Any]] = {
    "raw": {},
    "folded": {"folded": True},
    "centred": {"centred": True},
    "pinv": {"inverse": "pinv"},
    "calibrated": {"calibrated": True},
    "input": {"reading": "input"},
    "folded-calibrated": {"folded": True, "calibrated": True},
    "all": {
        "folded": True,
        "centred": True,
        "inverse": "pinv",
        "calibrated": True,
        "reading": "input",
        "offset": -4,
    },
}
ROTARY = [
    *(("llama", 1), ("gemma3", 0), ("gemma3", 2), ("qwen3", 1), ("olmo2", 0)),
    *(("cohere2", 0), ("cohere2", 3), ("mixtral", 1), ("gpt2", 0)),
]


@cache
def opened(name: str) -> Model:
    return Model.from_module(build(name)).view("raw")


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


def whole(name: str, matrix: str, layer: int, head: int, view: dict[str, Any]) -> Tensor:
    r = reference(name)
    return r.vo(layer, head, **view) if matrix == "VO" else r.qk(layer, head, **view)


def close(ours: list[float], theirs: Tensor, scale: Tensor) -> None:
    limit = 2e-5 * float(scale.abs().max())
    torch.testing.assert_close(
        torch.tensor(ours, dtype=torch.float64), theirs, rtol=0, atol=max(limit, 1e-12)
    )


def same_pairs(
    found: Pairs, scores: Tensor, k: int, sign: str = "largest", allowed: Tensor | None = None
) -> None:
    """The k best of a dense matrix: values in order, and each where it is said to be."""
    allowed = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed
    key = {"largest": scores, "smallest": -scores, "absolute": scores.abs()}[sign]
    order = key.masked_fill(~allowed, -torch.inf).flatten().argsort(descending=True)
    order = order[: min(k, int(allowed.sum()))]
    assert len(found) == len(order)
    assert all(bool(allowed[p.row.id, p.col.id]) for p in found)
    assert len({(p.row.id, p.col.id) for p in found}) == len(found)
    said = [p.score for p in found]
    close(said, scores[[p.row.id for p in found], [p.col.id for p in found]], scores)
    close(said if sign != "absolute" else [abs(s) for s in said], _sized(scores, order, sign), key)


def _sized(scores: Tensor, order: Tensor, sign: str) -> Tensor:
    best = scores.flatten()[order]
    return best.abs() if sign == "absolute" else best


def same_line(found: Reading, scores: Tensor, k: int) -> None:
    for end, descending in ((found.top, True), (found.bottom, False)):
        order = scores.argsort(descending=descending)[:k]
        assert [s.token.id for s in end] == order.tolist()
        close([s.score for s in end], scores[order], scores)


# ---------------------------------------------------------------------- pairs


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_those_of_the_dense_matrix(name: str, view: dict[str, Any]) -> None:
    model = opened(name).view(**view)
    layer = model.n_layers - 1
    for head in (0, model.n_heads - 1):
        for circuit in (model.layers[layer].heads[head].vo, model.layers[layer].heads[head].qk):
            found = circuit.top(25)
            same_pairs(found, whole(name, circuit.matrix, layer, head, view), 25)
            assert found.source.view == model.options
            assert (found.matrix, found.source.address) == (circuit.matrix, f"L{layer}H{head}")


@pytest.mark.parametrize("offset", [-3, 1, 40])
@pytest.mark.parametrize(("name", "layer"), ROTARY)
def test_keys_at_an_offset(name: str, layer: int, offset: int) -> None:
    found = opened(name).view(offset=offset).layers[layer].heads[1].qk.top(30)
    scores = whole(name, "QK", layer, 1, {"offset": offset})
    same_pairs(found, scores, 30)
    turns = not torch.allclose(scores, whole(name, "QK", layer, 1, {}))
    assert turns == (name != "gpt2" and (name, layer) != ("cohere2", 3))
    assert f"offset {offset}" in found.to_dict()["reading"]


def test_the_offset_is_said_where_something_turns() -> None:
    assert "offset 0" in str(opened("llama")["L0H0"].qk.top(2))
    assert "offset" not in str(opened("llama")["L0H0"].vo.top(2))
    assert "offset" not in str(opened("gpt2")["L0H0"].qk.top(2))
    assert "offset -2" in str(opened("llama").view(offset=-2)["L0H0"].qk.top(2))


def test_qk_norms_bias_is_no_part_of_a_score() -> None:
    """Phi's norm has one; adding to it must change nothing."""
    module = build("phi-qk-norm")
    model = Model.from_module(module).view("raw")
    before = model["L0H1"].qk.top(5)
    bias = module.get_parameter("model.layers.0.self_attn.q_layernorm.bias")
    kept = bias.detach().clone()
    try:
        with torch.no_grad():
            bias.add_(3)
        after = model["L0H1"].qk.top(5)
    finally:
        with torch.no_grad():
            bias.copy_(kept)
    assert [p.score for p in after] == [p.score for p in before]


@pytest.mark.parametrize("sign", ["largest", "smallest", "absolute"])
@pytest.mark.parametrize("k", [1, 60, 2000])
def test_signs_and_lengths(sign: Literal["largest", "smallest", "absolute"], k: int) -> None:
    scores = whole("llama", "VO", 0, 1, {})
    found = opened("llama")["L0H1"].vo.top(k, sign=sign)
    same_pairs(found, scores, k, sign)
    assert len(found) == min(k, 37 * 37)


@pytest.mark.parametrize("view", [{}, {"folded": True, "calibrated": True}])
def test_filters_restrict_the_search(view: dict[str, Any]) -> None:
    scores = whole("gpt2", "QK", 1, 2, view)
    rows, cols = [3, 5, 30, 36, 11], [0, 1, 2, 3, 36]
    allowed = torch.zeros(37, 37, dtype=torch.bool)
    qk = opened("gpt2").view(**view)["L1H2"].qk
    allowed[torch.tensor(rows)[:, None], torch.tensor(cols)] = True
    found = qk.top(20, rows=filters.among(rows), cols=filters.among(cols))
    same_pairs(found, scores, 20, allowed=allowed)
    assert "rows: among" in found.source.filter
    same_pairs(
        qk.top(40, rows=filters.among(rows), cols=filters.among(cols)),
        scores,
        25,
        "largest",
        allowed,
    )
    both = qk.top(40, filter=~filters.among([0]), cols=filters.among(cols))
    allowed = torch.zeros(37, 37, dtype=torch.bool)
    allowed[1:, [1, 2, 3, 36]] = True
    same_pairs(both, scores, 40, allowed=allowed)


def test_filters_with_one_description_are_not_confused() -> None:
    """The first five tokens are the same, and so is the number: `describe` says the same."""
    a, b = filters.among([1, 2, 3, 4, 5, 6]), filters.among([1, 2, 3, 4, 5, 7])
    assert a.describe() == b.describe()
    vo = Model.from_module(build("gpt2")).view("raw")["L0H0"].vo
    assert 7 not in {p.row.id for p in vo.top(36, filter=a)}
    assert 7 in {p.row.id for p in vo.top(36, filter=b)}
    vector = Model.from_module(build("gpt2")).view("raw")["L0N0.value"]
    assert {s.token.id for s in vector.top(6, filter=a).top} == {1, 2, 3, 4, 5, 6}
    assert {s.token.id for s in vector.top(6, filter=b).top} == {1, 2, 3, 4, 5, 7}


def test_pairs_of_one_word_are_left_out() -> None:
    model = worded("gpt2")
    scores, v = whole("gpt2", "VO", 0, 0, {}), model.vocabulary
    folded = [v.folded(i) for i in range(37)]
    assert folded[:5] == ["law", "law", "law", "law", "laws"]
    allowed = torch.tensor(
        [[i != j and (not a or a != b) for j, b in enumerate(folded)] for i, a in enumerate(folded)]
    )
    found = model["L0H0"].vo.top(2000, exclude_same=True)
    same_pairs(found, scores, 2000, allowed=allowed)
    assert len(found) == 37 * 37 - 37 - 4 * 3
    kept = filters.among([0, 1, 2, 3, 4])
    some = allowed.clone()
    some[5:], some[:, 5:] = False, False
    same_pairs(model["L0H0"].vo.top(99, exclude_same=True, filter=kept), scores, 99, allowed=some)


def test_inflections_of_one_word_are_left_out() -> None:
    model = worded("gpt2")
    found = model["L0H0"].vo.top(2000, exclude_same="inflected")
    left = {(p.row.id, p.col.id) for p in found}
    words = [{0, 1, 2, 3, 4}, {5, 6, 7}, {14, 15}]
    gone = {(i, i) for i in range(37)} | {(a, b) for word in words for a in word for b in word}
    assert left == {(i, j) for i in range(37) for j in range(37)} - gone
    assert "pairs of different words" in found.source.filter


def test_legibility_looks_at_the_best_pairs_first() -> None:
    """Not at the tokens with the lowest ids: of a long list the first ten different ones count."""
    model = opened("llama")
    found = model["L0H1"].vo.top(200)
    ids = [
        list(dict.fromkeys(ids)) for ids in zip(*((p.row.id, p.col.id) for p in found), strict=True)
    ]
    each = [float(model.space.legibility(torch.tensor([side[:10]]))[0]) for side in ids]
    assert found.legibility == pytest.approx(sum(each) / 2, abs=1e-6)


@pytest.mark.parametrize("k", [0, -1])
def test_no_pairs_asked_for(k: int) -> None:
    for ask in (
        lambda: opened("llama")["L0H1"].vo.top(k),
        lambda: opened("llama")["L0H1"].vo.of(3, k),
        lambda: opened("llama")["L0H1"].vo.svd(k),
        lambda: opened("llama")["L0H1"].vo.svd(2, k),
    ):
        with pytest.raises(LexrayError, match="at least 1"):
            ask()


# ---------------------------------------------------------------------- lines


@pytest.mark.parametrize("name", ["gpt2-untied-wide", "llama", "gemma3", "olmo2", "opt-350m"])
@pytest.mark.parametrize("view", ["raw", "folded-calibrated", "all"])
def test_lines_are_rows_and_columns(name: str, view: str) -> None:
    head = opened(name).view(**VIEWS[view])["L1H2"]
    vo, qk = (whole(name, matrix, 1, 2, VIEWS[view]) for matrix in ("VO", "QK"))
    same_line(head.vo.of(5, 9), vo[5], 9)
    same_line(head.vo.writing(6, 9), vo[:, 6], 9)
    same_line(head.qk.attends_to(7, 9), qk[7], 9)
    same_line(head.qk.attended_by(8, 99), qk[:, 8], 99)


def test_lines_say_which_they_are() -> None:
    head = worded("gpt2")["L0H1"]
    said = {
        "L0H1.VO ·law writes": head.vo.of(" law", 3),
        "L0H1.VO ·law written_by": head.vo.writing("·law", 3),
        "L0H1.QK ·law attends_to": head.qk.attends_to(1, 3),
        "L0H1.QK ·law attended_by": head.qk.attended_by(" law", 3),
    }
    for address, reading in said.items():
        assert reading.source.address == address
        assert reading.name == address.split()[-1]
        assert reading.to_dict()[reading.name]["top"][0]["score"] == reading.top[0].score


def test_lines_with_a_filter() -> None:
    head, scores = worded("gpt2")["L0H1"], whole("gpt2", "VO", 0, 1, {})
    kept = [0, 4, 20, 21, 22, 30]
    found = head.vo.of("city", 4, filter=filters.among(kept))
    order = scores[14, kept].argsort(descending=True)[:4]
    assert [s.token.id for s in found.top] == [kept[i] for i in order.tolist()]
    assert found.source.filter.startswith("among")


def test_unknown_tokens_of_lines() -> None:
    head = worded("gpt2")["L0H1"]
    with pytest.raises(LexrayError, match="'bad' is 3 tokens"):
        head.vo.of("bad")
    with pytest.raises(LexrayError, match="no token 99"):
        head.qk.attended_by(99)
    larger = worded("gpt2", extra=("Ġadded",))
    with pytest.raises(LexrayError, match=r"·added .*no row"):
        larger["L0H1"].vo.of(" added")


# ---------------------------------------------------------------------- singular directions


@pytest.mark.parametrize("matrix", ["VO", "QK"])
@pytest.mark.parametrize("name", ["gpt2-untied-wide", "llama", "gemma2", "bloom"])
@pytest.mark.parametrize("view", ["raw", "folded", "calibrated", "all"])
def test_singular_directions_are_those_of_the_product(name: str, matrix: str, view: str) -> None:
    options, block = VIEWS[view], reference(name).blocks[1]
    model = opened(name).view(**options)
    folded, offset = options.get("folded", False), options.get("offset", 0)
    one, other = ("V", "O") if matrix == "VO" else ("Q", "K")
    left = block.columns(one, 2, folded)  # type: ignore[arg-type]
    right = block.columns(other, 2, folded)  # type: ignore[arg-type]
    if matrix == "QK":
        left, right = block.turned(left, 7), block.turned(right, 7 + offset).T
    U, S, Vt = torch.linalg.svd(left @ right)
    found = model[f"L1H2.{matrix}"].svd(4, 6)
    assert len(found) == 4
    for i, direction in enumerate(found):
        assert direction.singular_value == pytest.approx(float(S[i]), rel=1e-4)
        share = float(S[i] ** 2 / S.square().sum())
        assert direction.share == pytest.approx(share, rel=1e-4)
        ends = (
            U[:, i] @ reference(name).columns(one, **options),
            (  # type: ignore[arg-type]
                Vt[i] @ reference(name).columns(other, **options)  # type: ignore[arg-type]
            ),
        )
        sign = float(ends[0][direction.input.top[0].token.id].sign())
        same_line(direction.input, sign * ends[0], 6)
        same_line(direction.output, sign * ends[1], 6)


def test_svd_of_factors_puts_them_together_again() -> None:
    left, right = torch.randn(9, 4), torch.randn(4, 9)
    U, S, V = factored_svd(left, right)
    torch.testing.assert_close(U @ S.float().diag() @ V.T, left @ right)
    largest = U.gather(0, U.abs().argmax(0, keepdim=True))
    assert bool((largest > 0).all())
    U, S, V = factored_svd(torch.zeros(9, 4), right)
    assert float(S.abs().max()) == 0
    assert bool(U.isfinite().all() and V.isfinite().all())


def test_more_directions_than_there_are() -> None:
    assert len(opened("llama")["L0H1"].qk.svd(99, 2)) == 6
    assert "norms of queries and keys" in str(opened("qwen3")["L0H1"].qk.svd(1, 2))


# ---------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("view", [{}, {"folded": True}, VIEWS["all"]])
@pytest.mark.parametrize("name", ["gpt2", "gemma3", "opt-350m"])
def test_in_double_precision_the_order_is_exactly_the_references(
    name: str, view: dict[str, Any]
) -> None:
    module = build(name)
    model = (
        Model(Model.from_module(module).view("raw").checkpoint, dtype=torch.float64)
        .view("raw")
        .view(**view)
    )
    for matrix in ("VO", "QK"):
        scores = whole(name, matrix, 0, 1, view)
        order = scores.flatten().argsort(descending=True)[:200]
        found = getattr(model["L0H1"], matrix.lower()).top(200)
        assert [p.row.id * 37 + p.col.id for p in found] == order.tolist()
