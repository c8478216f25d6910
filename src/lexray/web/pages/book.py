"""Which page an address names."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.web.library import Library
from lexray.web.pages.compare import read_compare
from lexray.web.pages.head import read_head
from lexray.web.pages.layer import read_layer
from lexray.web.pages.map import read_map
from lexray.web.pages.prompt import read_prompt
from lexray.web.pages.search import read_search
from lexray.web.pages.token import read_token
from lexray.web.pages.vector import read_vector
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint


class NoPageError(LexrayError):
    """An address that nothing lies at."""


def open_sheet(
    library: Library, slug: str, path: Sequence[str], query: Query
) -> tuple[Sheet, Section | None]:
    """The sheet at a path under a model's name, and the section, if one is asked for."""
    place = Viewpoint.of(library[slug], query)
    if not path:
        raise NoPageError(f"{slug} has pages such as map, search, prompt, L0H0 and token/0")
    length = 2 if path[0] in ("token", "compare") else 1
    sheet = _find(library, place, query, path[:length])
    rest = path[length:]
    if not rest:
        return sheet, None
    for section in sheet.sections:
        if [section.name] == list(rest):
            return sheet, section
    there = ", ".join(section.name for section in sheet.sections)
    raise NoPageError(f"{sheet.title} has no section {'/'.join(rest)!r}; there are {there}")


def _find(library: Library, place: Viewpoint, query: Query, path: Sequence[str]) -> Sheet:
    first = path[0]
    if first == "map":
        return read_map(library, place, query)
    if first == "prompt":
        return read_prompt(library, place, query)
    if first == "search":
        return read_search(library, place, query)
    if first == "compare":
        if len(path) < 2:
            raise NoPageError("compare it with what? as in compare/demo-sentiment")
        return read_compare(library, place, query, path[1])
    if first == "token":
        if len(path) < 2 or not path[1].isdecimal() or len(path[1]) > 9:
            raise NoPageError("tokens have pages by their id, as token/198")
        return read_token(library, place, query, int(path[1]))
    return _by_address(library, place, query, first)


def _by_address(library: Library, place: Viewpoint, query: Query, text: str) -> Sheet:
    try:
        at = Address.parse(text)
    except LexrayError as error:
        raise NoPageError(str(error)) from error
    if at.feature is not None:
        raise NoPageError(f"{at} is a feature of a dictionary, which the app does not show")
    if at.head is not None and at.subhead is None:
        return read_head(library, place, query, at)
    if at.neuron is None and at.part is None and at.head is None:
        return read_layer(library, place, query, at)
    return read_vector(library, place, query, at)
