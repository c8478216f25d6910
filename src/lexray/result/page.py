"""The one shell of every HTML page: nothing is loaded, nothing is sent, every text is escaped.

A page is a title, a body, and perhaps style and scripts of its own. The browser itself is told, by
a content security policy, that nothing may reach outside, and that a page without scripts has none.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lexray.clean import clean_json
from lexray.result.theme import SCOPE, style_sheet

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character: text that no file can hold."""


@dataclass(frozen=True)
class Script:
    """A script element: code, a module, or data for one of these (`id` says how to find it)."""

    text: str
    kind: Literal["text/javascript", "module", "application/json"] = "text/javascript"
    id: str = ""

    def __str__(self) -> str:
        if "</script" in self.text.lower():
            raise ValueError("a script that ends its own element early")
        kind = "" if self.kind == "text/javascript" else f' type="{self.kind}"'
        id = f' id="{escape(self.id)}"' if self.id else ""
        return f"<script{kind}{id}>{self.text}</script>"


def page(
    title: str,
    body: str,
    *,
    style: str = "",
    scripts: Sequence[Script] = (),
    own_scripts: bool = False,
) -> str:
    """A whole file: `body` is markup already, the title is text, `style` is for this page alone.

    `own_scripts`: the body holds scripts, as figures of plotly do.
    """
    allowed = policy(own_scripts or bool(scripts))
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{style_sheet()}{style}</style>",
        "</head>",
        f'<body class="{SCOPE}">',
        body,
        *map(str, scripts),
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts)


def linked_page(
    title: str, body: str, *, sheets: Sequence[str], modules: Sequence[str], scope: str = SCOPE
) -> str:
    """The same shell where a server hands out style sheets and modules, by their addresses.

    Nothing stands inline: the server's own policy forbids it.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">',
        *(f'<link rel="stylesheet" href="{escape(address)}">' for address in sheets),
        *(f'<script type="module" src="{escape(address)}"></script>' for address in modules),
        "</head>",
        f'<body class="{scope}">',
        body,
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts)


def policy(scripts: bool) -> str:
    """What the browser allows the page: its own style, its own scripts if it has any."""
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data: blob:"]
    return "; ".join(rules + ["script-src 'unsafe-inline'"] * scripts)


def escape(text: str) -> str:
    """Text for HTML, quotes included; half characters are replaced."""
    return html.escape(SURROGATE.sub("\ufffd", text))


def dump_json(data: Any) -> str:
    """Strict, short JSON that a file can hold, whatever its texts contain."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return clean_json(text)


def embed_json(data: Any) -> str:
    """JSON that can stand inside a script element: no letter of it looks like markup."""
    text = dump_json(data)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def fragment(body: str) -> str:
    """A part of a notebook in the pages' style."""
    return f'<style>{style_sheet()}</style>\n<div class="{SCOPE}">{body}</div>'
