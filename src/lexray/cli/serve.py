"""`lexray serve`: models as pages in the browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import PlacedOptions

SERVER = "The server"


def register(app: typer.Typer) -> None:
    app.command()(expand(serve))


def serve(
    model: PlacedOptions,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL…]", help="More models, to compare it with."),
    ] = None,
    port: Annotated[
        int, option("On which port; 0 takes a free one.", SERVER, min=0, max=65535)
    ] = 8642,
    host: Annotated[
        str,
        option("On which address of this machine; any but loopback opens it to others.", SERVER),
    ] = "127.0.0.1",
    browser: Annotated[bool, option("Open a browser.", SERVER, "--browser/--no-browser")] = True,
) -> None:
    """Opens models in the browser: a map, every head, neuron and token, prompts, comparisons.

    Options of a model are the first one's; where it computes and how it is reached, all models'.

    lexray serve demo

    lexray serve demo demo-sentiment --port 9000
    """
    try:
        from lexray.model.origin import Origin
        from lexray.web.start import start
    except ModuleNotFoundError as error:
        from lexray.errors import LexrayError

        raise LexrayError(
            f"the app needs {error.name}; install it with `pip install 'lexray[app]'`"
        ) from error
    first = Origin(
        model.model,
        revision=model.revision,
        remote=model.remote,
        adapter=model.adapter,
        family=model.family,
        device=model.device,
        dtype=model.dtype,
    )
    shared = replace(first, revision=None, adapter=None, family=None)
    more = [replace(shared, source=other) for other in others or ()]
    start([first, *more], host=host, port=port, browser=browser)
