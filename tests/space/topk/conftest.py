from collections.abc import Iterator

import pytest

from lexray.space.topk import pairs


@pytest.fixture(autouse=True, scope="module")
def bounded() -> Iterator[None]:
    """Factors of tests are small, where bounds cost more than the product: search with them all
    the same, but where a test says otherwise (test_plain)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "_BOUNDS_WORTH", float("inf"))
        yield
