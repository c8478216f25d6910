"""HTML that is escaped by construction: what is not markup already becomes text.

>>> el("a", "<b>", href="/demo/map", class_="tok")
'<a href="/demo/map" class="tok">&lt;b&gt;</a>'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lexray.clean import clean
from lexray.result.page import escape

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "rect", "path", "circle", "line"}
"""Elements without an end of their own."""
ADDRESSES = {"href", "src", "action", "formaction"}


class Markup(str):
    """Text that is HTML; only this room makes it."""

    __slots__ = ()


Child = Any
"""Markup, or text and numbers, or several of these; None is nothing."""


def el(tag: str, *children: Child, **attributes: Any) -> Markup:
    """An element. `class_` is class, `data_part` is data-part; None and False leave one out."""
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{opened}>" if tag in HTML_VOID else f"<{tag}{opened}/>")
    return Markup(f"<{tag}{opened}>{join(*children)}</{tag}>")


HTML_VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


def join(*children: Child) -> Markup:
    """Children after one another."""
    return Markup("".join(map(_write, children)))


def _write(child: Child) -> str:
    if child is None or child is False:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(clean(child))
    if isinstance(child, Iterable):
        return join(*child)
    return escape(str(child))


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if name == "style" or name.startswith("on"):
        raise ValueError(f"no {name} in pages: style lies in sheets and behaviour in modules")
    if value is True:
        return f" {name}"
    text = str(value)
    if name in ADDRESSES and not text.startswith(("/", "#", "?")):
        raise ValueError(f"{name} leads out of the app: {text!r}")
    if name in ADDRESSES and text.startswith("//"):
        raise ValueError(f"{name} leads to another machine: {text!r}")
    return f' {name}="{escape(clean(text))}"'
