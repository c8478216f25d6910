"""Renders one chat template: JSON in, text out. It runs alone, in a process that may be ended.

A template is a program from a stranger: jinja's sandbox keeps it from objects and files, and the
process has bounds of time and memory.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any, NoReturn

MOST_MEMORY = 2**30
LONGEST = 1 << 20
"""No conversation is longer than this many characters."""


def render(template: str, values: dict[str, Any]) -> str:
    """The text of a conversation, as transformers renders it."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=options.get("indent"))

    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    world.filters["tojson"] = to_json
    world.globals["raise_exception"] = refuse
    world.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    return world.from_string(plain).render(**values)


def main() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    except (ImportError, ValueError, OSError):  # Windows, or a limit that is lower already
        pass
    given = json.loads(sys.stdin.buffer.read())
    try:
        text = render(given["template"], given["values"])
        if len(text) > LONGEST:
            raise ValueError(f"it makes a text of {len(text):,} characters of it")
        answer = {"text": text}
    except Exception as error:  # whatever a template does is its own fault
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
