"""The app itself: routes, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from lexray.errors import LexrayError
from lexray.result.page import dump_json
from lexray.web.answers import Answers, BusyError, wait_for
from lexray.web.desk import Desk, Errand, QueueFullError
from lexray.web.files import static_file
from lexray.web.frame import plain_page, whole_page
from lexray.web.guard import Door, Guard
from lexray.web.library import Library, NotServedError, Stamp
from lexray.web.markup import el
from lexray.web.packed import Drawing
from lexray.web.pages.book import NoPageError, open_sheet
from lexray.web.pages.map import list_shelf, show_map, show_shelf
from lexray.web.pages.search import address_in
from lexray.web.printed import Press, Printed
from lexray.web.query import Query
from lexray.web.sheet import Content, Failed, Section, Sheet, Viewpoint, other_name, twin
from lexray.web.show.sheets import show_section, show_sheet
from lexray.web.worker import Evaluation

PATIENCE = 0.35
"""Seconds that a page waits for its sections; those that take longer follow."""
LOOK = 0.25
"""Seconds between two looks at a run, and at whether anyone still waits for it."""


@dataclass(frozen=True)
class Asked:
    """A page, or a section of one, that is read and not yet written."""

    sheet: Sheet
    section: Section | None
    read: tuple[tuple[Section, Content | None], ...]
    query: dict[str, str]
    form: str


class App:
    """What the routes share: the library, what was worked out, the worker's desk."""

    def __init__(self, library: Library, answers: Answers, desk: Desk) -> None:
        self.library, self.answers, self.desk = library, answers, desk
        self.press = Press()

    # ------------------------------------------------------------------ pages

    async def home(self, request: Request) -> Response:
        if len(self.library) == 1:
            return RedirectResponse(f"/{self.library.served[0].slug}/map", 302)
        main = await run_in_threadpool(show_shelf, self.library)
        return HTMLResponse(whole_page("Models", main, library=self.library))

    async def shelf(self, request: Request) -> Response:
        return _json(await run_in_threadpool(list_shelf, self.library))

    async def model(self, request: Request) -> Response:
        self.library[request.path_params["slug"]]
        return RedirectResponse(f"/{request.path_params['slug']}/map", 302)

    async def page(self, request: Request) -> Response:
        """What was sent before and still holds, or the page made anew."""
        served = self.library[request.path_params["slug"]]
        key, stamp = (request.url.path, request.url.query), served.stamp
        page = self.press.find(key, stamp, self._is_done)
        if page is not None:
            return page.answer(request)
        made = await self._make(request, stamp)
        if isinstance(made, Response):
            return made
        self.press.keep(key, made)
        return made.answer(request)

    def _is_done(self, key: Any) -> bool:
        run = self.desk.find(key)
        return run is not None and run.state == "done"

    async def _make(self, request: Request, stamp: Stamp) -> Printed | Response:
        slug, path, form = _parse(request)
        query = dict(request.query_params)
        sheet, section = await run_in_threadpool(open_sheet, self.library, slug, path, Query(query))
        at = address_in(Query(query)) if sheet.kind == "search" and form == "html" else None
        if at is not None and section is None:
            return RedirectResponse(sheet.place.link(at), 302)
        if form == "json" and section is not None and section.when != "now":
            return _json(await self._one(sheet, section, request))
        wanted = tuple(sheet.sections) if section is None else (section,)
        if sheet.kind == "map" and section is None and form == "html":
            wanted = ()  # which its own module asks for
        read = await self._read(sheet, None if form == "json" else PATIENCE, wanted)
        if form == "draw":
            if len(read) != 1 or not isinstance(read[0], Drawing):
                raise LexrayError("this is not drawn, or not worked out yet")
            return _json(read[0].page)
        asked = Asked(sheet, section, tuple(zip(wanted, read, strict=True)), query, form)
        text = await run_in_threadpool(self._write, asked)
        left = tuple(_key(sheet.place, part) for part, content in asked.read if content is None)
        # what is worked out with the page and was not in time comes with the next one
        late = any(part.when == "now" and content is None for part, content in asked.read)
        failed = any(isinstance(content, Failed) for _, content in asked.read)
        kind = "application/json" if form == "json" else "text/html"
        return Printed(text, kind, stamp, left, whole=not (late or failed))

    def _write(self, asked: Asked) -> str:
        """A page, a part of one, or its twin."""
        sheet, query = asked.sheet, asked.query
        contents = [content for _, content in asked.read]
        if asked.form == "json" and asked.section is None:
            hrefs = [sheet.twin_link(query, part.name) for part in sheet.sections]
            return dump_json(twin(sheet, contents, hrefs))
        if asked.section is not None:
            (content,) = contents
            if asked.form == "json":
                assert content is not None
                return dump_json(_say(sheet, asked.section, content))
            part = show_section(sheet, asked.section, content, query)
            if asked.form == "part":
                return part
            main = el("div", el("h1", sheet.title), part, class_="sections alone")
            return whole_page(sheet.title, main, library=self.library, place=sheet.place)
        if sheet.kind == "map":
            return whole_page(
                sheet.title,
                show_map(sheet, query),
                library=self.library,
                place=sheet.place,
                tab="map",
                modules=("/static/map.js",),
                wide=True,
            )
        drawn = sheet.kind == "prompt"
        return whole_page(
            f"{sheet.title} of {sheet.place.served.title}",
            show_sheet(sheet, contents, query),
            library=self.library,
            place=sheet.place,
            tab=sheet.kind,
            sheets=("/static/flow.css", "/static/attention.css") if drawn else (),
            modules=("/static/prompt.js",) if drawn else (),
            wide=drawn,
        )

    async def _read(
        self, sheet: Sheet, patience: float | None, wanted: Sequence[Section]
    ) -> list[Content | None]:
        """What is known of some sections, or becomes known in time; of others None."""
        asked: list[Future[Any] | Content | None] = []
        for section in wanted:
            key = _key(sheet.place, section)
            run = self.desk.find(key)
            if run is not None and run.state == "done":
                asked.append(run.result)
            elif section.when == "now":
                asked.append(self.answers.ask(key, _work(sheet.place, section)))
            else:
                asked.append(None)
        await wait_for([each for each in asked if isinstance(each, Future)], patience)
        return [_settle(each) if isinstance(each, Future) else each for each in asked]

    async def _one(self, sheet: Sheet, section: Section, request: Request) -> dict[str, Any]:
        """The twin of a section, however long it takes, as long as someone waits."""
        (content,) = await self._read(sheet, None, (section,))
        if content is None:
            run = self._begin(sheet, section)
            while not run.ended.is_set():
                await asyncio.sleep(LOOK)
                if await request.is_disconnected():
                    self.desk.cancel(run, gently=True)
                    raise LexrayError("nobody waits for this any more")
            if run.state != "done":
                raise LexrayError(run.words or "this was cancelled")
            content = run.result
        return _say(sheet, section, content)

    # ------------------------------------------------------------------ runs

    def _begin(self, sheet: Sheet, section: Section) -> Errand:
        place = sheet.place
        others = tuple(
            (other_name(each), each.slug)
            for each in self.library
            if other_name(each) in section.call.names
        )
        work = Evaluation(
            place.served.slug, place.view, place.offset, section.call, others, section.given
        )
        return self.desk.submit(
            _key(place, section), work, urgent=section.urgent or section.when == "asked"
        )

    async def begin(self, request: Request) -> Response:
        slug, path, _ = _parse(request)
        query = Query(dict(request.query_params))
        sheet, section = await run_in_threadpool(open_sheet, self.library, slug, path, query)
        if section is None:
            raise LexrayError("a run is begun for a section of a page")
        if section.when == "now":
            await self._read(sheet, None, (section,))
            return _json({"run": "", "state": "done"})
        run = self._begin(sheet, section)
        return _json(run.to_dict(self.desk.ahead(run)))

    async def look(self, request: Request) -> Response:
        run = self.desk[request.path_params["run"]]
        return _json(run.to_dict(self.desk.ahead(run)))

    async def cancel(self, request: Request) -> Response:
        run = self.desk[request.path_params["run"]]
        self.desk.cancel(run, gently="gently" in request.query_params)
        return _json(run.to_dict())


