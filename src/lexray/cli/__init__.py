"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from lexray.cli import (
    align,
    demo,
    diff,
    flow,
    heads,
    lens,
    models,
    neurons,
    search,
    stitch,
    study,
    sweep,
)
from lexray.cli.progress import Bars
from lexray.errors import LexrayError
from lexray.progress import reported_by

INTERRUPTED = 130

app = typer.Typer(
    name="lexray",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (models, heads, sweep, neurons, search, lens, flow, diff, align, stitch, demo, study):
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
    """Runs the command; a user's mistake is one clear line and exit code 2."""
    bars = Bars()
    words = list(sys.argv[1:] if args is None else args)
    try:
        with reported_by(bars):
            code = app(words or ["--help"], prog_name="lexray", standalone_mode=False)
        sys.stdout.flush()
    except LexrayError as error:
        code = _mistake(str(error))
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own, about how it was called
            raise
        path = getattr(getattr(error, "ctx", None), "command_path", None) or "lexray"
        code = _mistake(f"{error.format_message().rstrip('.')}; see `{path} --help`")
    finally:
        bars.stop()
    if code == INTERRUPTED:
        print("lexray: interrupted", file=sys.stderr)
    sys.exit(code or 0)


def _mistake(message: str) -> int:
    print(f"lexray: {'; '.join(message.splitlines())}", file=sys.stderr)
    return 2
