"""Connections on which nothing is said are ended."""

from __future__ import annotations

import socket
import threading

import pytest
import uvicorn

from lexray.web import wire
from lexray.web.guard import Door
from lexray.web.library import Library
from lexray.web.server import make_app
from lexray.web.start import bind
from tests.web.house import Prompt


def test_who_says_nothing_is_shown_out(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SECONDS", 0.2)
    listening = bind("127.0.0.1", 0)
    where = listening.getsockname()
    app = make_app(library, Door(where[1]), desk=Prompt(library))
    server = uvicorn.Server(uvicorn.Config(app, http=wire.PatientProtocol, log_level="warning"))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    running.start()
    try:
        for said in (b"", b"GET /demo/map HTTP/1.1\r\nHost: x"):
            with socket.create_connection(where, timeout=60) as silent:
                silent.sendall(said)
                assert silent.recv(100) == b""
        with socket.create_connection(where, timeout=60) as quick:
            quick.sendall(b"GET /static/app.css HTTP/1.1\r\nHost: x\r\n\r\n")
            assert quick.recv(12) == b"HTTP/1.1 421"
    finally:
        server.should_exit = True
        running.join()
