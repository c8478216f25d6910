"""An app for tests: the demo model, or one whose every token is markup; work is done at once."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from lexray.errors import LexrayError
from lexray.model.origin import Origin
from lexray.web.desk import Desk, Errand
from lexray.web.guard import Door
from lexray.web.library import Library, Served
from lexray.web.server import make_app
from lexray.web.worker import Shop, Work
from tests.families.zoo import build
from tests.saved import write_tokenizer

PORT = 8642
HOSTILE = [
    "<unk>",
    *(f"<img src=x onerror=window.hit={i}>" for i in range(1, 13)),
    *(f"<script>window.hit={i}</script>" for i in range(13, 25)),
    *(f"\"'><svg onload=window.hit={i}>&amp;" for i in range(25, 37)),
]
"""Every token is markup, of the size of the zoo's models."""


class Shelf(Shop):
    """The library's own models in place of a worker's."""

    def __init__(self, library: Library) -> None:
        super().__init__({})
        self._library = library

    def __getitem__(self, slug: str) -> Any:
        return self._library[slug].model


class Prompt(Desk):
    """A desk without a worker: what is asked for is done before the answer."""

    def __init__(self, library: Library) -> None:
        super().__init__({})
        self._shelf = Shelf(library)

    def submit(self, key: Hashable, work: Work, *, urgent: bool = False) -> Errand:
        if (found := self.find(key)) is not None:
            return found
        run = Errand(f"run{len(self._runs)}", key, work, urgent, wanted=1)
        try:
            run.finish("done", work.run(self._shelf))
            self._by_key[key] = run
        except LexrayError as error:
            run.finish("failed", words=str(error))
        self._runs[run.id] = run
        return run


def demo_library(*names: str) -> Library:
    return Library.of([Origin(name) for name in names or ("demo",)])


def hostile_library(folder: Path, name: str = "llama") -> Library:
    """A tiny model in whose vocabulary everything is markup."""
    build(name).save_pretrained(folder)
    write_tokenizer(folder, HOSTILE)
    return Library([Served("hostile", Origin(str(folder)))])


def open_client(library: Library, *, known: bool = True, **options: Any) -> TestClient:
    """A browser that has opened the app, or (`known=False`) one that has not."""
    door = Door(PORT, token="open-sesame")
    app = make_app(library, door, desk=Prompt(library))
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", **options)
    if known:
        client.cookies.set(door.cookie, door.token)
    return client
