"""Products by oneDNN against torch's own, where both are there."""

import pytest
import torch
from torch import Tensor

from lexray.space.topk import products
from lexray.space.topk.products import rows_by


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


HAS_WIDER = products._has_wider.__wrapped__


@pytest.fixture(params=["here", "without"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(products, "_has_wider", lambda: False)
    return str(request.param)


@pytest.mark.parametrize("rows", [(), (1,), (7,), (300,), (3, 5), (0,)])
@pytest.mark.parametrize(("width", "others"), [(1, 1), (33, 5), (576, 192), (16, 0)])
def test_products_err_as_float32_does(rows: tuple[int, ...], width: int, others: int) -> None:
    X, W = draw(*rows, width), draw(others, width, seed=1)
    found, exact = rows_by(X, W), X.double() @ W.double().T
    assert found.shape == (*rows, others)
    assert found.dtype == torch.float32
    sizes = X.double().norm(dim=-1)[..., None] * W.double().norm(dim=-1)
    assert ((found - exact).abs() <= width * 2.0**-24 * sizes).all()


def test_some_rows_and_columns_are_those_of_all() -> None:
    X, W = draw(700, 96), draw(130, 96, seed=1)
    whole = rows_by(X, W)
    torch.testing.assert_close(rows_by(X[:256], W), whole[:256], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rows_by(X, W[64:128]), whole[:, 64:128], atol=1e-5, rtol=1e-5)


def test_matrices_that_are_not_contiguous() -> None:
    X, W = draw(40, 21).T, draw(40, 12, seed=1).T
    torch.testing.assert_close(rows_by(X, W), X.contiguous() @ W.T.contiguous())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_wider_dtype_is_kept(dtype: torch.dtype) -> None:
    X, W = draw(9, 12).to(dtype), draw(4, 12, seed=1)
    wider = torch.promote_types(dtype, torch.float32)
    found = rows_by(X, W)
    assert found.dtype == wider
    torch.testing.assert_close(found, X.to(wider) @ W.to(wider).T, atol=1e-5, rtol=1e-5)


def test_gradients_flow() -> None:
    X, W = draw(9, 12), draw(4, 12, seed=1).requires_grad_()
    rows_by(X, W).sum().backward()
    assert W.grad is not None
    torch.testing.assert_close(W.grad, X.sum(0).expand(4, 12))


def test_other_devices_keep_their_own() -> None:
    assert rows_by(draw(3, 4).to("meta"), draw(2, 4).to("meta")).shape == (3, 2)


def test_what_is_not_float32_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    plain = lambda X, W: X @ W.T  # noqa: E731
    monkeypatch.setattr(products, "_linear", plain)
    assert HAS_WIDER()
    monkeypatch.setattr(products, "_linear", lambda X, W: plain(X.bfloat16(), W.bfloat16()))
    assert not HAS_WIDER()
    monkeypatch.setattr(products, "_linear", lambda X, W: torch.ops.mkldnn.nothing_of_the_kind(X))
    assert not HAS_WIDER()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(products, "_linear", plain)
    assert not HAS_WIDER()
