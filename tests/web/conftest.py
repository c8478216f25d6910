from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from lexray.web import server
from lexray.web.library import Library
from tests.web.house import demo_library, open_client


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Pages wait for their sections, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "PATIENCE", 600)
        yield


@pytest.fixture(scope="session")
def library() -> Library:
    return demo_library()


@pytest.fixture(scope="session")
def client(library: Library) -> Iterator[TestClient]:
    with open_client(library) as found:
        yield found
