"""The command line. Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import sys

import typer

from lexray.cli import models
from lexray.errors import LexrayError

app = typer.Typer(
    name="lexray",
    help="An X-ray for language models: reads weights and forward passes as words.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models.register(app)


def version(show: bool) -> None:
    if show:
        from lexray import __version__

        typer.echo(f"lexray {__version__}")
        raise typer.Exit


@app.callback()
def root(
    show_version: bool = typer.Option(
        False, "--version", callback=version, is_eager=True, help="Show the version."
    ),
) -> None:
    """MODEL is a folder, a .safetensors, .bin or .gguf file, a LoRA adapter, a Hub id, or one of
    the models that come along (demo, smollm2)."""


def main() -> None:
    """Runs the command; a user's mistake is one clear line and exit code 2."""
    try:
        app()
    except LexrayError as error:
        print(f"lexray: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)
