"""Links between parts against dense float64 products, and planted in models of every kind."""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.roles.composition import composition
from lexray.roles.wiring import check_wanted
from tests.dense import NAMES as DENSE
from tests.dense import Dense, dense
from tests.families.span import spanning
from tests.families.zoo import build
from tests.roles.planting import fresh, reopened, write
from tests.vocabulary.vocabularies import worded


@cache
def opened(name: str) -> Model:
    return worded(name)


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


def writers_of(r: Dense) -> dict[str, Tensor]:
    """Every part that writes, as a matrix whose rows lie in the residual stream."""
    found = {name.removesuffix(".value"): x[None] for name, x in r.vectors("value", True).items()}
    for n, block in enumerate(r.blocks):
        for h in range(block.n_heads):
            V, O = block.columns("V", h, True), block.columns("O", h, True)  # noqa: E741
            found[f"L{n}H{h}"] = V @ O
    return found


def readers_of(r: Dense) -> dict[str, Tensor]:
    """Every part that reads, as a matrix whose columns lie in the residual stream."""
    found = {
        name: x[:, None] for kind in ("key", "gate") for name, x in r.vectors(kind, True).items()
    }
    for n, block in enumerate(r.blocks):
        for h in range(block.n_heads):
            W = {kind: block.columns(kind, h, True) for kind in ("Q", "K", "V", "O")}
            found[f"L{n}H{h}.Q"] = W["Q"] @ W["K"].T
            found[f"L{n}H{h}.K"] = W["K"] @ W["Q"].T
            found[f"L{n}H{h}.V"] = W["V"] @ W["O"]
    return found


def layer_of(name: str) -> int:
    return int(name[1:].split("H")[0].split("N")[0].split("E")[0].split("S")[0])


def kind_of(name: str) -> str:
    return name.rpartition(".")[2] if "." in name else "O" if "H" in name else "value"


def strength(w: Tensor, x: Tensor) -> float:
    product = w @ x
    size = float(product) if product.numel() == 1 else float(product.norm())
    return size / float(w.norm() * x.norm())


def later(name: str, writer: str, reader: str) -> bool:
    if layer_of(writer) != layer_of(reader):
        return layer_of(writer) < layer_of(reader)
    after = kind_of(writer) == "O" and kind_of(reader) in ("key", "gate")
    return after and not opened(name).architecture.blocks[layer_of(writer)].parallel


@cache
def written(name: str) -> dict[str, Tensor]:
    return writers_of(reference(name))


@cache
def read(name: str) -> dict[str, Tensor]:
    return readers_of(reference(name))


@cache
def chance(name: str, writer: tuple[str, int], reader: tuple[str, int]) -> float:
    """The root mean square over all pairs of the two kinds in the two layers."""
    mine = [x for n, x in written(name).items() if (kind_of(n), layer_of(n)) == writer]
    theirs = [x for n, x in read(name).items() if (kind_of(n), layer_of(n)) == reader]
    W = torch.stack([w.T @ w / w.norm() ** 2 for w in mine]).mean(0)
    X = torch.stack([x @ x.T / x.norm() ** 2 for x in theirs]).mean(0)
    return sqrt(float((W * X).sum()))


def chance_of(name: str, writer: str, reader: str) -> float:
    return chance(name, *((kind_of(n), layer_of(n)) for n in (writer, reader)))


@pytest.mark.parametrize("name", DENSE)
def test_readers_and_writers_are_all_there(name: str) -> None:
    """Exactly those of brute force, in its order, with its multiples of chance."""
    model = opened(name)
    all_writers, all_readers = written(name), read(name)
    unit = next(n for n in all_writers if kind_of(n) == "value")
    for address in ("L0H1", unit):
        expected = {
            n: strength(all_writers[address], x)
            for n, x in all_readers.items()
            if later(name, address, n)
        }
        found = model[address].readers(len(expected) + 5)
        assert {link.reader for link in found} == set(expected)
        for link in found:
            assert link.strength == pytest.approx(expected[link.reader], abs=2e-5)
        times = [abs(link.times) for link in found]
        assert times == sorted(times, reverse=True)
        for link in (found[0], found[-1]):
            by_chance = chance_of(name, address, link.reader)
            assert link.times == pytest.approx(link.strength / by_chance, rel=1e-3)
    last = model.n_layers - 1
    target = f"L{last}H2"
    found = model[target].writers(10_000, via="K")
    expected = {
        n: strength(w, all_readers[f"{target}.K"])
        for n, w in all_writers.items()
        if later(name, n, f"{target}.K")
    }
    assert {link.writer for link in found} == set(expected)
    for link in found:
        assert link.strength == pytest.approx(expected[link.writer], abs=2e-5)
    assert found[0].times == pytest.approx(
        found[0].strength / chance_of(name, found[0].writer, found[0].reader), rel=1e-3
    )


@pytest.mark.parametrize("name", DENSE)
def test_wires_are_the_best_of_all(name: str) -> None:
    values = {n: w[0] for n, w in written(name).items() if kind_of(n) == "value"}
    keys = {n: x[:, 0] for n, x in read(name).items() if kind_of(n) in ("key", "gate")}
    V, X = (torch.stack([x / x.norm() for x in side.values()]) for side in (values, keys))
    cosines = (V @ X.T).tolist()
    expected = sorted(
        (
            (abs(cosines[i][j]) / chance_of(name, a, b), a, b)
            for i, a in enumerate(values)
            for j, b in enumerate(keys)
            if layer_of(a) < layer_of(b)
        ),
        reverse=True,
    )[:15]
    found = opened(name).wires(15)
    times = [abs(link.times) for link in found]
    assert times == pytest.approx([t for t, *_ in expected], rel=1e-3)
    assert {(link.writer, link.reader) for link in found[:8]} == {
        (a, b) for _, a, b in expected[:8]
    }
    assert all(link.writes and link.reads for link in found)


