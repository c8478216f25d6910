"""`lexray atlas`: every parameter of a model, read once into a folder that can be searched."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import PlacedOptions
from lexray.cli.output import Format, show
from lexray.cli.parse import names, numbers
from lexray.cli.streams import tell
from lexray.errors import LexrayError
from lexray.result.format import show_bytes, show_time

if TYPE_CHECKING:
    from lexray.atlas.options import AtlasOptions

MOST_TEXT = 2**24
"""Characters of a text for evidence."""


def register(app: typer.Typer) -> None:
    app.command()(expand(atlas))


def atlas(
    model: PlacedOptions,
    output: Annotated[
        str | None,
        option("The folder, or an address that fsspec knows.", None, "--output", "-o"),
    ] = None,
    views: Annotated[
        list[str] | None, option("How it is read: standard, raw. Repeatable, or with commas.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        option(
            "Only these: values, keys, gates, Q, K, V, O, others (biases, norms, routers), heads, "
            "relations, roles, links. Repeatable, or with commas."
        ),
    ] = None,
    layers: Annotated[
        str | None, option("Only these layers: 3, 20-29 or 0,5,-1.", metavar="LAYERS")
    ] = None,
    k: Annotated[
        int, option("Tokens at either end of a list, pairs of a head.", None, "-k", "--k")
    ] = 50,
    text: Annotated[
        Path | None,
        option("Running text: where neurons and heads are strongest in it.", metavar="FILE"),
    ] = None,
    workers: Annotated[int, option("Processes, each with a copy of the embedding.", min=1)] = 1,
    ray: Annotated[
        str | None,
        option("A Ray cluster's address; auto: one that runs here, or a new one.", None, "--ray"),
    ] = None,
    plan: Annotated[bool, option("Only say what it would cost here.")] = False,
    format: Annotated[Format | None, option("With --plan: how to show it.")] = None,
) -> None:
    """Every parameter of a model, read once: Parquet files that lx.Atlas and SQL can search.

    An interrupted run is gone on with; more layers, kinds and views may be added later.

    lexray atlas demo -o demo-atlas

    lexray atlas smollm2 -o smollm2-atlas --views standard,raw --workers 2
    """
    from lexray.atlas.cost import plan_atlas, plan_noticed
    from lexray.atlas.write import write_atlas

    options = _options(views, kinds, layers, k, text)
    if ray is not None and workers != 1:
        raise LexrayError("--workers are processes here, --ray has its own; choose one")
    if format is not None and not plan:
        raise LexrayError("--format shows a plan; an atlas is written to -o DIR (or add --plan)")
    if not plan and output is None:
        raise LexrayError("where to? -o DIR, a folder, or an address that fsspec knows")
    opened = model.open()
    if plan:
        show(plan_atlas(opened, options, workers=workers), format, None)
        return
    assert output is not None
    planned = plan_noticed(opened, options, workers) if ray is None else None
    started = perf_counter()
    wrote = write_atlas(opened, output, options, workers=workers, ray=ray)
    there = len(wrote.manifest.planned) - wrote.new
    kept = f", {there} were there already" if there else ""
    seconds = show_time(perf_counter() - started)
    expected = ""
    if planned is not None and not there:
        expected = f" (planned: {show_time(planned.seconds)})"
    size = show_bytes(wrote.size)
    tell(f"{output}: {wrote.new} chunks in {seconds}{expected}{kept}; {size} in all")


def _options(
    views: list[str] | None,
    kinds: list[str] | None,
    layers: str | None,
    k: int,
    text: Path | None,
) -> AtlasOptions:
    from lexray.atlas.options import AtlasOptions

    chosen = numbers("--layers", layers)
    given: dict[str, Any] = {
        "views": tuple(names(views)),
        "kinds": tuple(names(kinds)),
        "layers": None if chosen is None else tuple(chosen),
        "text": None if text is None else _read(text),
    }
    return AtlasOptions(k=k, **{name: value for name, value in given.items() if value})


def _read(path: Path) -> str:
    from lexray.files import open_text

    with open_text(path) as stream:
        text = stream.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise LexrayError(f"{path} has more than {MOST_TEXT:,} characters; evidence needs fewer")
    if not text.strip():
        raise LexrayError(f"{path} is empty; evidence needs running text")
    return text
