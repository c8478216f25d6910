"""The graph in a real JupyterLab: as it shows itself, and as a widget by anywidget's loader."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.flow import synthetic

if any(find_spec(name) is None for name in ("playwright", "jupyterlab", "nbformat")):
    pytest.skip("needs JupyterLab: `make browser` installs it", allow_module_level=True)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs one"),
]
ROOT = Path(__file__).parents[3]
PATIENCE = 120_000
"""Milliseconds: a busy machine takes long to start a kernel."""
CELLS = (
    "from lexray.flow import Flow\n"
    "graph = Flow.from_json(open('graph.json', encoding='utf-8').read())\n"
    "graph",
    "live = graph.widget()\nlive",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A JupyterLab of its own, with nothing of this machine's settings; its address and folder."""
    home = tmp_path_factory.mktemp("lab")
    work = home / "work"
    work.mkdir()
    graph = synthetic.graph((3, 4, 5), heads=2, neurons=(3, 2))
    (work / "graph.json").write_text(graph.to_json(), "utf-8")
    import nbformat

    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "python3"}
    nbformat.write(book, work / "flow.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"HOME": str(home), "PYTHONPATH": path, "JUPYTER_NO_CONFIG": "1"}
    env = {k: v for k, v in env.items() if k not in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *(f"--port={port}", "--ip=127.0.0.1", "--ServerApp.port_retries=0"),
        *("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"),
        f"--ServerApp.root_dir={work}",
        *("--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",),
    ]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=work)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{address}/api/status", server, home / "log")
        yield address, work
    finally:
        server.terminate()
        server.wait(600)


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(PATIENCE // 500):
        if server.poll() is not None:
            pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")
        try:
            urllib.request.urlopen(address, timeout=60).read()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"JupyterLab does not answer: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def page(lab: tuple[str, Path]) -> Iterator[Any]:
    """The notebook, run and saved."""
    address, work = lab
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 1400, "height": 1800}, reduced_motion="reduce", color_scheme="light"
        )
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/lab/tree/flow.ipynb")
        page.wait_for_selector(".jp-Cell")
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        menu(page, "Run", "Run All Cells")
        drawn(page, 2)
        page.keyboard.press("Control+s")
        page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
        for _ in range(100):
            if "lexray-flow" in (work / "flow.ipynb").read_text("utf-8"):
                break
            time.sleep(0.1)
        yield page
        browser.close()


def drawn(page: Any, cells: int) -> None:
    """Waits until so many graphs are there, with all their closed blocks."""
    page.wait_for_function(
        "(n) => document.querySelectorAll('.lexray-flow [data-layer]').length === 3 * n", arg=cells
    )


def flow(page: Any, cell: int) -> Any:
    return page.locator(".lexray-flow").nth(cell)


@pytest.mark.parametrize("cell", [0, 1])
def test_it_draws_opens_and_selects(page: Any, cell: int) -> None:
    one = flow(page, cell)
    closed = one.locator("[data-node]").count()
    one.locator('[data-layer="4"]').click()
    assert one.locator("[data-node]").count() > closed
    one.locator('[data-layer="4"]').focus()
    page.keyboard.press("Enter")
    assert one.locator("[data-node]").count() == closed
    one.locator("[data-node]").first.click()
    assert one.locator(".lf-panel").is_visible()
    assert one.locator(".lf-panel .lf-bar-word").count() > 5
    page.keyboard.press("Escape")


def test_it_follows_the_lab_and_keeps_its_own_choice(page: Any) -> None:
    themes = lambda: [flow(page, i).get_attribute("data-theme") for i in range(2)]  # noqa: E731
    menu(page, "Settings", "Theme", "JupyterLab Dark")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    assert themes() == ["dark", "dark"]
    menu(page, "Settings", "Theme", "JupyterLab Light")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'true'")
    assert themes() == ["light", "light"]


def menu(page: Any, first: str, *others: str) -> None:
    """Chooses from the menus, which take no click before they have come to rest."""
    page.click(f'.lm-MenuBar-itemLabel:text-is("{first}")')
    for label in others:
        entry = page.locator(f'.lm-Menu-itemLabel:text-is("{label}")')
        entry.wait_for()
        page.wait_for_timeout(1000)
        entry.hover()
        page.wait_for_timeout(500)
        entry.click()


def test_a_reload_with_its_kernel_keeps_both(page: Any) -> None:
    page.reload()
    drawn(page, 2)


def test_a_reload_without_its_kernel_keeps_the_cell(page: Any, lab: tuple[str, Path]) -> None:
    address, _ = lab
    with urllib.request.urlopen(f"{address}/api/sessions") as answer:
        sessions = json.load(answer)
    assert sessions
    for session in sessions:
        request = urllib.request.Request(f"{address}/api/sessions/{session['id']}", method="DELETE")
        urllib.request.urlopen(request, timeout=600)
    page.goto(f"{address}/lab/tree/flow.ipynb?reset&kernel=none")
    page.wait_for_function("() => document.querySelectorAll('.lexray-flow').length >= 1")
    one = flow(page, 0)
    closed = one.locator("[data-node]").count()
    one.locator('[data-layer="4"]').click()
    assert one.locator("[data-node]").count() > closed


def test_nbconvert_keeps_a_picture(page: Any, lab: tuple[str, Path]) -> None:
    """In HTML it stays interactive; where scripts may not run there is the image."""
    import nbconvert
    import nbformat

    book = nbformat.read(lab[1] / "flow.ipynb", as_version=4)
    text, _ = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(book)
    assert "data:image/svg+xml;base64," in text
    file = lab[1] / "flow.html"
    file.write_text(text, "utf-8")
    for scripts in (True, False):
        context = page.context.browser.new_context(java_script_enabled=scripts, offline=True)
        shown = context.new_page()
        shown.goto(file.as_uri(), wait_until="domcontentloaded")
        if scripts:
            shown.wait_for_selector(".lexray-flow [data-node]")
        else:
            box = shown.locator('img[src^="data:image/svg+xml"]').first.bounding_box()
            assert box is not None
            assert box["width"] > 300
        context.close()
