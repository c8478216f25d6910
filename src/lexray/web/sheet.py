"""What a page holds: sections, each a call of the library and what it came to.

The HTML page and its JSON twin show the same sheet. A section says when it is worked out: `now`
(with the page, if it is quick), `soon` (right after it, by itself), `asked` (when someone wants it,
by the worker).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from lexray.model.model import Model
from lexray.web.expression import Expression, spell
from lexray.web.library import Served, spell_opening, view_of, words_of
from lexray.web.markup import Markup, el
from lexray.web.query import Query, link

When = Literal["now", "soon", "asked"]
Width = Literal["whole", "half", "third", "rest"]
VIEWS = ("standard", "raw")
IN_FULL = ("ablate", "evidence")
"""Commands that run in float32 unless they are told a dtype."""


@runtime_checkable
class Content(Protocol):
    """A result of the library, or a part of one."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Viewpoint:
    """Which model is looked at, and how it is read: what every link carries on."""

    served: Served
    view: str = "standard"
    offset: int = 0

    @classmethod
    def of(cls, served: Served, query: Query) -> Viewpoint:
        return cls(served, query.choice("view", VIEWS), query.number("offset", 0, -512, 512))

    def link(self, *path: str | int, **query: object) -> str:
        view = None if self.view == "standard" else self.view
        return link((self.served.slug, *path), view=view, **query)

    @property
    def hidden(self) -> Markup | None:
        """What a form sends along besides what is typed."""
        if self.view == "standard":
            return None
        return el("input", type="hidden", name="view", value=self.view)

    @property
    def model(self) -> Model:
        """The model under this view."""
        return view_of(self.served.model, self.view, self.offset)

    @property
    def atlas(self) -> Any:
        """What is stored under this view, if anything is."""
        return None if self.offset else self.served.see_atlas(self.view)

    def stores(self, job: str, *, kind: str | None = None, layer: int | None = None) -> bool:
        """Whether something is stored: see `Atlas.holds`."""
        atlas = self.atlas
        return atlas is not None and atlas.holds(job, kind=kind, layer=layer)

    def stores_lists(self, k: int) -> bool:
        """Whether stored lists are as long as that."""
        atlas = self.atlas
        return atlas is not None and k <= atlas.manifest.options["k"]

    @property
    def spelled(self) -> str:
        """The same in Python."""
        given = [] if self.view == "standard" else [f'"{self.view}"']
        given += [f"offset={self.offset}"] if self.offset else []
        view = f".view({', '.join(given)})" if given else ""
        return f"{spell_opening(self.served.origin)}{view}"

    @property
    def opening(self) -> str:
        """How a script begins."""
        return f"import lexray as lx\n\nmodel = {self.spelled}\n"

    def command(self, name: str, *words: str | int, offset: bool = False) -> str:
        """A command line; `offset`: whether the command knows of one."""
        parts = ["lexray", name, *words_of(self.served.origin), *map(str, words)]
        if name in IN_FULL and self.served.origin.dtype is None:
            parts += ["--dtype", self.served.precision]
        if self.view != "standard":
            parts += ["--view", self.view]
        if offset and self.offset:
            parts += ["--offset", str(self.offset)]
        return shlex.join(parts)


def other_name(served: Served) -> str:
    """What a second model is called in Python."""
    return "other_" + "".join(c if c.isalnum() else "_" for c in served.slug).lower()


@dataclass(frozen=True)
class Section:
    """A part of a page, before it is read."""

    name: str
    title: str
    call: Expression
    command: str = ""
    says: str = ""
    """What one sees, in a sentence."""
    when: When = "now"
    width: Width = "whole"
    controls: Markup = field(default=Markup(""), compare=False)
    """What a reader can turn, above the content."""
    among: tuple[int, ...] = ()
    """The tokens of a heat map, in the order of its rows and columns."""
    given: tuple[tuple[str, Expression], ...] = ()
    """Names that the call uses besides the model, and what they stand for."""
    urgent: bool = False
    """Whether somebody waits for it, not only a page that fills."""
    waits: str = ""
    """What is said while it is worked out, or on the button that asks for it."""


@dataclass(frozen=True)
class Sheet:
    """A page, before its sections are read."""

    kind: str
    title: str
    place: Viewpoint
    path: tuple[str | int, ...]
    """Under the model's own."""
    sections: Sequence[Section]
    lead: Markup = field(default=Markup(""), compare=False)
    """Below the title."""
    form: Markup = field(default=Markup(""), compare=False)
    """What can be typed."""
    trail: Sequence[tuple[str, str]] = ()
    """Where it lies: names and addresses."""
    before: str = ""
    after: str = ""
    up: str = ""
    down: str = ""
    """Neighbours, for `[`, `]` and the arrows beside the title; the same in other layers."""
    others: tuple[Served, ...] = ()
    """Further models that calls speak of."""
    facts: tuple[tuple[str, Any], ...] = ()
    """What the page says by itself, for its twin."""

    @property
    def python(self) -> str:
        """All of it, as one can run it."""
        calls = [f"{section.call.text}\n" for section in self.sections]
        return self.place.opening + "".join(self._given(self.sections)) + "".join(calls)

    def script(self, section: Section) -> str:
        """A section as one can run it."""
        return self.place.opening + "".join(self._given((section,))) + section.call.text + "\n"

    def _given(self, sections: Sequence[Section]) -> list[str]:
        lines = [f"{key} = {call.text}\n" for section in sections for key, call in section.given]
        if any("atlas" in section.call.names for section in sections):
            atlas = self.place.atlas
            lines.insert(0, f"atlas = lx.Atlas({spell(str(atlas.where))}, {spell(atlas.view)})\n")
        for other in self.others:
            if any(other_name(other) in section.call.names for section in sections):
                seen = Viewpoint(other, self.place.view).spelled
                lines.insert(0, f"{other_name(other)} = {seen}\n")
        return list(dict.fromkeys(lines))

    def twin_link(self, query: Mapping[str, str], section: str = "") -> str:
        """The address of its JSON twin, or of a section's."""
        kept = {key: value for key, value in query.items() if key != "view"}
        parts = (*self.path, section) if section else self.path
        path, mark, tail = self.place.link(*parts, **kept).partition("?")
        return f"{path}.json{mark}{tail}"

    @property
    def command(self) -> str:
        return "\n".join(dict.fromkeys(s.command for s in self.sections if s.command))


@dataclass(frozen=True)
class Failed:
    """A section that could not be read, in words."""

    words: str

    def to_dict(self) -> dict[str, Any]:
        return {"error": self.words}


def twin(sheet: Sheet, read: Sequence[Content | None], hrefs: Sequence[str]) -> dict[str, Any]:
    """The JSON twin: the same content, with the calls; what is not read yet as its address."""
    return {
        "page": sheet.kind,
        "title": sheet.title,
        "model": sheet.place.served.title,
        "view": sheet.place.view,
        "python": sheet.python,
        "command": sheet.command,
        **dict(sheet.facts),
        "sections": {
            section.name: {
                "title": section.title,
                "python": sheet.script(section),
                "command": section.command,
                **({"href": href} if content is None else {"content": content.to_dict()}),
            }
            for section, content, href in zip(sheet.sections, read, hrefs, strict=True)
        },
    }
