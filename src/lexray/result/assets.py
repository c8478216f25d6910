"""Style sheets and scripts that lie in the package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def read_asset(package: str, name: str) -> str:
    """A style sheet or a script that lies in a package."""
    return files(package).joinpath(*name.split("/")).read_text("utf-8")


IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:class|function|const) )", re.MULTILINE)


@cache
def join_modules(package: str, entry: str) -> str:
    """An ES module and all that it imports from beside it, as one module with the entry's exports.

    The modules share one scope, so their top-level names have to differ.
    """
    folder = entry.rpartition("/")[0]
    order: list[str] = []

    def visit(name: str) -> None:
        for other in IMPORT.findall(read_asset(package, f"{folder}/{name}")):
            if other not in order:
                visit(other)
        order.append(name)

    visit(entry.rpartition("/")[2])
    texts = [IMPORT.sub("", read_asset(package, f"{folder}/{name}")).strip() for name in order]
    inner = [EXPORT.sub("", text) for text in texts[:-1]]
    return "\n\n".join([*inner, texts[-1]]) + "\n"
