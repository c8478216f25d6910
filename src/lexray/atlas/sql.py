"""DuckDB over the files of an atlas: its tables as views, and a door that only lets questions in.

Once the views stand, DuckDB may open nothing but the atlas's own files, its settings are locked,
and of statements only a single SELECT is taken: nothing is written, attached or installed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from lexray.atlas.ask import ADDRESS, FIRST, KNOWN, PLACE
from lexray.atlas.plan import Chunk
from lexray.atlas.schema import NO_VIEW, TABLES
from lexray.atlas.store import Store
from lexray.errors import LexrayError

THREADS = 2
MOST_MEMORY = "4GB"
"""For what is made of an atlas's files, which may be small and mean much; nothing goes to disk."""
MOST_TOKENS = 1 << 23
"""Many times what any vocabulary has."""
SPECIAL = re.compile(r"[*?\[]")
"""Letters of a path that DuckDB takes for a pattern."""
LOCKED = (
    "SET enable_external_access=false",
    "SET python_enable_replacements=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET lock_configuration=true",
)
REMEMBER = f"""CREATE TABLE {KNOWN} AS SELECT view, {PLACE}, norm, legibility,
    hash(view, kind, side, owner, number) AS place,
    top_ids[:{FIRST}] AS first_ids, bottom_ids[:{FIRST}] AS last_ids FROM vectors"""
"""What is asked of all vectors at once: made when it is first needed, some 100 bytes for each."""
TURNED = """SELECT view, unnest({end}_ids) AS token, kind, side, layer, owner, number,
    '{end}' AS "end", CAST(generate_subscripts({end}_ids, 1) AS SMALLINT) AS rank,
    unnest({end}_scores) AS score, address FROM vectors WHERE view = '{view}'"""
"""The index of lists that have none yet."""


Files = dict[tuple[str, str], list[str]]
"""A table's, by view and by the one kind of vectors that they hold, if there is one."""


