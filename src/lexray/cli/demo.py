"""`lexray demo`: the tool shows itself."""

from __future__ import annotations

import typer

WIDTH = 100
"""Of what is written where there is no terminal."""


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo() -> None:
    """Tells in about a minute what lexray does, on models that come along; all of it computed."""
    import sys

    from rich.console import Console

    from lexray.cli.story import tell

    width = None if sys.stdout.isatty() else WIDTH
    tell(Console(width=width, highlight=False))
