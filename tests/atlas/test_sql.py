"""SQL over an atlas reads the atlas, and nothing else; and writes nothing."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lexray as lx
from lexray.atlas import sql
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


@pytest.mark.slow
def test_a_long_query_is_ended(atlas: lx.Atlas) -> None:
    with pytest.raises(LexrayError, match="longer than"):
        atlas.sql(
            "select count(*) from range(1000000000) a, range(1000000000) b where a.range > b.range",
            seconds=0.2,
        )


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["a*b", "a?b", "[a]b", "a[!x]b", "it's", "{a,b}", "a b"])
def test_folders_with_odd_names(folder: Path, tmp_path: Path, name: str) -> None:
    """A name that DuckDB takes for a pattern means one folder, not those beside it."""
    for each in (name, "aXb", "ab", "a"):
        shutil.copytree(folder, tmp_path / each)
    count = "select (select count(*) from vectors) as vectors, (select count(*) from tokens) as all"
    odd, plain = (
        lx.Atlas(where).sql(count).to_dict()["rows"] for where in (tmp_path / name, folder)
    )
    assert odd == plain


def test_more_tokens_than_any_model_has(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of half a megabyte that means 2 · 10⁷ rows took 3 GB."""
    where = tmp_path / "atlas"
    shutil.copytree(folder, where)
    path = where / "tokens" / "any" / "all.parquet"
    n = len(lx.Atlas(where).sql("select * from tokens"))
    monkeypatch.setattr(sql, "MOST_TOKENS", n)
    assert len(lx.Atlas(where).sql("select * from tokens")) == n
    one = pq.read_table(path)
    pq.write_table(pa.concat_tables([one, one.slice(0, 1)]), path)
    with pytest.raises(LexrayError, match=f"{n + 1} tokens, many times"):
        lx.Atlas(where).sql("select * from tokens")


def test_memory_has_a_bound_and_nothing_is_laid_on_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sql, "MOST_MEMORY", "50MB")
    atlas = lx.Atlas(folder)
    with pytest.raises(LexrayError, match="Out of Memory"):
        atlas.sql("select range as n, repeat('x', 99) as x from range(5000000) order by random()")
    assert len(atlas.sql("select * from vectors limit 1")) == 1
    assert [*tmp_path.iterdir()] == []
