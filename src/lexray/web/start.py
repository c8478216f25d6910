"""Starts the app: a socket on this machine, a line with its address, a browser."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from lexray.clean import clean
from lexray.errors import LexrayError
from lexray.model.origin import Origin
from lexray.web.guard import Door
from lexray.web.library import Library
from lexray.web.server import make_app

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 128
"""So many connections may wait to be taken."""


def start(models: Sequence[Origin], *, host: str, port: int, browser: bool) -> None:
    """Serves models until it is interrupted."""
    import uvicorn

    from lexray.web.wire import PatientProtocol

    library = Library.of(models)
    for served in library:
        served.model  # noqa: B018  a mistake in a name is told here, not in the browser
    listening = bind(host, port)
    door = Door(listening.getsockname()[1], hosts_of(host))
    titles = clean(", ".join(served.title for served in library))
    print(f"lexray shows {titles} at\n\n  {door.address}\n")
    if host not in LOOPBACK:
        print(f"{host} is no loopback address: whoever has the address above can read and compute.")
    print("Ctrl-C ends it.", flush=True)
    config = uvicorn.Config(
        make_app(library, door),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        limit_concurrency=512,
        http=PatientProtocol,
    )
    if browser:
        webbrowser.open(door.address)
    threading.Thread(target=warm_up, args=[library], daemon=True).start()
    try:
        with suppress(KeyboardInterrupt):  # which is how it ends
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def warm_up(library: Library) -> None:
    """What takes a moment and nearly every page needs, before it is asked for: what an atlas keeps
    in memory, and transformers, which the first standard reading imports."""
    for served in library:
        with suppress(LexrayError):  # which the page that needs it says
            atlas = served.see_atlas("standard")
            if atlas is not None:
                atlas.database.warm_up()
                atlas.shown  # noqa: B018
    import_module("lexray.trace.record.lone")


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; the next free port is not guessed, since the address is printed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(WAITING)  # who comes before the first answer waits, and is not refused
    except (OSError, OverflowError) as error:
        listening.close()
        raise LexrayError(
            f"cannot listen on {host}, port {port}: {error}; try another --port, or 0 for any"
        ) from error
    return listening


def hosts_of(host: str) -> tuple[str, ...]:
    """The names under which the app may be asked for, the one to print first."""
    if host in LOOPBACK:
        return ("127.0.0.1", "localhost", "[::1]") if host != "::1" else ("[::1]", "localhost")
    if host in ("0.0.0.0", "::"):
        raise LexrayError(
            f"--host {host} is every address at once; name the one that others shall use"
        )
    return (f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost")
