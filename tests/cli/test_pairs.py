"""Encoder–decoders on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray import Model
from tests.cli.running import answer, lexray
from tests.cli.test_sweep import same, sweep

pytestmark = pytest.mark.slow


def test_heads_of_all_three_attentions_are_lines(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    whole = sweep(pair, path)
    lines = [json.loads(line) for line in whole.splitlines()]
    model = Model.from_pretrained(pair)
    expected = [str(head.address) for head in model.every_head for _ in range(2)]
    assert [line["address"] for line in lines] == expected
    assert {address.partition("L")[0] for address in expected} == {"", "enc."}
    sizes = [stack.n_layers * stack.n_heads for stack in model.stacks]
    assert len(set(expected)) == sizes[0] + 2 * sizes[1]
    for line in lines[::5]:
        same(line, answer("head", pair, f"{line['address']}.{line['matrix']}", "-k", 5))
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:7]) + whole[:40])
    assert sweep(pair, path) == whole
    plan = answer("heads", pair, "--plan")
    assert plan["matrices"] == len(lines)


def test_the_catalogue_has_them_all(pair: Path) -> None:
    said = answer("catalogue", pair)
    model = Model.from_pretrained(pair)
    assert [head["address"] for head in said["heads"]] == [str(h.address) for h in model.every_head]
    assert all(head["measured"] is not None for head in said["heads"])
    for address in ("enc.L1H2", "L1X2"):
        ran = lexray("describe", pair, address, "--static")
        assert (ran.code, ran.err) == (0, "")
        assert f"{address}: roles from weights" in ran.out
