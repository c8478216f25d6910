"""Nothing takes the CPU for granted: engines and searches on a device that is not there.

`tests.device` is one without float64 and decompositions, as MPS, or one that has all, as CUDA:
tensors of two places that meet, float64 made there and the like are errors. Answers are those of
the CPU, and what waits for the device is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import lexray as lx
from lexray.model import head_matrices
from lexray.model.model import Model
from lexray.space import kernels, top_pairs, top_vectors
from lexray.space.kernels import exactly
from lexray.space.topk import pairs as engine
from lexray.space.topk.pairs import Sign
from lexray.space.topk.sides import Tiling
from tests.device import NAME, Device

SMALL = Tiling(rows=32, cols=64, corner=32)


@pytest.fixture(params=["meagre", "full"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    found = Device(meagre=request.param == "meagre")
    for module in (kernels, head_matrices):
        monkeypatch.setattr(
            module, "has_float64", lambda place: place.type == "cpu" or not found.meagre
        )
    with found:
        yield found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heavy(rows: int, seed: int) -> Tensor:
    """Rows of very different sizes around a mean: both bounds have something to do."""
    return random(rows, 12, seed=seed) * random(rows, 1, seed=seed + 1).exp() + 1


# ---------------------------------------------------------------------- the device itself


def test_it_refuses_what_a_device_refuses() -> None:
    here = random(3, 3)
    with Device() as device:
        there = device.place(here)
        with pytest.raises(RuntimeError, match="meet"):
            there @ here
        with pytest.raises(RuntimeError, match="meet"):
            torch.mm(there, there, out=here.clone())
        with pytest.raises(RuntimeError, match="meet"):
            there.index_select(0, torch.tensor([1]))
        with pytest.raises(TypeError, match="float64"):
            there.double()
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, dtype=torch.float64, device=there.device)
        with pytest.raises(NotImplementedError):
            torch.linalg.eigh(there)
        with pytest.raises(TypeError, match="array"):
            there.numpy()
        assert there[torch.tensor([2, 0])].tolist() == here[[2, 0]].tolist()
        assert (there * 2).cpu().tolist() == (here * 2).tolist()
        assert device.waits == {"copied": 2}
        assert float(there.sum()) == float(here.sum())
        assert device.waits == {"copied": 2, "asked": 1}
        assert exactly(there.cpu()).dtype == torch.float64


# ---------------------------------------------------------------------- the engines


def factors(kind: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
    A, B = heavy(300, 0), heavy(270, 5)
    options: dict[str, Any] = {}
    if kind == "groups":
        options = {"row_groups": torch.arange(300) % 7, "col_groups": torch.arange(270) % 7}
    if kind == "zeros":
        A[::3], B[5] = 0, 0
    if kind == "some":
        options = {"rows": torch.arange(0, 300, 2), "cols": torch.arange(50)}
    return A, B, options


@pytest.fixture
def pairs_on_the_cpu(
    kind: str, bounded: bool, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """Asked for before the device is there, which sees every operation."""
    monkeypatch.setattr(engine, "_BOUNDS_WORTH", float("inf") if bounded else 0.0)
    A, B, options = factors(kind)
    return [x.tolist() for x in top_pairs(A, B, 40, sign=sign, tiling=SMALL, **options)[:3]]


@pytest.mark.parametrize("sign", ["largest", "smallest", "absolute"])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("kind", ["plain", "groups", "zeros", "some"])
def test_pairs(
    pairs_on_the_cpu: list[Any], device: Device, kind: str, bounded: bool, sign: Sign
) -> None:
    A, B, options = factors(kind)
    found = top_pairs(device.place(A), device.place(B), 40, sign=sign, tiling=SMALL, **options)
    assert [x.tolist() for x in found[:3]] == pairs_on_the_cpu


def test_tied_pairs(device: Device) -> None:
    A = torch.ones(200, 4)
    found = top_pairs(device.place(A), device.place(A), 300, tiling=SMALL)
    assert (found.rows * 200 + found.cols).tolist() == list(range(300))


def test_tiles_without_a_find_wait_for_nothing_but_the_look() -> None:
    """Twice as many tiles: no more numbers that are asked for, and no more copies, than for the
    bins of columns, which are as many as before."""
    waits = []
    for rows in (2000, 4000):
        with Device() as device:
            A, B = random(rows, 8), random(200, 8, seed=1)
            A[7], B[9] = 50, 50  # all that counts
            tiling = Tiling(rows=16, cols=50, corner=16)
            top_pairs(device.place(A), device.place(B), 1, tiling=tiling)
            waits.append(device.waits.total())
    assert waits[1] <= waits[0] + 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_vectors(device: Device, dtype: torch.dtype) -> None:
    X, E = random(30, 8), random(8, 500, seed=1).to(dtype)
    E[:, 100:104] = E[:, :4]  # ties
    left_out, scale = torch.tensor([3, 77]), random(500, seed=2).exp()
    expected = top_vectors(X, E, 9, scale=scale, left_out=left_out)
    placed = [device.place(x) for x in (X, E, scale)]
    found = top_vectors(placed[0], placed[1], 9, scale=placed[2], left_out=left_out)
    assert found.top_ids.tolist() == expected.top_ids.tolist()
    assert found.bottom_ids.tolist() == expected.bottom_ids.tolist()


# ---------------------------------------------------------------------- a model on it


QUESTIONS: dict[str, Callable[[Model], Any]] = {
    "value": lambda m: m["L1N3.value"].top(5),
    "key": lambda m: m["L0N3.key"].every(5) if m.options.sees_and_expects else m["L0N3.key"].top(5),
    "VO": lambda m: m["L1H1"].vo.top(8),
    "QK": lambda m: m["L1H1"].qk.top(8),
    "row": lambda m: m["L1H1"].vo.row(" the", 5),
    "lookup": lambda m: m.lookup(" the").top(5),
    "dot": lambda m: m.lookup(" the", by="dot").top(5),
    "nearest": lambda m: m.nearest("L1N3.value", 5, among=["values", "Q"]),
    "related": lambda m: m.related(k=20),
    "align": lambda m: lx.align(m, m, ["values", "Q"]),
    "tokens": lambda m: m.view(centred=True)["L1N3.value"].top(5),
    "pinv": lambda m: m.view("raw", inverse="pinv")["L1N3.key"].top(5),
}


@pytest.fixture
def said_on_the_cpu(question: str, view: Any) -> str:
    """Asked for before the device is there, which sees every operation."""
    return answer(question, view)


@cache
def answer(question: str, view: Any) -> str:
    return str(QUESTIONS[question](lx.Model.from_pretrained("demo").view(view)))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("view", ["raw", "standard"])
def test_a_model_answers_as_on_the_cpu(
    said_on_the_cpu: str, device: Device, question: str, view: Any
) -> None:
    there = lx.Model.from_pretrained("demo", device=f"{NAME}:0").view(view)
    assert there.space.writing.rows.device.type == NAME
    assert str(QUESTIONS[question](there)) == said_on_the_cpu
    assert device.waits.total() < 600


def difference(place: str, view: Any) -> str:
    return str(
        lx.diff(
            lx.Model.from_pretrained("demo", device=place).view(view),
            lx.Model.from_pretrained("demo", device=place, dtype=torch.float16).view(view),
            groups=["values", "Q", "VO"],
            n=4,
            each=1,
        )
    )


@pytest.fixture
def difference_on_the_cpu(view: Any) -> str:
    return difference("cpu", view)


@pytest.mark.parametrize("view", ["raw", "standard"])
def test_what_changed(difference_on_the_cpu: str, device: Device, view: Any) -> None:
    """A difference has to be read from both models."""
    assert difference(f"{NAME}:0", view) == difference_on_the_cpu
