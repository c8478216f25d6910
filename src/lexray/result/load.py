"""Results from their JSON: `lx.load("pairs.json")` is what `pairs.to_json()` was written from."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from lexray.checkpoint.plain import parse_json, read_plain
from lexray.clean import clean_json
from lexray.errors import LexrayError
from lexray.result.state import unpack
from lexray.result.table import STATE, Result

FLOW = "lexray.flow"
MOST = 1 << 30
"""No result is larger than this many bytes."""


def load(path: str | Path) -> Result:
    """The result that a JSON file of lexray's holds: it equals the one that was written.

    What a file says for people and programs and what the result is made from must agree: a file
    that somebody changed by hand is refused.

    >>> lx.load("pairs.json").plot()          # doctest: +SKIP
    """
    return read_result(read_plain(Path(path), MOST), str(path))


def read_result(raw: bytes, where: str) -> Result:
    data = parse_json(raw, where)
    if not isinstance(data, dict):
        raise _foreign(where)
    if data.get("schema") == FLOW:  # its JSON is all that it holds
        flow: Result = import_module("lexray.flow.flow").Flow.from_json(raw.decode())
        return flow
    if data.keys() >= {"metadata", "nodes", "links"}:
        graph: Result = import_module("lexray.flow.attribution").from_attribution(raw.decode())
        return graph
    if STATE not in data:
        raise _foreign(where)
    result = unpack(data.pop(STATE))
    if not isinstance(result, Result):
        raise _foreign(where)
    if _describe(result, where) != data:
        raise LexrayError(
            f"{where}: what it says and the result that it was made from are not the same; it was "
            "changed by hand, or another version of lexray wrote it"
        )
    return result


def _describe(result: Result, where: str) -> Any:
    try:
        return json.loads(clean_json(json.dumps(result.to_dict())))
    except LexrayError:
        raise
    except Exception as error:  # fields of other kinds than the class says
        raise LexrayError(f"{where}: this result is damaged: {str(error)[:300]}") from error


def _foreign(where: str) -> LexrayError:
    return LexrayError(
        f"{where} holds no result of lexray's: what `.to_json()` or `-o FILE.json` wrote can be "
        "loaded"
    )
