"""Every result's JSON loads back into the same result, and into nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lexray as lx
from lexray import edits
from lexray.model.model import Model
from lexray.result.state import pack, unpack
from lexray.result.table import Result
from lexray.studies import find
from lexray.trace.trace import Trace

RESULTS: dict[str, Callable[[Model, Trace], Result]] = {
    "reading": lambda m, t: m["L2N3"].value.top(5),
    "named": lambda m, t: m["L2N3"].top(5),
    "readings": lambda m, t: m.layers[1].values.top(3).by_legibility(),
    "pairs": lambda m, t: m["L2H1"].vo.top(5),
    "directions": lambda m, t: m["L2H1"].vo.svd(2),
    "lookup": lambda m, t: m.lookup(" film").top(3),
    "nearest": lambda m, t: m.nearest("L2N3.value", 3),
    "related": lambda m, t: m.related(10, 0.5),
    "aside": lambda m, t: m.untrained(),
    "info": lambda m, t: m.info(),
    "relations": lambda m, t: m.relations(
        {"big": "bigger", "good": "better", "old": "older"}, shuffled=100
    ),
    "composition": lambda m, t: m.composition(5),
    "path": lambda m, t: m.path(" her", "L0H1", "L2H3.K"),
    "readers": lambda m, t: m["L1N5"].readers(3),
    "lens": lambda m, t: t.lens(target=" good", k=2),
    "lens of neurons": lambda m, t: t.lens("neurons", neurons=3, k=2),
    "contributions": lambda m, t: t.contributions(" good", shown=3),
    "leaves": lambda m, t: t.contributions(" good").top(3),
    "attention": lambda m, t: t.attention(layers=2),
    "flow": lambda m, t: t.flow(layers=[2], heads=1, neurons=(2, 1), k=3),
    "effect": lambda m, t: t.effect("ablate L2H3", " good"),
    "effects": lambda m, t: t.effects("layers", " good"),
    "patching": lambda m, t: lx.patching(t, m.trace("This book was a"), " good", of="residual"),
    "knockout": lambda m, t: lx.knockout(t, " good", window=2),
    "backward": lambda m, t: t.backward(" good", layers=[2], positions=-1),
    "score": lambda m, t: t.score(" good"),
    "generation": lambda m, t: m.generate("This film", 2, edits=[edits.ablate("L2H3")]),
    "catalogue": lambda m, t: m.catalogue(measure=False),
    "partners": lambda m, t: lx.partners(m, "L3H2", "demo-b"),
    "study": lambda m, t: find("isotropy")(m.view("raw")),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_pretrained("demo")


@pytest.fixture(scope="module")
def trace(model: Model) -> Trace:
    return model.trace("This film was a")


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_as_it_was(
    name: str, model: Model, trace: Trace, tmp_path: Path
) -> None:
    result = RESULTS[name](model, trace)
    path = tmp_path / "result.json"
    path.write_text(result.to_json())
    again = lx.load(path)
    assert type(again) is type(result)
    assert again == result
    assert str(again) == str(result)
    assert again.to_json() == result.to_json()
    assert again.to_html() == result.to_html()
    if hasattr(result, "plot"):
        assert again.plot().to_svg() == result.plot().to_svg()  # type: ignore[attr-defined]


def test_results_that_differ_are_not_equal(model: Model, trace: Trace) -> None:
    one = model["L2H1"].vo.top(5)
    assert one != replace(one, sign="smallest")
    a, b = trace.lens(k=2), trace.lens(k=2)
    assert a == b
    entropy = a.entropy.clone()
    entropy[0, 0] += 1
    assert a != replace(a, entropy=entropy)
    nan = torch.full_like(entropy, float("nan"))
    assert replace(a, entropy=nan) == replace(a, entropy=nan.clone())


Spoil = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: d.update(sign="smallest"), "changed by hand"),
        (lambda d: d.pop("lexray"), "no result of lexray's"),
        (lambda d: d.update(lexray=3), "damaged"),
        (lambda d: d["lexray"].update(root={"o": 10_000}), "damaged"),
        (lambda d: d["lexray"]["objects"].reverse(), "damaged|changed by hand"),
        (lambda d: d["lexray"]["classes"].append(["os:system", ["x"]]), "no result of lexray"),
        (lambda d: d["lexray"]["classes"].append(["lexray.cli.__main__:X", []]), "no result"),
        (lambda d: d["lexray"]["classes"].append(["lexray.result.pairs:Nothing", []]), "not have"),
        (lambda d: d["lexray"]["classes"].append(["lexray.model.model:Model", []]), "no result"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused(
    spoil: Spoil, said: str, model: Model, tmp_path: Path
) -> None:
    data = json.loads(model["L2H1"].vo.top(3).to_json())
    spoil(data)
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(lx.LexrayError, match=said):
        lx.load(path)


def test_numbers_and_containers_come_back() -> None:
    values = (1, 1.5, float("inf"), None, True, "x", [1, (2,)], {"a": (3,), 4: None}, {5})
    assert unpack(json.loads(json.dumps(pack(values)))) == (*values[:-1], frozenset({5}))
    with pytest.raises(TypeError, match="cannot be kept"):
        pack((lambda: 0,))
