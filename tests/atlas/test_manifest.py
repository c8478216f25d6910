"""A folder may be anybody's: a manifest that says odd things is refused with words."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lexray as lx
from lexray.atlas.manifest import MANIFEST, Manifest
from lexray.atlas.plan import Chunk
from lexray.atlas.store import Store
from lexray.errors import LexrayError

ODD = [None, 1, -1, 1.5, True, "x" * 5000, [], {}, ["../../etc/passwd"], {"a": 1}]


@pytest.mark.parametrize(
    "name",
    [
        "../vectors/standard/key-L000-00.parquet",
        "/etc/passwd",
        "vectors/standard/../../x.parquet",
        "vectors/other/key-L000-00.parquet",
        "secrets/standard/all.parquet",
        "vectors/standard/key-L0-0.parquet",
        "vectors/standard/key'-L000-00.parquet",
        "pairs/standard/all-L000.parquet",
        "vectors/standard/key-L000-00.parquet\n",
        "",
    ],
)
def test_names_that_are_not_ours(name: str) -> None:
    with pytest.raises(LexrayError, match="no file of an atlas"):
        Chunk.parse(name)


@pytest.mark.parametrize(
    "field",
    ["model", "family", "fingerprint", "sizes", "options", "planned", "files", "schema", "lexray"],
)
def test_odd_fields(folder: Path, tmp_path: Path, field: str) -> None:
    said = json.loads((folder / MANIFEST).read_text())
    for value in ODD:
        if type(value) is type(said[field]) and value in ([], {}):
            continue  # an atlas of nothing
        _write(tmp_path, {**said, field: value})
        if field == "schema" and value == 1 and value is not True:
            continue
        with pytest.raises(LexrayError):
            Manifest.read(Store(str(tmp_path)))
    del said[field]
    _write(tmp_path, said)
    with pytest.raises(LexrayError, match="no manifest of an atlas"):
        Manifest.read(Store(str(tmp_path)))


def _write(folder: Path, said: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps(said))


@settings(max_examples=25)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(data)
    with pytest.raises(LexrayError):
        lx.Atlas(tmp_path)


def test_another_schema_says_so(folder: Path, tmp_path: Path) -> None:
    said = json.loads((folder / MANIFEST).read_text())
    _write(tmp_path, {**said, "schema": 99})
    with pytest.raises(LexrayError, match="schema 99"):
        lx.Atlas(tmp_path)


def test_it_reads_what_it_writes(folder: Path) -> None:
    found = Manifest.read(Store(str(folder)))
    assert found is not None
    assert found.to_json() == (folder / MANIFEST).read_text()


@pytest.mark.parametrize("damage", ["empty", "text", "other columns"])
def test_damaged_files(folder: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(folder, tmp_path / "atlas")
    path = tmp_path / "atlas/vectors/standard/value-L001-00.parquet"
    if damage == "other columns":
        shutil.copy(tmp_path / "atlas/tokens/any/all.parquet", path)
    else:
        path.write_bytes(b"" if damage == "empty" else b"PAR1 and then nothing")
    with pytest.raises(LexrayError):
        lx.Atlas(tmp_path / "atlas").vectors()


@pytest.mark.parametrize("target", [None, "/dev/zero"], ids=["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(
    folder: Path, tmp_path: Path, target: str | None
) -> None:
    """A pipe without end for a manifest is refused; for a table it counts as not there."""

    def replace(path: Path) -> None:
        path.unlink()
        os.mkfifo(path) if target is None else path.symlink_to(target)

    where = tmp_path / "atlas"
    shutil.copytree(folder, where)
    tables = sorted(path for path in where.rglob("*.parquet") if "vectors" in path.parts)
    replace(tables[0])
    atlas = lx.Atlas(where)
    name = str(tables[0].relative_to(where))
    assert name in atlas.missing
    assert len(atlas.sql("select * from vectors")) > 0
    replace(where / MANIFEST)
    with pytest.raises(LexrayError, match="not a regular file"):
        Manifest.read(Store(str(where)))
