"""The pictures of docs/app.md, one of each page: `python -m tools.docs.app` (needs chromium)."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import uvicorn
from playwright.sync_api import Page, sync_playwright

from lexray.model.origin import Origin
from lexray.web.guard import Door
from lexray.web.library import Library
from lexray.web.server import make_app
from lexray.web.start import bind

FOLDER = Path(__file__).parents[2] / "docs"
DONE = "section:not([data-when])"
PAGES = {
    "map": ("/demo/map", "#map[data-ready=listed]"),
    "effect": ("/demo/map?colour=effect&text=This+movie+was+a+very", "#map[data-ready=listed]"),
    "head": ("/demo/L3H1?of=%C2%B7film&tokens=he,she,his,her", f"{DONE}#card"),
    "neuron": ("/demo/L3N496", f"{DONE}#nearest"),
    "token": ("/demo/token/500", f"{DONE}#writers"),
    "search": ("/demo/search?q=actor+%C2%B7film", f"{DONE}#found"),
    "prompt": ("/demo/prompt?text=This+movie+was+a+very&edits=ablate+L3H2", ".lexray-flow"),
    "compare": ("/demo/compare/demo-sentiment?of=L3N496", f"{DONE}#partners"),
    "layer": ("/demo/L3", DONE),
    "subhead": ("/demo/L3H2.V12", f"{DONE}#term"),
}
"""By the picture's name: the page, and what is there when it is whole."""
PATIENCE = 300_000


def main(names: list[str]) -> None:
    """All pictures, or those that are named."""
    listening = bind("127.0.0.1", 0)
    door = Door(listening.getsockname()[1])
    library = Library.of([Origin("demo"), Origin("demo-sentiment")])
    server = uvicorn.Server(uvicorn.Config(make_app(library, door), log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    try:
        while not server.started:
            time.sleep(0.05)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.goto(door.address, timeout=PATIENCE)
            for name in names or PAGES:
                draw(page, f"http://127.0.0.1:{door.port}", name)
    finally:
        server.should_exit = True
        running.join()


def draw(page: Page, base: str, name: str) -> None:
    path, ready = PAGES[name]
    page.goto(base + path, timeout=PATIENCE)
    page.wait_for_selector(ready, state="attached", timeout=PATIENCE)
    page.wait_for_timeout(500)
    page.screenshot(path=FOLDER / f"app-{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
