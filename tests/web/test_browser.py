"""The app in Chromium: every page, both themes, phone and wall, keys, links, and nobody outside."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lexray.web.desk import Desk
from lexray.web.guard import Door
from lexray.web.library import Library
from lexray.web.server import make_app
from lexray.web.start import bind
from tests.web.house import Prompt, demo_library, hostile_library

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
uvicorn = pytest.importorskip("uvicorn", reason="needs the app's extra")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs one"),
]
Opener = Callable[..., Any]
READY = "section:not([data-when])"
PAGES = {
    "/demo/map": "#map[data-ready=listed]",
    "/demo/map?colour=effect&text=This+movie+was": "#map[data-ready=listed]",
    "/demo/L2H1?of=%C2%B7film&tokens=he,she,his": f"{READY}#card",
    "/demo/L3N17": f"{READY}#nearest",
    "/demo/L3H2.V12": f"{READY}#term",
    "/demo/L2.mlp_norm": f"{READY}#readings",
    "/demo/L3": f"{READY}#neurons",
    "/demo/token/500": f"{READY}#writers",
    "/demo/search?q=actor": f"{READY}#found",
    "/demo/prompt?text=This+movie+was": ".lexray-flow",
    "/demo/compare/demo-sentiment?of=L3N17": f"{READY}#partners",
}
PATIENCE = 120_000


def serve(library: Library, desk: Desk | None = None) -> tuple[Any, str, str]:
    """A server in a thread; the address that opens it, and where it stands."""
    listening = bind("127.0.0.1", 0)
    door = Door(listening.getsockname()[1])
    config = uvicorn.Config(make_app(library, door, desk=desk), log_level="warning")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.02)
    return server, door.address, f"http://127.0.0.1:{door.port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[str, str]]:
    library = demo_library("demo", "demo-sentiment")
    server, address, base = serve(library)
    yield address, base
    server.should_exit = True


@pytest.fixture
def show(browser: Any, demo: tuple[str, str]) -> Iterator[Opener]:
    """Opens a page; at the end nothing was complained of, and nothing asked of anyone else."""
    address, base = demo
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def opened(path: str, ready: str = "", **options: Any) -> Any:
        given = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**given, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address.replace("/?", f"{path}{'&' if '?' in path else '?'}"), timeout=PATIENCE)
        assert "token=" not in page.url
        if ready:
            page.wait_for_selector(ready, timeout=PATIENCE, state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert all(url.startswith((base, "data:", "blob:")) for url in asked)


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, from npm where that is at hand."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here, which has axe-core")
    ran = subprocess.run(
        [npm, "pack", "axe-core", "--silent"],
        cwd=folder,
        capture_output=True,
        timeout=1800,
        check=False,
    )
    found = list(folder.glob("*.tgz"))
    if ran.returncode or not found:
        pytest.skip("axe-core cannot be fetched from npm here")
    with tarfile.open(found[0]) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(show: Opener, axe: str, browser: Any, path: str, scheme: str) -> None:
    """No serious fault by axe-core, in both themes."""
    page = show(path, PAGES[path], color_scheme=scheme, bypass_csp=True)
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize(("width", "height"), [(390, 844), (3840, 2160)])
@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_phones_and_walls(show: Opener, path: str, width: int, height: int) -> None:
    page = show(path, PAGES[path], viewport={"width": width, "height": height})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    size = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert size > 20 if width > 3000 else 14 <= size < 18


@pytest.mark.parametrize("path", PAGES)
def test_a_link_leads_back_to_the_same_state(show: Opener, path: str) -> None:
    """What is seen depends on the address alone."""
    first = show(path, PAGES[path])
    words = (
        "() => document.querySelector('h1').textContent + document.querySelectorAll('.tok').length"
    )
    first.wait_for_timeout(300)
    address = first.url
    first.reload()
    first.wait_for_selector(PAGES[path], timeout=PATIENCE, state="attached")
    assert first.url == address
    assert first.evaluate("document.querySelector('h1').textContent")
    assert first.evaluate(words)


def test_keys(show: Opener) -> None:
    page = show("/demo/L2H1", f"{READY}#vo")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.closest('li')?.textContent")
    page.keyboard.press("j")
    second = page.evaluate("document.activeElement.closest('li')?.textContent")
    assert first
    assert second
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.closest('li')?.textContent") == first
    page.keyboard.press("?")
    assert page.is_visible("dialog#keys")
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    page.wait_for_url("**/demo/L2H2")
    page.keyboard.press("[")
    page.wait_for_url("**/demo/L2H1")
    page.keyboard.press("}")
    page.wait_for_url("**/demo/L3H1")
    page.keyboard.press("m")
    page.wait_for_url("**/demo/map")


def test_searching_by_address_and_by_words(show: Opener) -> None:
    page = show("/demo/map", "#map[data-ready]")
    page.keyboard.press("/")
    page.keyboard.type("l3n17")
    page.keyboard.press("Enter")
    page.wait_for_url("**/demo/L3N17")


def test_the_map_reads_under_the_pointer_and_opens(show: Opener) -> None:
    page = show("/demo/map", "#map[data-ready=listed]")
    assert page.locator("#map-legend button").count() >= 1
    page.hover("[data-head=L2H1]")
    page.wait_for_selector("#tip .tok >> nth=3", timeout=PATIENCE)
    assert "L2H1" in page.inner_text("#tip")
    page.hover("a.strip[data-layer='L3']", position={"x": 200, "y": 10})
    page.wait_for_selector("#tip:has-text('L3N')")
    page.click("a.strip[data-layer='L3']", position={"x": 200, "y": 10})
    page.wait_for_url("**/demo/L3N*")


def test_a_typed_token_is_read_at_once_and_stands_in_the_address(show: Opener) -> None:
    page = show("/demo/L2H1", f"{READY}#vo")
    page.fill(".ask input[name=of]", "·film")
    page.wait_for_selector(f"{READY}#of", timeout=PATIENCE)
    assert "of=" in page.url
    assert page.locator("section#of .tok").count() > 10


def test_copying(show: Opener) -> None:
    page = show("/demo/L3N17", f"{READY}#readings")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("section#readings [data-copy] >> nth=0")
    text = page.evaluate("navigator.clipboard.readText()")
    assert 'model = lx.Model.from_pretrained("demo")' in text
    assert 'model["L3N17"].top(24)' in text


def test_a_click_changes_a_run(show: Opener) -> None:
    page = show("/demo/prompt?text=This+movie+was", f"{READY}#adds")
    page.click("section#adds .ways a >> nth=0")
    page.wait_for_selector(f"{READY}#effect", timeout=PATIENCE)
    assert "edits=ablate" in page.url
    assert "unchanged" in page.inner_text("section#effect")
    page.click("ul.edits a")
    page.wait_for_selector(f"{READY}#next", timeout=PATIENCE)
    assert "ablate" not in page.url


def test_printing_hides_what_cannot_be_pressed(show: Opener) -> None:
    page = show("/demo/L3N17", f"{READY}#readings")
    page.emulate_media(media="print")
    assert not page.is_visible("header.bar")
    assert not page.is_visible("section#evidence")
    assert page.is_visible("section#readings")


def test_paper_is_light(show: Opener) -> None:
    """Who reads in the dark prints on white, strips of neurons too."""
    page = show("/demo/map", "#map[data-ready=listed]", color_scheme="dark")
    total = """() => {
        const context = new OffscreenCanvas(9, 8).getContext("2d", { willReadFrequently: true });
        context.drawImage(document.querySelector("canvas"), 0, 0);
        return context.getImageData(0, 0, 9, 8).data.reduce((a, b) => a + b);
    }"""
    dark = page.evaluate(total)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(18, 23, 28)"
    page.wait_for_timeout(300)
    assert page.evaluate(total) > dark
    assert not page.is_visible(".legend-bar")


def test_an_offset_is_turned_by_keys(browser: Any, tmp_path: Path) -> None:
    """The address follows, the slider keeps the keys, and a reload shows the same."""
    library = hostile_library(tmp_path)
    server, address, _ = serve(library, Prompt(library))
    page = browser.new_page()
    try:
        page.goto(address.replace("/?", "/hostile/L1H1?"), timeout=PATIENCE)
        page.wait_for_selector(f"{READY}#qk .pairs", timeout=PATIENCE)
        page.focus("[data-offset]")
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**/hostile/L1H1?offset=-1", timeout=PATIENCE)
        page.wait_for_selector("section#qk[data-part$='offset=-1']:not([data-when])")
        assert page.evaluate("document.activeElement.dataset.offset") == "L1H1"
        shown = page.inner_text("section#qk .pairs")
        page.reload()
        page.wait_for_selector(f"{READY}#qk .pairs", timeout=PATIENCE)
        assert page.inner_text("section#qk output") == "1 before"
        assert page.inner_text("section#qk .pairs") == shown
    finally:
        page.close()
        server.should_exit = True


def test_partners_lead_to_the_other_model(show: Opener) -> None:
    page = show("/demo/compare/demo-sentiment?of=L3N17", f"{READY}#partners")
    page.click("section#partners .found .addr >> nth=0")
    page.wait_for_url("**/demo-sentiment/L*")


def test_a_vocabulary_of_markup_runs_nothing(browser: Any, tmp_path: Path) -> None:
    library = hostile_library(tmp_path)
    server, address, base = serve(library, Prompt(library))
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    paths = ["map", "L0H1", "L1N3", "token/3", "token/30", "search?q=img", "L0"]
    paths.append("prompt?text=%3Cunk%3E")
    try:
        for path in paths:
            mark = "&" if "?" in path else "?"
            page.goto(address.replace("/?", f"/hostile/{path}{mark}"), timeout=PATIENCE)
            page.wait_for_timeout(1500)
            assert page.evaluate("window.hit") is None, path
        assert all(url.startswith(base) for url in asked)
        assert not any("/x" in url for url in asked)
    finally:
        page.close()
        server.should_exit = True


def test_strangers_see_a_door(browser: Any, demo: tuple[str, str]) -> None:
    page = browser.new_page()
    answer = page.goto(f"{demo[1]}/demo/map")
    assert answer is not None
    assert answer.status == 401
    assert "token" in page.inner_text("main")
    page.fill("input[name=token]", demo[0].partition("token=")[2])
    page.click("form button")
    page.wait_for_selector("#map, .shelf")
    page.close()
