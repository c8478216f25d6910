"""What charts are drawn with: SVG elements, and colours that are the theme's."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from lexray.result.letters import measure
from lexray.result.theme import MONOSPACE, PRINT, Theme

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NAMES = frozenset(field.name for field in fields(Theme))
DASHES = {"solid": "", "dash": "6 4", "dot": "1.5 3", "dashdot": "6 3 1.5 3"}


@dataclass(frozen=True)
class Mix:
    """The colour that lies `share` of the way from one of the theme's to another."""

    start: str
    stop: str
    share: float


Colour = str | Mix
"""The name of one of the theme's colours, a mix of two, or a colour as SVG writes it."""


class Pen:
    """Draws with a theme's colours, or without a theme with those of the page around it."""

    def __init__(self, theme: Theme | None) -> None:
        self.theme = theme
        self.parts: list[str] = []

    def colour(self, wanted: Colour) -> str:
        if isinstance(wanted, Mix):
            share = min(1.0, max(0.0, wanted.share)) if wanted.share == wanted.share else 0.0
            if self.theme is not None:
                return blend(self.colour(wanted.start), self.colour(wanted.stop), share)
            start, stop = self.colour(wanted.start), self.colour(wanted.stop)
            return f"color-mix(in srgb, {stop} {round(100 * share, 1):g}%, {start})"
        if wanted not in NAMES:
            return wanted
        if self.theme is None:
            return f"var(--lx-{wanted.replace('_', '-')})"
        return str(getattr(self.theme, wanted))

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: Colour,
        *,
        radius: float = 0.0,
        stroke: Colour | None = None,
        opacity: float = 1.0,
        said: str = "",
    ) -> None:
        more = f' rx="{short(radius)}"' if radius else ""
        more += f' stroke="{self.colour(stroke)}"' if stroke is not None else ""
        more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._add(
            f'rect x="{short(x)}" y="{short(y)}" width="{short(max(0.0, width))}" '
            f'height="{short(max(0.0, height))}" fill="{self.colour(fill)}"{more}',
            said,
        )

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        fill: Colour,
        *,
        stroke: Colour | None = None,
        opacity: float = 1.0,
        said: str = "",
    ) -> None:
        more = f' stroke="{self.colour(stroke)}"' if stroke is not None else ""
        more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._add(
            f'circle cx="{short(x)}" cy="{short(y)}" r="{short(radius)}" '
            f'fill="{self.colour(fill)}"{more}',
            said,
        )

    def path(
        self,
        path: str,
        stroke: Colour,
        width: float = 1.0,
        *,
        dash: str = "solid",
        opacity: float = 1.0,
        fill: Colour = "none",
        said: str = "",
    ) -> None:
        more = f' stroke-dasharray="{DASHES[dash]}"' if DASHES.get(dash) else ""
        more += f' stroke-opacity="{opacity:.2g}"' if opacity < 1 else ""
        self._add(
            f'path d="{path}" fill="{self.colour(fill)}" stroke="{self.colour(stroke)}" '
            f'stroke-width="{width:.3g}"{more}',
            said,
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 13.0,
        fill: Colour = "ink",
        *,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        turned: bool = False,
    ) -> None:
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="600"' if bold else ""
        more += f' font-family="{html.escape(MONOSPACE)}"' if mono else ""
        more += f' transform="rotate(-90 {short(x)} {short(y)})"' if turned else ""
        if text:
            self.parts.append(
                f'<text x="{short(x)}" y="{short(y)}" font-size="{size:g}" '
                f'fill="{self.colour(fill)}"{more}>{escape_xml(text)}</text>'
            )

    @contextmanager
    def moved(self, x: float, y: float, said: str = "") -> Iterator[None]:
        """What is drawn inside is drawn from here."""
        title = f"<title>{escape_xml(said)}</title>" if said else ""
        self.parts.append(f'<g transform="translate({short(x)} {short(y)})">{title}')
        yield
        self.parts.append("</g>")

    def keys(self, entries: Iterable[tuple[str, Colour]], room: float, y: float) -> float:
        """A legend in lines that fit; says where it ends."""
        x = 0.0
        for name, colour in entries:
            wide = 18 + measure(name, 12) + 18
            if x and x + wide > room:
                x, y = 0.0, y + 19
            self.rect(x, y - 9, 12, 10, colour, radius=3)
            self.text(x + 18, y, name, 12, "faint")
            x += wide
        return y

    def _add(self, element: str, said: str) -> None:
        tag = element.partition(" ")[0]
        inner = f"<title>{escape_xml(said)}</title>" if said else ""
        self.parts.append(f"<{element}>{inner}</{tag}>" if inner else f"<{element}/>")

    def document(self, width: float, height: float, title: str, described: str = "") -> str:
        """All that was drawn, as one SVG element."""
        size = f'width="{short(width)}" height="{short(height)}"'
        ground = "" if self.theme is None else f'<rect {size} fill="{self.theme.paper}"/>\n'
        said = f"<desc>{escape_xml(described)}</desc>" if described else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {short(width)} {short(height)}" font-family="{html.escape(PRINT)}" '
            f'role="img"><title>{escape_xml(title)}</title>{said}\n{ground}'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def blend(a: str, b: str, share: float) -> str:
    """The colour that lies `share` of the way from a to b."""
    pairs = zip(_channels(a), _channels(b), strict=True)
    return "#" + "".join(f"{math.floor(x + (y - x) * share + 0.5):02x}" for x, y in pairs)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def short(value: float) -> str:
    """A coordinate in few characters."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escape_xml(text: str) -> str:
    """Text for XML: no markup, and none of the characters that XML cannot hold."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
