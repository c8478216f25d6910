"""What a prompt answers with: one short line of what it is, with calls that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import lexray as lx
from lexray.result.table import Result, Table

CALL = re.compile(r"\.(\w+)[(\[,>]")


def things() -> Iterator[Any]:
    model = lx.Model.from_pretrained("demo")
    trace = model.trace("This movie was")
    yield from (model, model.layers[1], model.layers[1].ff, model.heads, model.info())
    yield from (model["L2H1"], model["L2H1"].vo, model["L2H1"].vo.top(4), model["L3N7"])
    yield from (model["L3N7"].top(4), model["L3N7"].value, model.layers[1].ff.values)
    yield from (trace, trace.lens(), trace.contributions(), model.trace(["This", "That"]))
    yield from (model.relations("a→b,c→d"), model.lookup([" good"]).top(3), trace.lens().plot())
    yield from (
        model["L2H1"].describe(measure=False),
        trace.flow(layers=[2], heads=1, neurons=(1, 0)),
    )


@pytest.mark.slow
def test_one_line_with_what_to_call_next() -> None:
    for thing in things():
        line = repr(thing)
        assert line.startswith("<")
        assert line.endswith(">")
        assert "\n" not in line
        assert len(line) < 240, line
        calls = CALL.findall(line.rpartition(": ")[2])
        assert calls or '["L0H0"]' in line, line
        for name in calls:
            parts = (thing, thing[0] if "[0]." in line and hasattr(thing, "__getitem__") else thing)
            assert any(_has(part, name) for part in parts), f"{line} has no {name}"
        if isinstance(thing, Result):
            assert len(str(thing)) > len(line)  # which is the table


def _has(part: Any, name: str) -> bool:
    """Also one step further in: `.vo.top()`."""
    inner = [getattr(part, each) for each in ("vo", "qk", "values") if hasattr(part, each)]
    return any(hasattr(each, name) for each in (part, *inner))


class Odd(Result):
    def tables(self) -> list[Table]:
        return [Table(("a",), (("b",),), "x" * 500 + "\x1b[31m\nred")]

    def to_dict(self) -> dict[str, Any]:
        return {}


def test_a_long_title_is_cut_and_clean() -> None:
    line = repr(Odd())
    assert len(line) < 160
    assert "\x1b" not in line
    assert repr(Odd()) == line


def test_modules_list_what_they_are_for() -> None:
    for module in (lx.plots, lx.filters, lx.edits):
        assert set(dir(module)) == set(module.__all__)
        assert all(hasattr(module, name) for name in dir(module))
