"""What is said when the app starts: titles are names of folders, which may hold anything."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
import uvicorn

from lexray.model.origin import Origin
from lexray.web.start import bind, start
from tests.cli.running import save_tiny


def test_titles_are_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\x1b[31mred\u202e"
    shutil.move(save_tiny(tmp_path / "plain", "llama"), folder)

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        assert sockets[0].getsockname()[0] == "127.0.0.1"

    monkeypatch.setattr(uvicorn.Server, "run", run)
    start([Origin(str(folder))], host="127.0.0.1", port=0, browser=False)
    said = capsys.readouterr().out
    assert "red" in said
    assert "token=" in said
    assert said.isascii()
    assert all(letter.isprintable() or letter == "\n" for letter in said)


def test_who_comes_before_the_first_answer_waits() -> None:
    """The browser is opened before the server runs."""
    listening = bind("127.0.0.1", 0)
    with listening, socket.create_connection(listening.getsockname(), timeout=60) as early:
        early.sendall(b"GET / HTTP/1.1\r\n")


def test_ctrl_c_is_how_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupt)
    start([Origin("demo")], host="127.0.0.1", port=0, browser=False)
