"""A Hub whose answers are spoiled: its lists, headers and files; nothing but refusals comes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from lexray.checkpoint.hub.remote import RemoteCheckpoint
from lexray.checkpoint.hub.repository import fetch_folder
from lexray.errors import LexrayError
from tests.checkpoint.hub.test_session import COMMIT, head, listing, serve
from tests.checkpoint.hub.test_session import use as use
from tests.fuzz.spoil import NUMBERS, TEXTS, spoil_bytes, spoil_text

HEADERS = ("ETag", "X_Repo_Commit", "X_Linked_Etag", "X_Linked_Size", "Content_Range", "Location")
CASES = 60


def answers(random: Random) -> Callable[[str, str], Iterator[bytes]]:
    """A server that answers each request a little wrong."""

    def answer(method: str, path: str) -> Iterator[bytes]:
        body = listing() if "/api/" in path else json.dumps({"model_type": "llama"}).encode()
        if random.random() < 0.6:
            body = spoil_text(body, random)
        headers: dict[str, object] = {"ETag": '"abc"', "X_Repo_Commit": COMMIT}
        odd = [text for text in (*TEXTS, *map(str, NUMBERS)) if text.isascii() and "\0" not in text]
        for name in random.sample(HEADERS, random.randrange(3)):
            headers[name] = random.choice(odd)
        status = random.choice(["200 OK"] * 6 + ["206 Part", "302 Found", "404 No", "401 No"])
        raw = head(status, Content_Length=len(body), **headers) + (
            b"" if method == "HEAD" else body
        )
        yield spoil_bytes(raw, random, 80) if random.random() < 0.1 else raw

    return answer


@pytest.mark.parametrize("seed", range(CASES))
def test_a_spoiled_hub(
    seed: int, use: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    random = Random(f"hub {seed}")
    with serve(answers(random)) as url:
        use(url)
        for ask in (
            lambda: fetch_folder("org/one"),
            lambda: RemoteCheckpoint.open("org/one").names(),
        ):
            try:
                ask()
            except LexrayError as error:
                text = str(error)
                if len(text) > 5000:
                    pytest.fail(f"an error that nobody can read: {text[:200]}")
    assert {path.name for path in tmp_path.iterdir()} <= {"hf", "lexray"}
