"""`lexray heads`: every head a line, and on after an interruption."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lexray import Model, filters
from lexray.files import appending
from tests.cli.running import answer, lexray, mistake

DEEP = '{"model":' + "[" * 100_000
"""Deeper than Python reads."""


def sweep(model: Path, path: Path, *options: object) -> bytes:
    ran = lexray("heads", model, "-k", 5, "-o", path, *options)
    assert (ran.code, ran.out) == (0, ""), ran.err
    return path.read_bytes()


def same(line: dict[str, Any], alone: dict[str, Any]) -> None:
    """Equal but for the last bits of scores: heads of a layer are multiplied together."""
    scores = [[pair["score"] for pair in found["pairs"]] for found in (line, alone)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert _without_scores(line) == _without_scores(alone)


def _without_scores(line: dict[str, Any]) -> dict[str, Any]:
    return line | {"pairs": [(pair["row"], pair["col"]) for pair in line["pairs"]]}


@pytest.mark.slow
def test_every_head_is_a_line(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    ran = lexray("heads", llama, "-k", 5, "-o", path, "--format", "jsonl")
    assert ran.code == 0
    assert ran.err.startswith("lexray: 16 lines in ")
    assert ran.err.count("\n") == 1
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    places = [(line["address"], line["matrix"]) for line in found]
    assert places == [
        (f"L{layer}H{head}", matrix)
        for layer in range(2)
        for head in range(4)
        for matrix in ("VO", "QK")
    ]
    for line in found:
        same(line, answer("head", llama, f"{line['address']}.{line['matrix']}", "-k", 5))
    assert lines[0] == json.dumps(found[0], ensure_ascii=False, separators=(",", ":"))


@pytest.mark.slow
def test_other_formats_are_what_they_say(llama: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in sweep(llama, tmp_path / "a.jsonl").splitlines()]
    assert answer("heads", llama, "-k", 5) == {"heads": lines}
    sweep(llama, tmp_path / "a.json")
    whole = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert whole.pop("lexray")
    assert whole == {"heads": lines}
    sweep(llama, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["address"], row["matrix"], float(row["score"])) for row in rows] == [
        (line["address"], line["matrix"], pair["score"]) for line in lines for pair in line["pairs"]
    ]
    table = lexray("heads", llama, "-k", 5, "--format", "table").out
    assert all(f"│ {line['address']}.{line['matrix']} " in table for line in lines)
    assert sweep(llama, tmp_path / "a.html").startswith(b"<!doctype html>")
    assert "not as .png" in mistake("heads", llama, "-o", tmp_path / "a.png")


def test_options_are_those_of_a_head(llama: Path, tmp_path: Path) -> None:
    options = ["--absolute", "--exclude-same", "--ascii", "--folded", "--offset", "-1"]
    first = json.loads(sweep(llama, tmp_path / "a", *options).splitlines()[-1])
    head = Model.from_pretrained(llama).view(folded=True, offset=-1)["L1H3"]
    alone = head.qk.top(5, sign="absolute", exclude_same=True, filter=filters.ascii)
    same(first, alone.to_dict())


@pytest.mark.slow
def test_without_a_file_lines_go_to_stdout(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", None)  # a pipe has no disk to wait for
        ran = lexray("heads", llama, "-k", 5)
    assert ran.code == 0
    assert ran.out.encode() == sweep(llama, tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 40, 700, 5000, 10**9])
def test_it_goes_on_where_it_was_interrupted(llama: Path, tmp_path: Path, cut: int) -> None:
    whole = sweep(llama, tmp_path / "whole")
    kept = whole[: max(0, len(whole) - cut)]
    path = tmp_path / "cut"
    path.write_bytes(kept)
    ran = lexray("heads", llama, "-k", 5, "-o", path)
    assert path.read_bytes() == whole
    done = kept.count(b"\n")
    assert f"{16 - done} lines in " in ran.err
    assert (f"{done} were there already" in ran.err) == (done > 0)


@pytest.mark.slow
def test_what_is_there_is_not_made_again(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep(llama, tmp_path / "a")
    monkeypatch.setattr("lexray.cli.sweep.append_json_line", None)
    assert sweep(llama, tmp_path / "a") == whole


@pytest.mark.slow
def test_an_interruption_leaves_whole_lines(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep(llama, tmp_path / "whole")
    path, synced = tmp_path / "a", os.fsync

    def interrupted(handle: int) -> None:
        synced(handle)
        if path.read_bytes().count(b"\n") == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", interrupted)
        ran = lexray("heads", llama, "-k", 5, "-o", path)
    assert (ran.code, ran.err) == (130, "lexray: interrupted\n")
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    assert sweep(llama, path) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-k", "6"], "pairs 5 there, 6 here"),
        (["--raw"], "reading 'standard' there, 'raw' here"),
        (["--ascii"], "filter '' there, 'ascii' here"),
        (["--smallest"], "sign 'largest' there, 'smallest' here"),
    ],
)
def test_other_options(llama: Path, tmp_path: Path, options: list[str], told: str) -> None:
    path = tmp_path / "a"
    whole = sweep(llama, path)
    said = mistake("heads", llama, "-o", path, "-k", 5, *options)
    assert "begun with other options" in said
    assert told in said
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_another_model(llama: Path, gpt2: Path, tmp_path: Path) -> None:
    path = tmp_path / "a"
    whole = sweep(llama, path)
    assert "model" in mistake("heads", gpt2, "-k", 5, "-o", path)
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_other_weights(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "a"
    first, *rest = sweep(llama, path).splitlines(keepends=True)
    changed = json.loads(first)
    changed["pairs"][0]["score"] *= 1.5
    path.write_bytes(json.dumps(changed).encode() + b"\n" + b"".join(rest))
    assert "other weights" in mistake("heads", llama, "-k", 5, "-o", path)


@pytest.mark.parametrize(
    "text",
    ["hello\n", "hello", '{"a": 1}\n', '{"a": 1}', "[1]\n", "{\n", DEEP, f"{DEEP}\n"],
    ids=lambda text: text[:9],
)
def test_a_file_of_someone_else_stays_as_it_is(llama: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    assert "line 1, was not written by `lexray heads`" in mistake("heads", llama, "-o", path)
    assert path.read_text() == text


def test_a_head_that_the_model_has_not(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "a"
    line = json.loads(sweep(llama, path).splitlines()[0]) | {"address": "L7H7"}
    path.write_text(json.dumps(line) + "\n")
    assert "L7H7.VO" in mistake("heads", llama, "-k", 5, "-o", path)


def test_where_no_file_can_be(llama: Path, tmp_path: Path) -> None:
    assert "cannot write" in mistake("heads", llama, "-o", tmp_path)
    assert "cannot write" in mistake("heads", llama, "-o", tmp_path / "none" / "a")
    assert "pdf" in mistake("heads", llama, "--format", "pdf")


@pytest.mark.parametrize(
    "mine", ['{"model": "of another program"}', '{"model": "of ano', '{"model":"of another', "{"]
)
def test_a_users_file_is_not_wiped(mine: str, llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text(mine)
    assert "was not written by `lexray heads`" in mistake("heads", llama, "-k", 5, "-o", path)
    assert path.read_text() == mine


@pytest.mark.slow
def test_one_at_a_time(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexray.files.PATIENCE", 1)
    path = tmp_path / "a.jsonl"
    with appending(path):
        told = mistake("heads", llama, "-k", 5, "-o", path)
    assert "another process is writing" in told
    assert sweep(llama, path).count(b"\n") == 16


@pytest.mark.slow
def test_a_device_stays_one(llama: Path, devices: tuple[Path, Path]) -> None:
    for path, code in zip(devices, (0, 2), strict=True):
        ran = lexray("heads", llama, "-k", 5, "-o", path)
        assert ran.code == code
        assert path.is_char_device()
    assert f"cannot write {devices[1]}: No space left on device" in ran.err


@pytest.mark.slow
def test_a_plan_reads_no_weights(llama: Path, tmp_path: Path) -> None:
    plan = answer("heads", llama, "--plan")
    model = Model.from_pretrained(llama)
    e, d = model.space.n_rows, model.architecture.d_model
    width = model.architecture.d_head
    assert plan["matrices"] == 16
    assert plan["dense_flop"] == 16 * 2 * e * e * width
    columns = 2 * (4 + 2 + 2 + 4) * width
    assert plan["factor_flop"] == 2 * e * d * columns + 4 * 2 * e * d * d
    assert 0 < plan["seconds"] < plan["worst_seconds"]
    table = lexray("heads", llama, "--plan", "-o", tmp_path / "plan.txt")
    assert table.code == 0
    assert "at worst" in (tmp_path / "plan.txt").read_text(encoding="utf-8")
    assert plan["cores"] == torch.get_num_threads()
    worst = plan["factor_flop"] / plan["multiply_flop_per_second"]
    worst += plan["bound_flop"] / plan["other_flop_per_second"]
    worst += plan["dense_flop"] / plan["search_flop_per_second"]
    assert plan["worst_seconds"] == pytest.approx(worst / plan["cores"])


@pytest.mark.slow
def test_a_long_run_says_what_was_planned(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexray.model.plan.CALIBRATION", 0.001)
    path = tmp_path / "a.jsonl"
    assert "planned" not in lexray("heads", llama, "-k", 5, "-o", path).err
    monkeypatch.setattr("lexray.model.plan.NOTICED", 0.0)
    whole = lexray("heads", llama, "-k", 5, "-o", tmp_path / "b.jsonl").err
    assert "16 lines in" in whole
    assert re.search(r"planned: [\d.]+ \w+ of \d+ cores? for", whole)
    assert "planned" not in lexray("heads", llama, "-k", 5, "-o", path).err  # nothing was left