class Database:
    """The tables of an atlas, to be asked."""

    def __init__(self, store: Store, there: Sequence[Chunk], missing: Iterable[str]) -> None:
        self._store = store
        lacking = {Chunk.parse(name).view for name in missing if name.startswith("index/")}
        indexed = {chunk.view for chunk in there if chunk.job == "index"} - lacking
        listed = {chunk.view for chunk in there if chunk.job in ("vectors", "others")}
        files: dict[str, Files] = {name: {} for name in TABLES}
        for chunk in there:
            if chunk.job == "index" and chunk.view not in indexed:
                continue  # an index is only good when all of it is there
            kind = chunk.kind if chunk.job == "vectors" else ""
            for name in chunk.names:
                table = name.partition("/")[0]
                files[table].setdefault((chunk.view, kind), []).append(store.path(name))
        self._connection = duckdb.connect(":memory:")
        self._remembers, self._lock = False, threading.Lock()
        try:
            self._set_up(files, sorted(listed - indexed))
        except duckdb.Error as error:
            raise LexrayError(f"{store.where} cannot be read as an atlas: {_say(error)}") from error

    def _set_up(self, files: dict[str, Files], unindexed: Sequence[str]) -> None:
        connection = self._connection
        if self._store.folder is None:
            connection.register_filesystem(self._store.system)
            for own in files.values():
                for key, some in own.items():
                    own[key] = [self._store.system.unstrip_protocol(path) for path in some]
        paths = [path for own in files.values() for some in own.values() for path in some]
        connection.execute(f"SET threads={THREADS}")
        connection.execute(f"SET memory_limit='{MOST_MEMORY}'")
        connection.execute("SET temp_directory=''")
        connection.execute("SET parquet_metadata_cache=true")
        allowed = dict.fromkeys([*paths, *map(_literal, paths)])
        connection.execute(f"SET allowed_paths=[{_quote(allowed)}]")
        self._refuse_endless(files["tokens"])
        for name, own in files.items():
            self._make_view(name, own, unindexed)
        connection.execute(
            "CREATE TABLE _shown AS SELECT list(coalesce(shown, '') ORDER BY id) AS words "
            "FROM tokens"
        )
        connection.execute("CREATE MACRO word(id) AS (SELECT words[id + 1] FROM _shown)")
        connection.execute(
            "CREATE MACRO words(ids) AS list_select((SELECT words FROM _shown), "
            "list_transform(ids, lambda id: id + 1))"
        )
        for statement in LOCKED:
            connection.execute(statement)

    def _refuse_endless(self, files: Files) -> None:
        """The tokens are held in memory: a few bytes of a file may say the same a billion times."""
        for path in (path for some in files.values() for path in some):
            asked = f"SELECT sum(num_rows) FROM parquet_file_metadata({_quote([_literal(path)])})"
            (rows,) = self._connection.execute(asked).fetchone() or (0,)
            if rows > MOST_TOKENS:
                raise LexrayError(f"{path} has {rows:,} tokens, many times what any model has")

    def _make_view(self, name: str, files: Files, unindexed: Sequence[str]) -> None:
        """A table over its files, which must have the columns that the schema says; files of other
        kinds than a question's are passed over without a look."""
        connection = self._connection
        parts = []
        for (view, kind), paths in files.items():
            wanted = _columns(name, kind) + (f", {ADDRESS} AS address" if name == "index" else "")
            own = "" if view == NO_VIEW else f"'{view}' AS view, "
            parts.append(
                f"SELECT {own}{wanted} FROM read_parquet([{_quote(map(_literal, paths))}])"
            )
        if name == "index":
            parts += [TURNED.format(end=e, view=v) for v in unindexed for e in ("top", "bottom")]
        if not parts:
            empty = TABLES[name].empty_table()
            connection.register("_empty", empty)
            own = "" if name == "tokens" else "'' AS view, "
            more = ", '' AS address" if name == "index" else ""
            connection.execute(
                f'CREATE TABLE "{name}" AS SELECT {own}*{more} FROM _empty WHERE false'
            )
            connection.unregister("_empty")
            return
        connection.execute(f'CREATE VIEW "{name}" AS {" UNION ALL BY NAME ".join(parts)}')
        if name == "tokens":
            connection.execute("ALTER VIEW tokens RENAME TO _tokens")
            connection.execute("CREATE TABLE tokens AS SELECT * FROM _tokens ORDER BY id")

    def ask(
        self, query: str, parameters: Sequence[Any] = (), seconds: float | None = None
    ) -> pa.Table:
        """The answer to a single SELECT; it is ended after some seconds, if these are said."""
        if KNOWN in query:
            self._remember()
        cursor = self._connection.cursor()
        timer = None if seconds is None else threading.Timer(seconds, cursor.interrupt)
        try:
            _refuse_others(cursor.extract_statements(query))
            if timer is not None:
                timer.start()
            return cursor.sql(query, params=list(parameters)).to_arrow_table()
        except duckdb.InterruptException:
            raise LexrayError(f"the query took longer than {seconds} s and was ended") from None
        except duckdb.Error as error:
            raise LexrayError(f"the query cannot be answered: {_say(error)}") from error
        finally:
            if timer is not None:
                timer.cancel()
            cursor.close()

    def warm_up(self) -> None:
        """Reads what most questions need into memory, so that the first is as quick as the next."""
        self._remember()

    def _remember(self) -> None:
        with self._lock:
            if not self._remembers:
                self._connection.execute(REMEMBER)
                self._remembers = True

    def close(self) -> None:
        self._connection.close()


def _columns(name: str, kind: str) -> str:
    """Those of a table, whose `kind` may be known."""
    known = {"kind": f"'{kind}'"} if kind else {}
    return ", ".join(
        f'CAST({known.get(f.name) or _quoted(f.name)} AS {_type(f.type)}) AS "{f.name}"'
        for f in TABLES[name]
    )


def _quoted(name: str) -> str:
    return f'"{name}"'


def _type(kind: pa.DataType) -> str:
    """What DuckDB calls it; a cast to the type that is there costs nothing."""
    if pa.types.is_list(kind):
        return f"{_type(kind.value_type)}[]"
    names = {
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "float": "FLOAT",
        "double": "DOUBLE",
        "bool": "BOOLEAN",
        "string": "VARCHAR",
    }
    return names[str(kind)]


def _literal(path: str) -> str:
    """A path as a pattern that fits no other: DuckDB looks for what stars may mean."""
    return SPECIAL.sub(r"[\g<0>]", path)


def _quote(texts: Iterable[str]) -> str:
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


def _refuse_others(statements: Sequence[Any]) -> None:
    kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
    if kinds != ["SELECT"]:
        said = " and ".join(kinds) or "nothing"
        raise LexrayError(f"an atlas answers one SELECT at a time, not {said}")


def _say(error: BaseException) -> str:
    return str(error).strip()[:600]
