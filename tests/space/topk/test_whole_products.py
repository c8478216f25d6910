"""Products of bytes against whole numbers of 64 bits."""

import pytest
import torch

from lexray.space.topk import whole_products as module
from lexray.space.topk.whole_products import MOST, WholeProducts, multiply_whole, whole_products

CPU = torch.device("cpu")
WAYS = [
    pytest.param(
        way,
        id=name,
        marks=pytest.mark.skipif(not module._can_multiply(way), reason="not whole here"),
    )
    for name, way in (("signed", module._SIGNED), ("shifted", module._SHIFTED))
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("width", [1, 6, 64, 196, 512])
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("cols", [1, 3, 64, 512])
def test_products_are_whole(way: WholeProducts, width: int, rows: int, cols: int) -> None:
    generator = torch.Generator().manual_seed(width + rows + cols)
    x = torch.randint(-way.most, way.most + 1, (rows, width), generator=generator).float()
    y = torch.randint(-MOST, MOST + 1, (cols, width), generator=generator).float()
    x[0], y[0] = way.most, -MOST
    found = multiply_whole(way.rows(x), way.cols(y), torch.empty(rows, cols))
    assert found.shape == (rows, cols)
    assert torch.equal(found.long(), x.long() @ y.long().T)


def test_only_what_is_whole_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = module._of_this_processor.__wrapped__
    assert chosen() in (None, module._SIGNED, module._SHIFTED)
    monkeypatch.setattr(module, "_can_multiply", lambda way: way is module._SHIFTED)
    assert chosen() in (None, module._SHIFTED)
    monkeypatch.setattr(module, "_can_multiply", lambda way: False)
    assert chosen() is None


def test_sums_that_saturate_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    way = module._SIGNED
    monkeypatch.setattr(
        module,
        "multiply_whole",
        lambda x, y, out: (x.long() @ y.long().T).clamp(max=96 * 127 * 127 - 1),
    )
    assert not module._can_multiply(way)


def test_other_devices_and_sums_beyond_float32_have_none() -> None:
    assert whole_products(torch.device("meta")) is None
    assert whole_products(CPU, module._WIDEST) is None
    assert whole_products(CPU, 64) == module._of_this_processor()
