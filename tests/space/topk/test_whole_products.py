"""Products of bytes against whole numbers of 64 bits."""

from typing import Any

import pytest
import torch

from lexray.space.topk import whole_products as module
from lexray.space.topk.whole_products import MOST, WholeProducts, whole_products

CPU = torch.device("cpu")
WAYS = [
    pytest.param(
        way,
        id=name,
        marks=pytest.mark.skipif(not module._can_multiply(way), reason="not whole here"),
    )
    for name, way in (("eight bits", module._VNNI), ("seven bits", module._AVX2))
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 3, 64, 196, 2048])
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("cols", [1, 3, 64, 513])
@pytest.mark.parametrize("absolute", [False, True])
def test_what_reaches_does_so_in_steps(
    way: WholeProducts, width: int, rows: int, cols: int, absolute: bool
) -> None:
    generator = torch.Generator().manual_seed(width + rows + cols)
    x = torch.randint(-way.most, way.most + 1, (rows, width), generator=generator).float()
    y = torch.randint(-MOST, MOST + 1, (cols, width), generator=generator).float()
    x[0], y[0] = way.most, -MOST
    sums = (x.long() @ y.long().T).double()
    sums = sums.abs() if absolute else sums
    bytes_of = way.rows(x), way.cols(y)
    for most in (1.0, 100.0, float(sums.max().clamp(min=1)) + 1):
        reach = (most * torch.linspace(-0.1, 1.0, rows)).floor()
        found, least = way.multiply(*bytes_of, reach, absolute=absolute)
        assert found.shape == (rows, cols)
        passing, reaching = found >= least[:, None], sums >= reach[:, None]
        assert passing[reaching].all()
        steps = max(1.0, float(reach.max()) / (126 if absolute else 254))
        held_back = sums < reach[:, None] - 1.01 * steps
        assert not (passing & held_back & (reach[:, None] > steps)).any()
        same = reach.amax().expand(rows)
        found, least = way.multiply(*bytes_of, same, absolute=absolute)
        assert (found >= least[:, None])[sums >= same[:, None]].all()


def test_only_what_is_whole_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = module._of_this_processor.__wrapped__
    assert chosen() in (None, module._AMX, module._VNNI, module._AVX2)
    monkeypatch.setattr(module, "_can_multiply", lambda way: way is module._AVX2)
    assert chosen() in (None, module._AVX2)
    monkeypatch.setattr(module, "_can_multiply", lambda way: False)
    assert chosen() is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", ["saturates", "cuts", "rounds to float32", "is not there"])
def test_products_that_are_not_whole_are_noticed(
    way: WholeProducts, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def linear(x: Any, scale: float, shift: int, y: Any, *rest: Any) -> torch.Tensor:
        if wrong == "is not there":
            raise RuntimeError("no kernel for this")
        y, step, dtype = y.double(), rest[3], rest[5]
        if wrong == "saturates":
            pairs = x.double().unflatten(1, (-1, 2))[:, None] * y.unflatten(1, (-1, 2))
            sums = pairs.sum(-1).clamp(max=2.0**15 - 1 if way is module._VNNI else 2.0**14).sum(-1)
        else:
            sums = x.double() @ y.T
        if wrong == "rounds to float32":  # as if sums had 23 bits
            sums = (sums / 32).floor() * 32
        steps = (sums - shift * y.sum(1)) / step
        limits = torch.iinfo(dtype)
        steps = steps.floor() if wrong == "cuts" else steps.round()
        return steps.clamp(limits.min, limits.max).to(dtype)

    monkeypatch.setattr(WholeProducts, "cols", lambda self, y: y)
    monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", linear)
    assert not module._can_multiply(way)


def test_other_devices_and_sums_beyond_32_bits_have_none() -> None:
    assert whole_products(torch.device("meta")) is None
    assert whole_products(CPU, module._WIDEST) is None
    assert whole_products(CPU, 64) == module._of_this_processor()
