"""The gallery's pictures, by the commands that its page shows: `python -m tools.docs.gallery`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from lexray.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "gallery.md"
DRAWN = re.compile(r"^    (lexray .* -o (\S+\.svg))$", re.MULTILINE)


def commands() -> dict[str, str]:
    """Each picture of the page, and the command above it."""
    return {found[2]: found[1] for found in DRAWN.finditer(PAGE.read_text(encoding="utf-8"))}


def main(names: list[str]) -> None:
    for picture, command in commands().items():
        if names and Path(picture).stem not in names:
            continue
        print(command, flush=True)
        where = PAGE.parent / "gallery" / picture
        where.parent.mkdir(exist_ok=True)
        app([*shlex.split(command)[1:-1], str(where)], standalone_mode=False)


if __name__ == "__main__":
    main(sys.argv[1:])