def _parse(request: Request) -> tuple[str, list[str], str]:
    """The model's name, the path under it, and which form of the page is wanted."""
    path = request.path_params["path"]
    form = "html"
    for ending in ("json", "part", "draw"):
        if path.endswith(f".{ending}"):
            path, form = path.removesuffix(f".{ending}"), ending
    return request.path_params["slug"], [part for part in path.split("/") if part], form


def _key(place: Viewpoint, section: Section) -> tuple[str, ...]:
    given = (f"{key} = {call.text}" for key, call in section.given)
    stored = (str(place.served.stamp),) if section.call.root == "atlas" else ()
    return place.served.slug, place.view, str(place.offset), section.call.text, *given, *stored


def _work(place: Viewpoint, section: Section) -> Callable[[], Any]:
    def work() -> Any:
        import lexray

        if section.call.root == "atlas":  # which has a lock of its own
            return section.call.evaluate({"atlas": place.atlas})
        with place.served.lock:
            return section.call.evaluate({"lx": lexray, "model": place.model})

    return work


def _say(sheet: Sheet, section: Section, content: Content) -> dict[str, Any]:
    """The twin of a section."""
    return {
        "section": section.name,
        "title": section.title,
        "python": sheet.script(section),
        "command": section.command,
        "content": content.to_dict(),
    }


def _settle(future: Future[Any]) -> Content | None:
    """What a section came to; None if it is not there yet."""
    if not future.done():
        return None
    error = future.exception()
    if error is None:
        content: Content = future.result()
        return content
    if isinstance(error, LexrayError):
        return Failed(str(error))
    raise error


def _json(data: Any, status: int = 200) -> Response:
    return Response(dump_json(data), status, media_type="application/json")


async def explain(request: Request, error: Exception) -> Response:
    """A user's mistake in words; the form is that of what was asked for."""
    status = 404 if isinstance(error, NotServedError | NoPageError) else 400
    if isinstance(error, BusyError | QueueFullError):
        status = 503
    words = str(error)
    if request.url.path.endswith(".json") or request.method != "GET":
        return _json({"error": words}, status)
    if request.url.path.endswith(".part"):
        return HTMLResponse(el("p", words, class_="failed", role="alert"), status)
    title = "There is no such page" if status == 404 else "That did not work"
    return HTMLResponse(plain_page(title, el("p", words, class_="lead")), status)


def make_app(library: Library, door: Door, *, desk: Desk | None = None) -> Guard:
    """The app for a library, behind its door."""
    answers = Answers()
    desk = desk or Desk({each.slug: each.origin for each in library})
    app = App(library, answers, desk)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        yield
        answers.close()
        desk.close()

    routes = [
        Route("/", app.home),
        Route("/index.json", app.shelf),
        Route("/static/{name}", static_file),
        Route("/runs/{run}", app.look),
        Route("/runs/{run}/cancel", app.cancel, methods=["POST"]),
        Route("/{slug}", app.model),
        Route("/{slug}/{path:path}", app.page, methods=["GET"]),
        Route("/{slug}/{path:path}", app.begin, methods=["POST"]),
    ]
    inner = Starlette(routes=routes, exception_handlers={LexrayError: explain}, lifespan=lifespan)
    return Guard(inner, door)
