"""Examples in docstrings, as the reference shows them: code, without prompts."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
"""A prompt and all lines up to the next empty one."""
SKIP = re.compile(r"\s*# doctest: .*")


class Examples(Extension):
    """Fences what doctest would run; as Markdown a prompt would be a quotation."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    return EXAMPLE.sub(lambda found: f"```python\n{_plain(found[0])}\n```", text)


def _plain(example: str) -> str:
    """What is typed, and what is answered as a comment."""
    lines = (SKIP.sub("", line) for line in example.splitlines())
    return "\n".join(line[4:] if line[:4] in (">>> ", "... ") else f"# {line}" for line in lines)
