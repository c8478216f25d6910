"""Pages that are sent again: only while they hold, within a bound, and not to who has them."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import lexray as lx
from lexray.model.origin import Origin
from lexray.web.library import Library
from lexray.web.printed import LARGEST, Press, Printed
from tests.web.house import open_client


def nothing(_: Hashable) -> bool:
    return False


def test_a_page_holds_until_what_it_rests_on_changes() -> None:
    press = Press()
    page = Printed("<p>a", "text/html", stamp=1, open=("later",))
    press.keep("/a", page)
    assert press.find("/a", 1, nothing) is page
    assert press.find("/b", 1, nothing) is None
    assert press.find("/a", 1, lambda key: key == "later") is None
    press.keep("/a", page)
    assert press.find("/a", 2, nothing) is None
    assert len(press) == 0


def test_pages_are_kept_in_a_bound_the_last_ones_longest() -> None:
    press = Press(most=10)
    for name in "abc":
        press.keep(name, Printed(name * 4, "text/html"))
        press.find("a", None, nothing)
    assert press.find("b", None, nothing) is None
    assert press.find("a", None, nothing) is not None
    assert press.find("c", None, nothing) is not None
    press.keep("broken", Printed("x", "text/html", whole=False))
    press.keep("large", Printed("x" * (LARGEST + 1), "text/html"))
    assert len(press) == 2


@pytest.mark.slow
def test_who_has_a_page_is_told_so(client: TestClient) -> None:
    for path in ("/demo/L3N17?k=3", "/demo/L3N17/readings.json?k=3"):
        first = client.get(path)
        tag = first.headers["etag"]
        assert "no-cache" in first.headers["cache-control"]
        again = client.get(path, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-security-policy" in again.headers
        assert client.get(path).content == first.content
    assert "etag" not in client.get("/demo/L99N1").headers


def test_a_section_that_comes_later_is_on_the_page_then(client: TestClient) -> None:
    path = "/demo/L2N333?k=2"
    before = client.get(path).text
    assert 'id="writers"' in before
    assert before.count('data-when="soon"') > 0
    client.get("/demo/L2N333/writers.json?k=2")
    after = client.get(path).text
    assert after.count('data-when="soon"') == before.count('data-when="soon"') - 1


@pytest.mark.slow
def test_what_is_written_to_an_atlas_later_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="an atlas needs DuckDB")
    where = tmp_path / "atlas"
    lx.Atlas.write("demo", where, kinds=["keys", "values"], layers=[3], k=40)
    with open_client(Library.of([Origin(str(where))])) as client:
        path = "/demo/search/stored.json?q=film&among=values"
        layers = {row["layer"] for row in client.get(path).json()["content"]["rows"]}
        assert layers == {3}
        lx.Atlas.write("demo", where, kinds=["keys", "values"], layers=[2, 3], k=40)
        manifest = where / "manifest.json"
        os.utime(manifest, ns=(1, manifest.stat().st_mtime_ns + 10**9))
        layers = {row["layer"] for row in client.get(path).json()["content"]["rows"]}
        assert layers == {2, 3}
