"""`lexray draw`: a flow graph that was saved, drawn again without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexray.cli.flow import PictureOptions, check_ending
from lexray.cli.groups import expand
from lexray.cli.output import OutputOptions
from lexray.errors import LexrayError

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="What `lexray flow -o x.json` or a page's Save wrote."),
]


def register(app: typer.Typer) -> None:
    app.command()(expand(draw))


def draw(file: File, picture: PictureOptions, output: OutputOptions) -> None:
    """A flow graph from its file: as a page, a picture, a figure for print.

    lexray draw flow.json --paper -o flow.pdf

    lexray draw flow.json --paper --pin "Japan=L23H4,L23H5" -o flow.svg
    """
    path = output.output
    check_ending(path)
    picture.check(path)
    output.check()
    if path is None and not picture.open:
        raise LexrayError("say where to draw it: -o flow.pdf, .svg, .png or .html, or --open")
    from lexray.checkpoint.plain import exists, read_plain
    from lexray.flow.flow import Flow

    if not exists(file):
        raise LexrayError(f"cannot read {file}: there is no such file")
    try:
        text = read_plain(file).decode()
    except UnicodeDecodeError as error:
        raise LexrayError(f"cannot read {file}: {error}") from error
    graph = picture.with_pins(Flow.from_json(text))
    if path is not None:
        picture.write(graph, path)
    if picture.open:
        picture.show(graph, path)
