"""Tables and charts in Chromium: what does not fit is wrapped, not cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.result.charts.threads import Thread, Threads
from lexray.result.page import page as whole_page
from lexray.result.table import Table, html_table
from tests.flow.draw.chromium import CHROMIUM, NEEDS_CHROMIUM

pytestmark = NEEDS_CHROMIUM
RIGHT = "all => all.map((e) => e.getBoundingClientRect().right)"
ACROSS = """all => all.filter((e) => e.getClientRects().length).map((e) => {
  const { x, width } = e.getBBox();
  return [x, x + width, e.ownerSVGElement.viewBox.baseVal.width]; })"""
"""Where each text begins and ends, and how wide its picture is."""


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_cut_off(width: int, tmp_path: Path) -> None:
    """A token of 200 letters leaves room for the column behind it on a screen, and what sides of
    threads are called is wider than their words."""
    table = Table(("top", "score"), (("x" * 200, 1.25), ("·short", 0.5)), title="words")
    threads = Threads(
        "pairs", "", ("attended to", "written"), {0: "("}, {1: ")"}, (Thread(0, 1, 1.0),)
    )
    body = f"<main>{html_table(table)}{threads.html()}</main>"
    path = tmp_path / "page.html"
    path.write_text(whole_page("words", body), encoding="utf-8")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(path.as_uri())
        ends = page.eval_on_selector_all("td", RIGHT)
        texts = page.eval_on_selector_all(".chart text", ACROSS)
        browser.close()
    assert max(ends) <= max(width, 700)
    assert texts
    assert all(0 <= left <= right <= whole for left, right, whole in texts)
