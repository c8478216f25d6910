"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from lexray.cli import (
    align,
    atlas,
    catalogue,
    demo,
    diff,
    draw,
    edit,
    effects,
    evidence,
    flow,
    glance,
    ground,
    heads,
    lens,
    models,
    neurons,
    relations,
    search,
    serve,
    stitch,
    study,
    sweep,
    wires,
)
from lexray.cli.progress import ProgressBars
from lexray.cli.signals import INTERRUPTED, stoppable
from lexray.cli.streams import preparing, tell, writing
from lexray.errors import LexrayError
from lexray.progress import reported_by

MISTAKE = 2

app = typer.Typer(
    name="lexray",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    models,
    heads,
    sweep,
    neurons,
    glance,
    search,
    relations,
    wires,
    catalogue,
    atlas,
    lens,
    flow,
    draw,
    effects,
    edit,
    diff,
    align,
    stitch,
    demo,
    study,
    ground,
    evidence,
    serve,
):
    module.register(app)


def version(show: bool) -> bool:
    if show:
        from lexray import __version__

        typer.echo(f"lexray {__version__}")
        raise typer.Exit
    return show


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An X-ray for language models: reads weights and forward passes as words.

    MODEL is a folder, a .safetensors, .bin or .gguf file, a LoRA adapter, a Hub id, or one of
    the models that come along (demo, smollm2)."""


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command; a user's mistake is one clear line and exit code 2.

    What is no mistake of theirs is raised, with all that a report of it should say.
    """
    words = list(sys.argv[1:] if args is None else args)
    with preparing(), stoppable() as stop:
        code = _run(words or ["--help"])
        if code == INTERRUPTED:
            tell(stop.why)
            code = stop.code
    sys.exit(code)


def _run(words: list[str]) -> int:
    """The exit code; mistakes of ours, which nobody foresaw, are raised."""
    bars = ProgressBars()
    try:
        with reported_by(bars), writing():
            return int(app(words, prog_name="lexray", standalone_mode=False) or 0)
    except LexrayError as error:
        return _mistake(str(error))
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except typer.Exit as stopped:
        return stopped.exit_code
    except SystemExit:  # typer's answer to a pipe that nobody reads
        return 0
    except BaseException as error:
        return _mistake(_foreign(error))
    finally:
        bars.stop()


def _foreign(error: BaseException) -> str:
    """What others' errors say; raises what is none of theirs."""
    if hasattr(error, "format_message"):  # typer's own, about how it was called
        path = getattr(getattr(error, "ctx", None), "command_path", None) or "lexray"
        return f"{error.format_message().rstrip('.')}; see `{path} --help`"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this {error}".rstrip()
    if type(error).__name__ == "PanicException":  # of libraries in Rust; no Exception for Python
        return f"a library gave up on what it was given: {error}"
    error.add_note(_versions())
    raise error


def _versions() -> str:
    """What to report of a crash; nothing is imported for it, as that may be what crashed."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("lexray", "torch", "transformers"))
    return (
        f"This is a mistake of lexray's, not yours. Please report it with the lines above and: "
        f"{versions}, Python {platform.python_version()} on {platform.platform()}"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _mistake(message: str) -> int:
    tell(message)
    return MISTAKE
