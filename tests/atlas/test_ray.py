"""A local cluster of two workers writes the same bytes, and loses nothing when one is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lexray as lx
from lexray.atlas.ray import run_on_ray
from lexray.atlas.store import Store
from lexray.errors import LexrayError
from tests.atlas.test_write import FEW, content

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Any:
    """Imported when a test runs: it takes seconds, and most runs leave these tests out."""
    return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster(ray: Any) -> Iterator[None]:
    """Two workers here. Ray gives its own processes half a minute; on a busy machine that may be
    too little, and is tried again."""
    os.environ["RAY_agent_register_timeout_ms"] = "300000"  # noqa: SIM112
    for attempt in range(3):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                object_store_memory=2**27,
            )
            break
        except Exception as error:
            ray.shutdown()
            if attempt == 2:
                pytest.skip(f"Ray does not start here: {error}")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def few(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few") / "atlas"
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    return folder


def workers() -> list[int]:
    """The processes of the cluster that work on a chunk."""
    import psutil

    inside = psutil.Process().children(recursive=True)
    busy = [p for p in inside if "ray::" in " ".join(p.cmdline()) and "IDLE" not in p.name()]
    return [p.pid for p in busy if "_work" in " ".join(p.cmdline())]


def test_the_same_bytes_even_if_a_worker_is_killed(
    cluster: None, llama: Path, few: Path, tmp_path: Path
) -> None:
    folder, killed, done = tmp_path / "atlas", [], threading.Event()

    def kill_one() -> None:
        while not killed and not done.wait(0.005):
            if Store(str(folder)).names() and (busy := workers()):
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        lx.Atlas.write(str(llama), folder, ray="auto", **FEW)  # type: ignore[arg-type]
    finally:
        done.set()
        thread.join()
    assert killed
    assert content(folder) == content(few)


def test_a_run_moves_between_one_process_and_ray(
    cluster: None, llama: Path, few: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "atlas"
    lx.Atlas.write(str(llama), folder, kinds=["values"], k=FEW["k"])  # type: ignore[arg-type]
    lx.Atlas.write(str(llama), folder, kinds=["Q"], k=FEW["k"], ray="auto")  # type: ignore[arg-type]
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    assert content(folder) == content(few)


def test_a_worker_with_another_model_is_refused(
    cluster: None, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lexray.atlas.ray.run_on_ray",
        lambda address, origin, expected, *rest: run_on_ray(address, origin, "another", *rest),
    )
    with pytest.raises(LexrayError, match="another model"):
        lx.Atlas.write(str(llama), tmp_path / "atlas", ray="auto", **FEW)  # type: ignore[arg-type]


def test_a_cluster_that_is_not_there(
    ray: Any, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(LexrayError, match="no Ray cluster"):
        lx.Atlas.write(str(llama), tmp_path, ray="127.0.0.1:1", **FEW)  # type: ignore[arg-type]
