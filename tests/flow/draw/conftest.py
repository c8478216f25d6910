"""A browser, and a page of it that complains of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lexray.flow import FlowGraph
from tests.flow import synthetic
from tests.flow.draw.chromium import CHROMIUM, Opener


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Opens a graph's page; at the end, nothing was complained of and nothing was requested."""
    said: list[str] = []
    asked: list[str] = []
    pages = []

    def opened(graph: FlowGraph, state: str = "", **options: Any) -> Any:
        path = tmp_path / f"{len(pages)}.html"
        graph.to_html(path)
        page = browser.new_page(
            viewport={"width": 1400, "height": 800}, reduced_motion="reduce", **options
        )
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri() + state)
        page.wait_for_selector("[data-node]", state="attached")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []
    assert all(url.startswith(tmp_path.as_uri()) for url in asked)
    assert len(asked) == len(pages)


@pytest.fixture(scope="module")
def graph() -> FlowGraph:
    return synthetic.graph()


@pytest.fixture(scope="module")
def many() -> FlowGraph:
    return synthetic.graph((3, 4, 5), heads=2, neurons=(3, 2), embed=True)
