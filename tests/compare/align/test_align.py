"""Alignment of layers: against dense projections in float64, and on twins that hide from feature
space."""

from __future__ import annotations

import copy
import json
from collections import Counter
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import lexray as lx
from lexray import filters
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.align.align import KINDS, align, choose_kinds, similarities
from lexray.compare.align.similarity import Similarity, diagonal
from lexray.compare.align.tokens import shared_tokens
from lexray.errors import LexrayError
from lexray.model import vectors
from lexray.model.model import Model
from lexray.space import correlation
from lexray.space.correlation import FEATURES, Kernels
from tests import dense
from tests.compare.twins import distinct, opened, twin, words
from tests.families.zoo import build
from tests.saved import save
from tests.space.test_correlation import pearson

NAMES = [*dense.NAMES, dense.NAMES[0]]
VIEWS: list[dict[str, Any]] = [
    {},
    {"folded": True},
    {"inverse": "pinv", "centred": True},
    {"reading": "input", "calibrated": True, "folded": True},
]


@cache
def model(name: str) -> Model:
    return opened(build(name))


@cache
def reference(name: str) -> dense.Dense:
    return dense.dense(build(name))


def layer_of(address: str) -> int:
    return lx.Address.parse(address).layer


def binned(rows: list[str], cols: list[str], R: Tensor) -> NDArray[np.float64]:
    """The mean absolute value of R over the rows and columns of each two layers."""
    i, j = (torch.tensor([layer_of(name) for name in side]) for side in (rows, cols))
    return np.array(
        [
            [float(R[i == m][:, j == n].abs().mean()) for n in range(int(j.max()) + 1)]
            for m in range(int(i.max()) + 1)
        ]
    )


def expected(
    a: str, b: str, kind: dense.Kind, view: dict[str, Any], project: bool = True
) -> NDArray[np.float64]:
    names, projected = [], []
    for name in (a, b):
        vectors = reference(name).vectors(kind, view.get("folded", False))
        X = torch.stack(list(vectors.values()))
        names.append(list(vectors))
        projected.append(X @ reference(name).columns(kind, **view) if project else X)
    return binned(names[0], names[1], pearson(projected[0], projected[1]))


CASES = [
    (a, b, VIEWS[(i + more) % len(VIEWS)])
    for i, (a, b) in enumerate(pairwise(NAMES))
    for more in (0, 1)
]


@pytest.mark.parametrize(("a", "b", "view"), CASES, ids=str)
def test_against_dense_projections(a: str, b: str, view: dict[str, Any]) -> None:
    """Each family with the next: gated and not, grouped heads, experts, post-norm, untied."""
    found = align(model(a).view(**view), model(b).view(**view))
    both = [k for k in KINDS if k != "gate" or all(reference(n).vectors(k, False) for n in (a, b))]
    assert [group.kind for group in found] == both
    for group in found:
        S = expected(a, b, group.kind, view)
        np.testing.assert_allclose(group.embedding.S, S, atol=1e-5)
        assert group.feature is not None
        control = expected(a, b, group.kind, view, project=False)
        np.testing.assert_allclose(group.feature.S, control, atol=1e-5)
        assert group.embedding.constant == (0, 0)


def best_total(S: NDArray[np.float64]) -> float:
    """The largest sum over all one-to-one assignments, by trying them."""
    S = S if S.shape[0] <= S.shape[1] else S.T
    rows = range(S.shape[0])
    return max(
        sum(S[i, j] for i, j in zip(rows, chosen, strict=True))
        for chosen in permutations(range(S.shape[1]), S.shape[0])
    )


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 5), (5, 2), (1, 4)])
def test_the_assignment_is_the_best(shape: tuple[int, int]) -> None:
    for seed in range(5):
        S = np.random.default_rng(seed).random(shape)
        similarity = Similarity("embedding", S)
        assert similarity.total == pytest.approx(best_total(S))
        assert len(similarity.assignment) == min(shape)
        for side in zip(*similarity.assignment, strict=True):
            assert len(set(side)) == min(shape)
        on = [S[pair] for pair in similarity.diagonal]
        off = [x for at, x in np.ndenumerate(S) if at not in similarity.diagonal]
        gap = np.mean(on) - (np.mean(off) if off else 0)
        assert similarity.gap == pytest.approx(gap)


