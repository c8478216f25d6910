"""Chromium for the tests of the page, and how they find their way in it."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import pytest

from lexray.flow import FlowGraph

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs one"),
]
Opener = Callable[..., Any]
NAMESPACE = "{http://www.w3.org/2000/svg}"


def at(graph: FlowGraph, id: str) -> str:
    """The selector of a node."""
    return f'[data-node="{graph.nodes.index(graph[id])}"]'


def transform(page: Any) -> str:
    return str(page.get_attribute(".lf-world", "transform"))


def drawn_by_python(graph: FlowGraph, **options: Any) -> ElementTree.Element:
    return ElementTree.fromstring(graph.to_svg(**options))


def numbers(transform: str) -> list[float]:
    return [
        float(n)
        for n in transform.replace("translate(", "").replace("scale(", "").replace(")", "").split()
    ]


BLOCK = """() => [...document.querySelectorAll(".lf-segment [data-node] > rect")].map((rect) => {
  const number = (name) => Number(rect.getAttribute(name));
  return { node: Number(rect.parentNode.dataset.node), x: number("x"), y: number("y"),
    width: number("width"), height: number("height") }; })"""
"""Boxes in the coordinates of their blocks."""

SHAPES = """() => [...document.querySelectorAll(".lf-segment")].flatMap((segment) => {
  const [shift, down] = segment.getAttribute("transform").match(/-?[\\d.]+/g).map(Number);
  return [...segment.querySelectorAll("[data-node]")].map((group) => {
    const rect = group.querySelector("rect");
    const number = (name) => Number(rect.getAttribute(name));
    return {
      node: Number(group.dataset.node), x: shift + number("x"), y: down + number("y"),
      width: number("width"), height: number("height"), fill: rect.getAttribute("fill"),
      texts: [...group.querySelectorAll("text")].map((text) => [
        shift + Number(text.getAttribute("x")), down + Number(text.getAttribute("y")),
        text.textContent,
        Number(text.getAttribute("font-size")),
      ]),
    };
  });
})""".replace("\\\\", "\\")
