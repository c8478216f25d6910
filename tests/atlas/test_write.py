"""An atlas is the same whoever writes it, and survives every end of its writing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

import lexray as lx
from lexray.atlas import write
from lexray.atlas.make import Task
from lexray.atlas.manifest import MANIFEST
from lexray.atlas.store import Store
from lexray.atlas.work import Done, run_here
from lexray.errors import LexrayError
from lexray.model.model import Model

FEW = {"kinds": ("values", "Q", "heads"), "k": 6}


def content(folder: Path) -> dict[str, str]:
    """Every file's digest, by name; nothing else may lie there."""
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def few(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small atlas, written at one go."""
    folder = tmp_path_factory.mktemp("few") / "atlas"
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    return folder


@pytest.mark.slow
def test_processes_write_the_same_bytes(llama: Path, few: Path, tmp_path: Path) -> None:
    lx.Atlas.write(str(llama), tmp_path / "two", workers=2, **FEW)  # type: ignore[arg-type]
    assert content(tmp_path / "two") == content(few)


@pytest.mark.slow
def test_an_error_at_every_chunk_leaves_what_is_done(
    model: Model, llama: Path, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run makes one chunk and fails: the last has the same bytes as one that never did."""

    class EnoughError(Exception):
        pass

    def one_only(model: Model, options: object, store: Store) -> write.Run:
        def run(tasks: Sequence[Task]) -> Iterator[Done]:
            yield from run_here(model, options, store)(tasks[:1])  # type: ignore[arg-type]
            if len(tasks) > 1:
                raise EnoughError

        return run

    folder, runs = tmp_path / "atlas", 0
    with monkeypatch.context() as patch:
        patch.setattr(write, "run_here", one_only)
        for _ in range(100):
            runs += 1
            try:
                lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
            except EnoughError:
                part = lx.Atlas(folder)
                assert part.missing
                assert len(part.vectors()) <= len(lx.Atlas(few).vectors())
            else:
                break
    assert runs > 5
    assert content(folder) == content(few)


@pytest.mark.slow
def test_kill_at_any_point(llama: Path, few: Path, tmp_path: Path) -> None:
    """A process that is killed hard, at several moments, and gone on with."""
    folder = tmp_path / "atlas"
    command = (
        "import sys, lexray as lx;"
        f"lx.Atlas.write(sys.argv[1], sys.argv[2], kinds={FEW['kinds']!r}, k={FEW['k']})"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for seen in (1, 7):
        process = subprocess.Popen(
            [sys.executable, "-c", command, str(llama), str(folder)],
            env=environment,
            start_new_session=True,
        )
        while process.poll() is None and len(Store(str(folder)).names()) < seen:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / MANIFEST).exists()
        lx.Atlas(folder).sql("select count(*) from vectors")
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    left = {name: digest for name, digest in content(folder).items() if ".lexray-" not in name}
    assert left == content(few)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs processes as on Unix")
def test_workers_end_with_the_process_that_began_them(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "atlas"
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, lexray as lx\n"
        "if __name__ == '__main__':\n"
        "    lx.Atlas.write(sys.argv[1], sys.argv[2], workers=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(llama), str(folder)],
        env=environment,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not Store(str(folder)).names():
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=1800)
    assert alive == []


@pytest.mark.slow
def test_a_torn_file_is_made_again(llama: Path, few: Path, tmp_path: Path) -> None:
    """A file that no run noted, and that is none."""
    folder = tmp_path / "atlas"
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    said = json.loads((folder / MANIFEST).read_text())
    torn = "vectors/standard/value-L001-00.parquet"
    (folder / torn).write_bytes((folder / torn).read_bytes()[:100])
    del said["files"][torn]
    (folder / MANIFEST).write_text(json.dumps(said))
    lx.Atlas.write(str(llama), folder, **FEW)  # type: ignore[arg-type]
    assert content(folder) == content(few)


@pytest.mark.slow
def test_an_atlas_grows(llama: Path, tmp_path: Path) -> None:
    """Layer by layer, kind by kind: the bytes are those of one run, the index included."""
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    lx.Atlas.write(str(llama), whole, kinds=["values", "keys"], k=6)
    lx.Atlas.write(str(llama), grown, kinds=["keys"], layers=[1], k=6)
    assert len(lx.Atlas(grown).parameters(5, 1000)) > 0
    lx.Atlas.write(str(llama), grown, kinds=["values"], layers=[0, 1], k=6)
    lx.Atlas.write(str(llama), grown, kinds=["keys"], layers=[0], k=6)
    assert content(grown) == content(whole)


def test_another_model_is_refused(llama: Path, few: Path, tmp_path: Path) -> None:
    before = content(few)
    edited = lx.Model.from_pretrained(llama).edited(["scale L1N3 by 0.5"])
    with pytest.raises(LexrayError, match=r"is another atlas .*fingerprint"):
        lx.Atlas.write(edited, few, **FEW)  # type: ignore[arg-type]
    with pytest.raises(LexrayError, match=r"is another atlas .*options"):
        lx.Atlas.write(str(llama), few, k=7)
    assert content(few) == before
    stray = tmp_path / "stray"
    (stray / "vectors/raw").mkdir(parents=True)
    (stray / "vectors/raw/key-L000-00.parquet").write_bytes(b"")
    with pytest.raises(LexrayError, match="no manifest"):
        lx.Atlas.write(str(llama), stray)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["memory://atlas-test", "file://{folder}/there"])
def test_fsspec_addresses(address: str, model: Model, few: Path, tmp_path: Path) -> None:
    where = address.format(folder=tmp_path)
    atlas = lx.Atlas.write(model, where, **FEW)  # type: ignore[arg-type]
    store, plain = Store(where), lx.Atlas(few)
    assert store.names() == Store(str(few)).names()
    for name in store.names():
        assert store.read(name) == (few / name).read_bytes()
    assert atlas.parameters(" law", 20).to_arrow().equals(plain.parameters(" law", 20).to_arrow())
    assert lx.Atlas.write(model, where, **FEW).missing == []  # type: ignore[arg-type]


def test_workers_need_a_place_they_reach(llama: Path, model: Model, tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="this process's own"):
        lx.Atlas.write(str(llama), "memory://nowhere", workers=2)
    live = Model(model.checkpoint, vocabulary=model.vocabulary)
    with pytest.raises(LexrayError, match="was not opened from files"):
        lx.Atlas.write(live, tmp_path / "a", workers=2)
    (tmp_path / "a-file").write_text("")
    with pytest.raises(LexrayError, match="cannot"):
        lx.Atlas.write(model, tmp_path / "a-file" / "atlas")