def test_the_diagonal_is_the_same_relative_depth() -> None:
    assert diagonal(3, 3) == ((0, 0), (1, 1), (2, 2))
    assert diagonal(3, 5) == ((0, 0), (1, 2), (2, 4))
    assert diagonal(5, 3) == ((0, 0), (2, 1), (4, 2))
    assert diagonal(1, 4) == ((0, 0),)
    for n in range(1, 20):
        for m in range(1, 20):
            pairs = diagonal(n, m)
            assert all(i < n and j < m for i, j in pairs)
            assert [len(set(side)) for side in zip(*pairs, strict=True)] == [min(n, m)] * 2


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_permuted_copy_aligns_perfectly(family: str) -> None:
    """Turned inside, layers shuffled: nothing is left in feature space, all in embedding space."""
    original = distinct(family)
    copied = twin(original, family)
    assert copied.layers != sorted(copied.layers)
    found = align(opened(original), opened(copied.module), control=False)
    for group in found:
        assert group.embedding.assignment == tuple(enumerate(copied.layers)), group.kind
    itself = align(opened(original), opened(original), "values", control=False)
    S = found["value"].embedding.S[:, copied.layers]
    np.testing.assert_allclose(S, itself["value"].embedding.S, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_turned_copy_hides_from_feature_space(family: str) -> None:
    original = distinct(family)
    turned = twin(original, family, seed=3)
    turned.module.load_state_dict(_in_order(turned.module.state_dict(), turned.layers))
    found = align(opened(original), opened(turned.module))
    for group in found:
        assert group.embedding.share == 1
        assert group.embedding.gap > 0.05
        assert group.feature is not None
        assert abs(group.feature.gap) < 0.2 * group.embedding.gap
    assert np.mean([group.feature.share for group in found if group.feature]) < 0.6


def _in_order(state: dict[str, Tensor], layers: list[int]) -> dict[str, Tensor]:
    """A shuffled copy's layers put back in their places."""
    found = {}
    for name in state:
        parts = name.split(".")
        if len(parts) > 2 and parts[2].isdigit():
            parts[2] = str(layers[int(parts[2])])
        found[name] = state[".".join(parts)]
    return {name: tensor.clone() for name, tensor in found.items()}


def test_a_model_with_itself() -> None:
    one = opened(distinct("llama"))
    for group in lx.align(one, one):
        assert group.embedding.share == 1
        assert group.feature is not None
        assert group.feature.share == 1


# ---------------------------------------------------------------------- vocabularies


def resized(name: str, order: Tensor, extra: int) -> Any:
    """A copy whose embeddings have their rows in another order, and more rows behind."""
    copied = copy.deepcopy(build(name))
    rows = {k: copied.get_parameter(k).detach() for k in ("model.embed_tokens.weight",)}
    rows["lm_head.weight"] = copied.get_parameter("lm_head.weight").detach()
    copied.resize_token_embeddings(len(order) + extra, mean_resizing=False)
    state = copied.state_dict()
    for k, old in rows.items():
        state[k][: len(order)] = old[order]
        state[k][len(order) :] = 9.0 * torch.randn(extra, old.shape[1])
    return copied


def test_other_ids_and_more_tokens_change_nothing() -> None:
    torch.manual_seed(0)
    order = torch.randperm(37)
    names = [words(37)[i] for i in order.tolist()] + [f"new{i}" for i in range(8)]
    other = opened(resized("llama", order, 8), names)
    a = opened(build("gemma2"))
    plain, renamed = align(a, model("llama")), align(a, other)
    for one, two in zip(plain, renamed, strict=True):
        np.testing.assert_allclose(one.embedding.S, two.embedding.S, atol=1e-6)
    assert plain.tokens.same_ids
    assert not renamed.tokens.same_ids
    assert renamed.to_dict()["tokens"] == {
        "shared": 37,
        "a": 37,
        "b": 45,
        "same_ids": False,
        "filter": "",
    }
    assert "37 tokens of 37 and 45, matched by string" in str(renamed)


def test_added_tokens_are_matched_by_id() -> None:
    other = opened(resized("llama", torch.arange(37), 3), [*words(37), "x", "y", "z"])
    tokens = shared_tokens(other, model("llama"))
    assert tokens.a.tolist() == tokens.b.tolist() == list(range(37))
    assert str(tokens) == "37 tokens of 40 and 37, matched by id"


def test_only_common_and_admitted_tokens_count() -> None:
    names = [*words(20), *(f"other{i}" for i in range(17))]
    names[3], names[7] = names[7], names[3]
    a, b = model("llama"), opened(build("qwen3"), names)
    common = [i for i in range(20) if i not in (3, 5, 7)]
    found = align(a, b, "keys", filter=~filters.among(["word3", "word5", "word7"]))
    sides = []
    for name in ("llama", "qwen3"):
        ref = reference(name)
        X = torch.stack(list(ref.vectors("key", False).values()))
        sides.append(X @ ref.columns("key")[:, common])
    rows, cols = (list(reference(n).vectors("key", False)) for n in ("llama", "qwen3"))
    np.testing.assert_allclose(
        found["keys"].embedding.S, binned(rows, cols, pearson(*sides)), atol=1e-5
    )
    assert len(found.tokens) == 17


def test_nothing_in_common() -> None:
    b = opened(build("llama"), [f"anders{i}" for i in range(37)])
    with pytest.raises(LexrayError, match=r"(?s)no token in common.*word18.*anders18"):
        align(model("llama"), b)
    b = opened(build("llama"), ["word3", *(f"anders{i}" for i in range(36))])
    with pytest.raises(LexrayError, match="have only 1 token in common"):
        align(model("llama"), b)
    with pytest.raises(LexrayError, match=r"leaves 1 of the 37 tokens"):
        align(model("llama"), model("gpt2"), filter=filters.among(["word3"]))


# ---------------------------------------------------------------------- memory and reading


class Counting(ModuleCheckpoint):
    """A checkpoint that counts how often each tensor is read."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.counts: Counter[str] = Counter()

    def read(self, name: str, *index: slice) -> Tensor:
        self.counts[name] += 1
        return super().read(name, *index)


@pytest.mark.slow
def test_every_layer_is_read_once_if_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (opened(build(name)) for name in ("gemma3-both-ways", "smollm3"))
    for one in (a, b):
        one.checkpoint = Counting(build("gemma3-both-ways" if one is a else "smollm3"))
    whole = align(a, b, "keys")
    for one in (a, b):
        counts = {n: c for n, c in one.checkpoint.counts.items() if "up_proj" in n}  # type: ignore[attr-defined]
        assert len(counts) == one.n_layers
        assert set(counts.values()) == {1}
        one.checkpoint.counts.clear()  # type: ignore[attr-defined]
    kernel = [Kernels(a.space, b.space, whole.tokens.a, whole.tokens.b).of("key"), FEATURES]
    for held, times in ((1, 7), (2 * 20 * 48 * 4, 4), (3 * 20 * 48 * 4, 3)):
        b.checkpoint.counts.clear()  # type: ignore[attr-defined]
        (S, _), (control, _) = similarities(a, b, "key", kernel, held)
        np.testing.assert_allclose(S, whole["key"].embedding.S, rtol=1e-6)
        np.testing.assert_allclose(control, whole["key"].feature.S, rtol=1e-6)
        assert b.checkpoint.counts["model.layers.2.mlp.up_proj.weight"] == times  # type: ignore[attr-defined]
    monkeypatch.setattr(correlation, "TILE", (3, 4))
    monkeypatch.setattr(vectors, "ELEMENTS_AT_ONCE", 48)
    again = align(a, b, "keys")["key"].embedding.S
    np.testing.assert_allclose(again, whole["key"].embedding.S, rtol=1e-6)


# ---------------------------------------------------------------------- odd weights


def changed(name: str, tensor: str, rows: slice, value: float) -> Model:
    copied = copy.deepcopy(build(name))
    copied.state_dict()[tensor][rows] = value
    return opened(copied)


def test_dead_vectors_are_left_out_and_counted() -> None:
    b = changed("llama", "model.layers.1.mlp.up_proj.weight", slice(0, 4), 0.0)
    found = align(model("gemma2"), b, "keys")
    ref = reference("llama")
    vectors = {
        n: x
        for n, x in ref.vectors("key", False).items()
        if n not in {f"L1N{i}.key" for i in range(4)}
    }
    Y = torch.stack(list(vectors.values())) @ ref.columns("key")
    X = torch.stack(list(reference("gemma2").vectors("key", False).values()))
    X = X @ reference("gemma2").columns("key")
    rows = list(reference("gemma2").vectors("key", False))
    S = binned(rows, list(vectors), pearson(X, Y))
    np.testing.assert_allclose(found["key"].embedding.S, S, atol=1e-5)
    assert found["key"].embedding.constant == (0, 4)
    assert "constant projections left out: 4 key" in str(found)


def test_a_dead_layer_is_like_none() -> None:
    b = changed("llama", "model.layers.1.mlp.up_proj.weight", slice(None), 0.0)
    found = align(b, model("gemma2"), "keys")["key"]
    assert (found.embedding.S[1] == 0).all()
    assert (found.embedding.S[0] > 0).all()
    assert len(found.embedding.assignment) == 2
    assert "NaN" not in json.dumps(align(b, model("gemma2"), "keys").to_dict())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights(value: float) -> None:
    b = changed("llama", "model.layers.1.mlp.up_proj.weight", slice(0, 1), value)
    with pytest.raises(LexrayError, match=r"1\.mlp\.up_proj\.weight .*(24 NaN|24 infinite)"):
        align(model("gemma2"), b, "keys")


# ---------------------------------------------------------------------- what may be asked


def test_groups() -> None:
    a, b = model("llama"), model("gpt2")
    assert choose_kinds(a, b, None) == ["key", "value", "Q", "K", "V", "O"]
    assert choose_kinds(a, a, None) == list(KINDS)
    assert [g.kind for g in align(a, b, ["values", "O", "value"])] == ["value", "O"]
    with pytest.raises(LexrayError, match="has no gate vectors; it has key, value"):
        align(a, b, "gates")
    with pytest.raises(LexrayError, match="no group 'heads' of parameters; there are values, keys"):
        align(a, b, ["heads"])
    with pytest.raises(LexrayError, match="no group was named"):
        align(a, b, [])
    with pytest.raises(LexrayError, match="no group 'Q' was aligned; there are key"):
        align(a, b, "keys")["Q"]


@pytest.mark.slow
def test_models_by_name(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("llama", "gpt2")]
    a, b = (
        save(folder.name, folder) and Model.from_pretrained(folder).view("raw")
        for folder in folders
    )
    expected = align(a, b, "keys").to_dict()
    assert align(*folders, "keys").to_dict() == expected
    assert align(str(folders[0]), b, "keys").to_dict() == expected
    view = {"centred": True, "folded": True}
    assert (
        align(a.view(**view), folders[1], "keys").to_dict()
        == align(a.view(**view), b.view(**view), "keys").to_dict()
    )
    found = lx.partners(folders[0], "L0N3", folders[1])
    same = lx.partners(a.view("standard"), "L0N3", b.view("standard"))
    assert found.to_dict() == same.to_dict()


def test_other_widths_have_no_control() -> None:
    a, b = model("llama"), model("stablelm")
    found = align(a, b, "keys")
    assert found["key"].feature is None
    assert found.to_dict()["groups"][0]["feature"] is None
    assert "no feature-space control: widths 24 and 32 differ" in str(found)
    projected = []
    for name in ("llama", "stablelm"):
        state = build(name).state_dict()
        X = torch.cat([state[f"model.layers.{i}.mlp.up_proj.weight"] for i in range(2)]).double()
        projected.append(X @ state["lm_head.weight"].double().T)
    rows = [f"L{i}N{n}" for i in range(2) for n in range(20)]
    S = binned(rows, rows, pearson(*projected))
    np.testing.assert_allclose(found["key"].embedding.S, S, atol=1e-5)
    assert align(a, a, "keys", control=False)["key"].feature is None


def test_devices_must_agree() -> None:
    b = opened(build("gpt2"))
    tokens = shared_tokens(model("llama"), b)
    b.device = torch.device("meta")
    with pytest.raises(LexrayError, match=r"is on cpu, .* on meta; open both on one device"):
        Kernels(model("llama").space, b.space, tokens.a, tokens.b)


def test_half_precision() -> None:
    """Weights in bfloat16 give what the same numbers in float32 give."""
    halves = [copy.deepcopy(build(name)).bfloat16() for name in ("llama", "gemma2")]
    floats = [copy.deepcopy(half).float() for half in halves]
    low, high = (align(*map(opened, both), "values") for both in (halves, floats))
    np.testing.assert_allclose(low[0].embedding.S, high[0].embedding.S, atol=1e-6)


@pytest.mark.slow
def test_two_seeds_of_the_demo_model() -> None:
    """The paper's finding: layers find their like in embedding space only."""
    found = align(
        lx.Model.from_pretrained("demo").view("raw"), lx.Model.from_pretrained("demo-b").view("raw")
    )
    embedding = [group.embedding.share for group in found]
    feature = [group.feature.share for group in found if group.feature]
    assert len(feature) == len(embedding) == 6
    assert np.mean(embedding) >= np.mean(feature) + 0.4
    assert all(group.embedding.gap > 5 * abs(group.feature.gap) for group in found if group.feature)
