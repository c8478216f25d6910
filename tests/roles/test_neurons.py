"""Relations of neurons: from lookups of single words, and planted."""

from __future__ import annotations

import pytest
import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.roles.relation import Relation
from lexray.roles.tokens import tasks_of
from lexray.space.space import space_of
from tests.roles.planting import fresh, reopened, write
from tests.vocabulary.vocabularies import worded

PLANTED = Relation("planted", tuple(zip("abcde", "fghij", strict=True)))
OTHER = Relation("other", tuple(zip("klmnop", "qrstuk", strict=True)))


def pool_of(model: Model) -> list[int]:
    tasks = tasks_of(model, [PLANTED, OTHER])
    return sorted({i for task in tasks for i in (*task.sources, *task.targets)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2-moe"])
def test_scores_are_those_of_lookups(name: str) -> None:
    model = worded(name).view(folded=True)
    found = model.neuron_relations([PLANTED, OTHER])
    pool = pool_of(model)
    gated = name != "gpt2"
    sides = {}
    for side, among in (("reads", "gates" if gated else "keys"), ("writes", "values")):
        scores = torch.stack([model.lookup(i, among).scores.double() for i in pool], 1)
        sides[side] = scores, scores.mean(1), scores.std(1)
    names = [f"{group.address_of(i)}" for group in model.groups("value") for i in range(group.n)]
    tasks = {task.relation.name: task for task in tasks_of(model, [PLANTED, OTHER])}
    for score in found.scores[:30]:
        at = names.index(f"{score.address}.value")
        task = tasks[score.relation.name]
        for side, ids, said in (
            ("reads", task.sources, score.reads),
            ("writes", task.targets, score.sign * score.writes),
        ):
            scores, mean, spread = sides[side]
            own = scores[at, [pool.index(i) for i in dict.fromkeys(ids)]]
            n = len(own)
            error = spread[at] * ((1 - n / len(pool)) / n) ** 0.5
            assert said == pytest.approx(float((own.mean() - mean[at]) / error), rel=2e-3, abs=2e-3)
        assert score.score == min(score.reads, score.writes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2-moe", "phi", "bert"])
def test_a_planted_neuron_comes_first(name: str) -> None:
    model = fresh(name)
    assert min(score.q for score in model.neuron_relations([PLANTED, OTHER]).scores) > 0.01
    layer = model.n_layers - 1
    unit = next(iter(model.layers[layer].feed_forwards))
    space = space_of(model, layer)
    for words, kind, linear in (
        ("abcde", "key", unit.spec.w_in if unit.spec.w_gate is None else unit.spec.w_gate),
        ("fghij", "value", unit.spec.w_out),
    ):
        pool = pool_of(model)
        E = torch.cat(list(space.whole(kind).only(torch.tensor(pool)).columns())).double()  # type: ignore[arg-type]
        wanted = torch.tensor([float(model.vocabulary.shown(i) in words) for i in pool])
        x = torch.linalg.pinv(E) @ wanted.double()
        if kind == "value":
            write(model, linear, x[None], inputs=slice(4, 5))
        else:
            write(model, linear, x[:, None], outputs=slice(4, 5))
    found = reopened(model).neuron_relations([PLANTED, OTHER])
    (best,) = found.best("planted", 1)
    assert (best.address, best.sign) == (f"{unit.address}N4", 1)
    assert best.q < (0.05 if name == "qwen2-moe" else 0.01)  # four hundred neurons, few words
    assert "planted" in str(found)
    assert len(found.to_pandas()) == len(found.scores)


def test_no_words() -> None:
    odd = Relation("odd", (("日本", "東京"), ("中国", "北京")))
    with pytest.raises(LexrayError, match="no two pairs of whole words"):
        worded("llama").neuron_relations(odd)
