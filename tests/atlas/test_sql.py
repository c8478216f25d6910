"""SQL over an atlas reads the atlas, and nothing else; and writes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lexray as lx
from lexray.errors import LexrayError


@pytest.mark.parametrize(
    "query",
    [
        "copy vectors to '{folder}/out.parquet'",
        "copy (select 1) to '{file}' (use_tmp_file false)",
        "create table mine as select 1",
        "drop view vectors",
        "attach '{folder}/other.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma database_list",
        "insert into tokens values (1)",
        "delete from tokens",
        "export database '{folder}/all'",
        "select 1; select 2",
        "explain analyze create table mine as select 1",
        "call pragma_version()",
        "",
        "select * from read_text('/etc/hostname')",
        "select * from read_csv('/etc/hostname')",
        "select * from read_parquet('{folder}/../x.parquet')",
        "select * from glob('/*')",
        "from '/etc/hostname'",
        "select * from folder",
        "select nothing from vectors",
    ],
)
def test_only_questions_about_the_atlas(atlas: lx.Atlas, folder: Path, query: str) -> None:
    file = next(folder.rglob("*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(LexrayError):
        atlas.sql(query.format(folder=folder, file=file))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert len(atlas.sql("select * from vectors limit 1")) == 1


def test_parameters_are_values(atlas: lx.Atlas) -> None:
    found = atlas.sql("select ? as x", ["'; drop view vectors; --"])
    assert found[0]["x"] == "'; drop view vectors; --"


def test_a_long_query_is_ended(atlas: lx.Atlas) -> None:
    with pytest.raises(LexrayError, match="longer than"):
        atlas.sql(
            "select count(*) from range(1000000000) a, range(1000000000) b where a.range > b.range",
            seconds=0.2,
        )


def test_many_threads_ask_at_once(atlas: lx.Atlas) -> None:
    answers: list[int] = []

    def ask() -> None:
        for _ in range(5):
            answers.append(len(atlas.parameters(" law", 10)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [10] * 30
