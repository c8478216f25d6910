"""The reference of the command line, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from lexray.cli import app


def commands_page() -> str:
    """Every command with its arguments and options, in the order of `lexray --help`."""
    group: Any = typer.main.get_command(app)
    lines = ["# Commands", "", "Every command, as `lexray COMMAND --help` describes it.", ""]
    for name, command in group.commands.items():
        lines += [f"## lexray {name}", "", *_about(command), *_parameters(command)]
    return "\n".join(lines) + "\n"


def _about(command: Any) -> Iterator[str]:
    """Its words; lines that begin with its name are examples."""
    for part in cleandoc(command.help or "").replace("\b", "").split("\n\n"):
        said = " ".join(part.split())
        if said.startswith("lexray "):
            yield from ("```", said.replace(" lexray ", "\nlexray "), "```", "")
        elif said:
            yield from (said, "")


def _parameters(command: Any) -> Iterator[str]:
    rows = [row for parameter in command.params for row in _row(parameter)]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def _row(parameter: Any) -> Iterator[str]:
    if getattr(parameter, "hidden", False):
        return
    if parameter.param_type_name == "argument":
        name, said = parameter.metavar or parameter.name.upper(), getattr(parameter, "help", "")
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        said = parameter.help
    default = getattr(parameter, "default", None)
    shown = (
        f" (default `{default}`)"
        if default not in (None, False, True, "", ()) and not callable(default)
        else ""
    )
    yield f"| `{name}` | {_cell(said or '')}{_cell(shown)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