@pytest.mark.parametrize("name", DENSE)
def test_compositions_are_those_of_dense_matrices(name: str) -> None:
    W, R = written(name), read(name)
    found = composition(opened(name), 10)
    heads = [n for n in W if "H" in n and "N" not in n]
    assert list(found.addresses) == heads
    for via in ("Q", "K", "V"):
        readers = {n: R[f"{n}.{via}"] for n in heads}
        grams = [W[n].T @ W[n] / W[n].norm() ** 2 for n in heads]
        grams += [x @ x.T / x.norm() ** 2 for x in readers.values()]
        m = torch.linalg.eigh(sum(grams)).eigenvectors[:, -1:]
        P = torch.eye(len(m), dtype=torch.float64) - m @ m.T
        for i, a in enumerate(heads):
            for j, b in enumerate(heads):
                plain, bare = found.scores[via][i, j], found.centred[via][i, j]
                if layer_of(a) >= layer_of(b):
                    assert np.isnan(plain)
                    assert np.isnan(bare)
                    continue
                assert plain == pytest.approx(strength(W[a], readers[b]), abs=2e-5)
                assert bare == pytest.approx(strength(W[a] @ P, P @ readers[b]), abs=5e-5)
    best = found.links[0]
    via = best.reader[-1]
    assert (
        best.strength == found.centred[via][heads.index(best.writer), heads.index(best.reader[:-2])]
    )
    assert {link["via"] for link in found.graph()["links"]} <= {"Q", "K", "V"}
    assert "by Q" in found.plot().to_svg()


@spanning
def test_a_planted_link_comes_first(name: str) -> None:
    """A later key that is an earlier value: first of all, and far above anything else."""
    model = fresh(name)
    if len(model.architecture.own_layers) < 2:
        pytest.skip("one layer, or one that all share: a link is then between any two")
    before = model.wires(1)[0]
    seen = model.view(folded=True)
    first = next(iter(seen.layers[0].feed_forwards)).neurons[3]
    last = next(iter(seen.layers[-1].feed_forwards))
    value, reader = first.W_out, last.spec.w_in
    norm = last.norms.pre_norm
    gain = None if norm is None else norm.read_gain(model.checkpoint)
    key = value if gain is None else value / gain.clamp(min=0.2)
    write(model, reader, key[:, None], outputs=slice(5, 6))
    found = reopened(model).wires(2)
    assert (found[0].writer, found[0].reader) == (str(first.address), f"{last.address}N5.key")
    assert abs(found[0].times) > 1.15 * abs(found[1].times)
    assert abs(found[0].strength) > 0.85
    assert abs(before.strength) < 0.85
    assert found[0].q < 0.01
    assert before.q > 0.001  # of 54 random models one may well lie below 0.01


def test_paths_are_products() -> None:
    model, r = opened("llama").view(folded=True), reference("llama")
    found = model.path("law", "L0H1", "L1H2.K", k=5)
    block, deeper = r.blocks
    x = r.E_out[:, model.vocabulary.id("law")]
    y = x @ block.columns("V", 1, True) @ block.columns("O", 1, True)
    z = y @ deeper.columns("K", 2, True) @ deeper.columns("Q", 2, True).T
    for step, vector, kind in zip(found.steps, (y, z), ("O", "Q"), strict=True):
        scores = vector @ r.columns(kind, folded=True)  # type: ignore[arg-type]
        top = scores.argsort(descending=True)[:5].tolist()
        assert list(step.tokens) == [model.vocabulary.shown(i) for i in top]
    M = deeper.columns("K", 2, True) @ deeper.columns("Q", 2, True).T
    assert found.steps[1].passes == pytest.approx(
        float((y @ M).norm() / (y.norm() * M.norm())) * sqrt(len(y)), rel=1e-4
    )
    neuron = model.path("law", "L0N3", "L1N7", k=5)
    gate, value = deeper.units[0].gate, deeper.units[0].value
    assert gate is not None
    assert deeper.ff_norm is not None
    u = r.vectors("gate", True)["L0N3.gate"] @ x * r.vectors("value", True)["L0N3.value"]
    u = (deeper.ff_norm.matrix @ gate)[:, 7] @ u * value[7]
    top = (u @ r.columns("value", folded=True)).argsort(descending=True)[:5].tolist()
    assert list(neuron.steps[1].tokens) == [model.vocabulary.shown(i) for i in top]


def test_mistakes() -> None:
    model = opened("llama")
    for ask, said in (
        (lambda: model["L0N3"].readers(0), "from 1 on"),
        (lambda: check_wanted("L1H2"), "readers"),
        (lambda: model.composition(0), "from 1 on"),
        (lambda: model["L0N3"].readers(5, via="X"), "not by 'X'"),
        (lambda: model["L1N3"].writers(5, via="Q"), "reads by key, gate"),
        (lambda: model.wires(3, via=["Q"]), "key or gate"),
        (lambda: model.composition(3, via=["key"]), "Q, K and V"),
        (lambda: model.path("law"), "at least one"),
        (lambda: model.path("law", "L1H1", "L0H1"), "does not come after"),
        (lambda: model.path("law", "L0H1.K", "L1H1"), "ends a path"),
        (lambda: model.path("law", "L0"), "no step"),
        (lambda: model.path("law", "L0N999"), "there is no L0N999"),
    ):
        with pytest.raises(LexrayError, match=said):
            ask()
    assert len(model["L1N3"].readers(5)) == 0
