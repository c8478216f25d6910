"""Differences against dense float64, planted changes, and every kind of mismatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lexray import scratch
from lexray.compare.diff.diff import diff
from lexray.compare.diff.stacks import GROUPS
from lexray.result.format import show_percent
from lexray.space.kinds import Kind
from lexray.space.space import space_of
from lexray.vocabulary.filters import ascii as only_ascii
from tests.compare.diff.changing import SOME, by_address, changed, close, embedding, opened, shaken
from tests.families.span import STAND_INS
from tests.families.zoo import build

# ---------------------------------------------------------------------- nothing moved


@pytest.mark.parametrize("name", SOME)
def test_a_model_and_itself(name: str) -> None:
    base, tuned = changed(name, lambda module: None)
    found = diff(base, tuned)
    assert found.changes == ()
    assert found.moved == 0
    assert {size.absolute for size in found.sizes} == {0.0}
    assert found.vectors > 100
    assert "nothing moved" in str(found)
    assert "Nothing moved" in found.to_html()


# ---------------------------------------------------------------------- against dense float64


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("view", ["raw", "standard"])
def test_what_is_too_large_to_be_held_lies_in_files(
    name: str, view: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And comes some vectors at a time: every figure is as if it were held."""
    base, tuned = (model.view(view) for model in changed(name, shaken(0.05)))
    held = diff(base, tuned, n=200).to_dict()
    monkeypatch.setattr(scratch, "HELD", 100)
    monkeypatch.setattr(scratch, "PART", 700)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))
    assert diff(base, tuned, n=200).to_dict() == approximately(held)


def approximately(value: Any) -> Any:
    """The same to the last bits of numbers."""
    if isinstance(value, dict):
        return {key: approximately(each) for key, each in value.items()}
    if isinstance(value, list):
        return [approximately(each) for each in value]
    return pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value


DENSE = [(name, name in SOME) for name in dict.fromkeys([*STAND_INS, *SOME])] + [
    (name, False) for name in SOME[:3]
]


@pytest.mark.parametrize(("name", "folded"), DENSE)
def test_against_dense_float64(name: str, folded: bool) -> None:
    """Every vector of one layer: sizes and tokens."""
    base, tuned = changed(name, shaken(0.05))
    base, tuned = base.view(folded=folded), tuned.view(folded=folded)
    kinds: dict[str, Kind] = {"keys": "key", "values": "value"}
    kinds |= {"Q": "Q", "K": "K", "V": "V", "O": "O"}
    k = 4 if name in SOME else 1
    found = diff(base, tuned, n=2000, k=k, groups=list(kinds))
    listed = by_address(found)
    reading = base.view(folded=False).W_U.double()
    layer, other = base.layers[1], tuned.layers[1]
    for group, kind in kinds.items():
        E = embedding(base) if kind in ("value", "O") else reading
        for b, t in zip(layer.groups(kind), other.groups(kind), strict=True):
            before = b.tensor.double()
            delta = t.tensor.double() - before
            scores = delta @ E
            changes = [listed[b.address_of(i)] for i in range(b.n)]
            assert {c.group for c in changes} == {group}
            close(delta.norm(dim=1), [c.absolute for c in changes])
            close(delta.norm(dim=1) / before.norm(dim=1), [c.relative for c in changes])
            top = torch.tensor([[s.token.id for s in c.top] for c in changes])
            close(scores.gather(1, top), [[s.score for s in c.top] for c in changes])
            close(scores.topk(k).values, [[s.score for s in c.top] for c in changes])
            bottom = scores.topk(k, largest=False).values
            close(bottom, [[s.score for s in c.bottom] for c in changes])
    for size in found.sizes:
        if (size.layer, size.group) == (1, "values"):
            stacks = [
                torch.cat([g.tensor for g in x.groups("value")]).double() for x in (layer, other)
            ]
            expected = float((stacks[1] - stacks[0]).norm())
            assert size.absolute == pytest.approx(expected, rel=1e-4)
            assert size.relative == pytest.approx(expected / float(stacks[0].norm()), rel=1e-4)
            assert size.moved == size.vectors == len(stacks[0])


