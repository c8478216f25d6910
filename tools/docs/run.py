"""Runs the Python of a page and writes what it shows below each block: `python -m tools.docs.run`.

A block's output is what it prints and the value of its last line, as a terminal shows it. Outputs
stand in blocks of their own, ```text, right behind the code; they are replaced each time.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((*DOCS.glob("tutorials/*.md"), *DOCS.glob("howto/*.md"), DOCS / "first.md"))
"""Those whose Python is run, with what it shows below it."""
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n?^```text\n(?P<out>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
LONGEST = 40
"""Lines of an output that are kept."""


@dataclass(frozen=True)
class Ran:
    """A block, what the page says that it shows, and what it shows now."""

    code: str
    said: str
    shows: str


def run(text: str, folder: Path) -> Iterator[Ran]:
    """Every block of a page, in order, in one namespace; files are written to `folder`."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with chdir(folder), patch.dict(os.environ, PATH=commands):
        for found in BLOCK.finditer(text):
            yield Ran(found["code"], found["out"] or "", shorten(execute(found["code"], names)))


def execute(code: str, names: dict[str, Any]) -> str:
    """What a block prints, and the value of its last line."""
    body = ast.parse(code)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(body, "<tutorial>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<tutorial>", "eval"), names)
            if value is not None:
                print(value)
    return out.getvalue()


def shorten(text: str) -> str:
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    kept = lines[:LONGEST] + [f"… {len(lines) - LONGEST} more lines"] * (len(lines) > LONGEST)
    return "".join(f"{line}\n" for line in kept)


def write(page: Path) -> None:
    """The page with what its blocks show now."""
    text = page.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        outputs = iter(list(run(text, Path(folder))))

    def block(found: re.Match[str]) -> str:
        shows = next(outputs).shows
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{shows}```\n" if shows else "")

    changed = BLOCK.sub(block, text)
    if changed != text:
        page.write_text(changed, encoding="utf-8")


def main(names: list[str]) -> None:
    for page in [page for page in PAGES if not names or page.stem in names]:
        print(page.relative_to(DOCS), flush=True)
        write(page)


if __name__ == "__main__":
    main(sys.argv[1:])