@pytest.mark.parametrize("matrix", ["VO", "QK"])
@pytest.mark.parametrize(
    ("name", "folded"),
    [
        *((name, False) for name in ("gptj", "qwen3", "olmo2", "phi-qk-norm", "falcon-new")),
        *(("llama", folded) for folded in (False, True)),
        ("gpt2", True),
    ],
)
def test_pairs_against_the_dense_difference(name: str, folded: bool, matrix: str) -> None:
    base, tuned = changed(name, shaken(0.05))
    base, tuned = base.view(folded=folded, offset=-1), tuned.view(folded=folded, offset=-1)
    found = diff(base, tuned, n=400, k=6, groups=[matrix])
    assert len(found.changes) == base.n_layers * base.n_heads
    space = base.space
    for change in found.changes:
        circuit, other = base[change.address], tuned[change.address]
        rows, cols = (space.side(kind) for kind in circuit.kinds)
        dense = [
            A.double() @ B.double().T
            for A, B in (c.factors_between(rows, cols) for c in (circuit, other))
        ]
        difference = dense[1] - dense[0]
        best = difference.flatten().sort(descending=True).values
        assert [p.score for p in change.pairs] == pytest.approx(best[:6].tolist(), rel=1e-3)
        worst = best.flip(0)[:6].tolist()
        assert [p.score for p in change.bottom_pairs] == pytest.approx(worst, rel=1e-3)
        for pair in change.pairs:
            entry = float(difference[pair.row.id, pair.col.id])
            assert entry == pytest.approx(pair.score, rel=1e-3)
        if circuit.head.spec.q_norm is None:
            left, right = circuit.matrices
            left1, right1 = other.matrices
            moved = left1.double() @ right1.double() - left.double() @ right.double()
            assert change.absolute == pytest.approx(float(moved.norm()), rel=1e-3)
            size = float((left.double() @ right.double()).norm())
            assert change.relative == pytest.approx(float(moved.norm()) / size, rel=1e-3)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_first_layer_is_read_through_the_embeddings_that_it_reads(layer: int) -> None:
    """By the standard view: the tokens themselves, where the others read what block 0 made."""
    base, tuned = (model.view("standard") for model in changed("llama", shaken(0.05)))
    space = space_of(base, layer)
    reading, writing = (torch.cat(list(space.side(x).columns())).double() for x in ("key", "O"))
    listed = by_address(diff(base, tuned, n=2000, k=3, groups=["keys", "VO"], lexicon=None))
    (b,), (t,) = (model.layers[layer].groups("key") for model in (base, tuned))
    scores = (t.tensor.double() - b.tensor.double()) @ reading.T
    tops = [[s.score for s in listed[b.address_of(i)].top] for i in range(b.n)]
    close(scores.topk(3).values, tops)
    seen = torch.cat(list(space.side("V").columns())).double()
    heads = [model.layers[layer].heads[1] for model in (base, tuned)]
    before, after = (seen @ (h.W_V.double() @ h.W_O.double()) @ writing.T for h in heads)
    best = (after - before).flatten().topk(3).values
    close(best, [pair.score for pair in listed[f"L{layer}H1.VO"].pairs])


def test_filters_restrict_the_search() -> None:
    base, tuned = changed("gpt2", shaken(0.05))
    found = diff(base, tuned, n=5, k=3, filter=only_ascii)
    assert found.source.filter == only_ascii.describe()
    mask = only_ascii.mask(base.vocabulary, 37)
    for change in found.changes:
        tokens = [s.token for s in change.top] + [p.row for p in change.pairs]
        assert all(mask[token.id] for token in tokens)


@pytest.mark.parametrize("view", [{"calibrated": True}, {"centred": True}, {"inverse": "pinv"}])
def test_views(view: dict[str, Any]) -> None:
    """The base's view reads the difference."""
    base, tuned = changed("llama", shaken(0.05))
    base = base.view(**view)
    found = diff(base, tuned, n=300, k=3, groups=["values", "keys"])
    assert found.source.view == base.options
    for change in found.changes[:20]:
        delta = tuned[change.address].tensor - base[change.address].tensor
        kind = "value" if change.group == "values" else "key"
        (expected,) = base.space.readings(delta[None], kind, [""], 3)
        assert [s.token.id for s in change.top] == [s.token.id for s in expected.top]


def test_through_the_tuned_embedding() -> None:
    base, tuned = changed("llama", shaken(0.3))
    found = diff(base, tuned, n=50, k=3, groups=["values"], through="tuned")
    for change in found.changes:
        delta = tuned[change.address].tensor - base[change.address].tensor
        (expected,) = tuned.space.readings(delta[None], "value", [""], 3)
        assert [s.token.id for s in change.top] == [s.token.id for s in expected.top]


# ---------------------------------------------------------------------- how it is shown


@pytest.mark.slow
def test_the_result() -> None:
    base, tuned = changed("llama", shaken(0.05))
    found = diff(base, tuned, n=10, k=3, each=2)
    tellings = [c.telling for c in found.changes]
    assert tellings == sorted(tellings, reverse=True)
    for group in {c.group for c in found.changes}:
        assert sum(c.group == group for c in found.changes) >= 2
    answer = found.to_dict()
    for change in answer["changes"]:
        keys = {"address", "group", "layer", "absolute", "relative", "telling", "legibility"}
        assert keys <= set(change)
        assert change["group"] in GROUPS
        if change["group"] in ("VO", "QK"):
            assert set(change["pairs"][0]) == {"score", "row", "col"}
        else:
            assert set(change["top"][0]) == {"score", "token"}
            assert len(change["bottom"]) == 3
    frame = found.to_pandas()
    assert list(frame["address"]) == [c.address for c in found.changes]
    assert len(found.sizes_to_pandas()) == len(found.sizes)
    assert "The most telling changes" in str(found)
    some = list({c.group for c in found.changes} - {"VO", "QK"})
    alone, ten = (diff(base, tuned, n=n, k=3, each=0, groups=some) for n in (1, 10))
    assert alone.changes == ten.changes[:1]


def test_the_report_escapes_tokens() -> None:
    """`<script>` and `<b>bold</b>` are tokens of the vocabulary."""

    def change(module: Any) -> None:
        E = embedding(opened(build("gpt2"))).float()
        module.transformer.h[0].mlp.c_proj.weight[3] += 2 * E[:, 8] + E[:, 9]
        module.transformer.wte.weight[8] += 0.3

    base, tuned = changed("gpt2", change)
    tuned.checkpoint.name = "<script>alert(1)</script>"
    found = diff(base, tuned)
    for text in (found.to_html(), found._repr_html_()):
        assert "&lt;script&gt;" in text
        assert "<b>bold" not in text
        assert "<script>alert" not in text
    page = found.to_html()
    assert page.count("<script>") == page.count("</script>") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert 'data-group="values"' in page


@pytest.mark.parametrize(
    ("share", "text"), [(0.5, "50 %"), (0.012, "1.2 %"), (1e-6, "<0.01 %"), (12.0, "1,200 %")]
)
def test_percent(share: float, text: str) -> None:
    assert show_percent(share) == text
