"""Every command that reads parameters: its formats, and that it says what the library says."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexray import Model, filters
from tests.cli.running import answer, lexray, mistake

Answer = Callable[[Model], Any]

COMMANDS: dict[str, tuple[list[str], Answer]] = {
    "head": (["head", "L1H2", "-k", "7"], lambda m: m["L1H2"].vo.top(7)),
    "head.QK": (["head", "L1H2.QK", "-k", "7"], lambda m: m["L1H2"].qk.top(7)),
    "head --of": (["head", "L0H1", "--of", " law"], lambda m: m["L0H1"].vo.of(" law", 50)),
    "head --writing": (
        ["head", "L0H1", "--writing", " law", "-k", "3"],
        lambda m: m["L0H1"].vo.writing(" law", 3),
    ),
    "head --attends-to": (
        ["head", "L0H1", "--attends-to", "·the", "-k", "3"],
        lambda m: m["L0H1"].qk.attends_to(" the", 3),
    ),
    "head --attended-by": (
        ["head", "L0H1.QK", "--attended-by", " the", "-k", "3"],
        lambda m: m["L0H1"].qk.attended_by(" the", 3),
    ),
    "svd": (["svd", "L1H0.VO", "-n", "2", "-k", "4"], lambda m: m["L1H0"].vo.svd(2, 4)),
    "svd --qk": (["svd", "l1h0", "--qk", "-n", "1"], lambda m: m["L1H0"].qk.svd(1, 10)),
    "neuron": (["neuron", "L1N5", "-k", "4"], lambda m: m["L1N5"].top(4)),
    "neuron.value": (["neuron", "L1N5.value", "-k", "4"], lambda m: m["L1N5"].value.top(4)),
    "subhead": (["subhead", "L0H1.V3", "-k", "4"], lambda m: m["L0H1.V3"].top(4)),
    "vector": (["vector", "L1.mlp_norm", "-k", "4"], lambda m: m["L1.mlp_norm"].top(4)),
    "lookup": (
        ["lookup", " law", "cat", "-n", "3", "-k", "5"],
        lambda m: m.lookup([" law", "cat"]).top(3, tokens=5),
    ),
    "lookup --among": (
        ["lookup", " law", "--among", "V", "--by", "cosine"],
        lambda m: m.lookup([" law"], among="V", by="cosine").top(10),
    ),
    "lookup --suppressed": (
        ["lookup", " law", "--among", "values,O", "--suppressed", "-n", "3"],
        lambda m: m.suppresses(" law", ["values", "O"]).top(3),
    ),
    "related": (
        ["related", "-k", "20", "--overlap", "0.05"],
        lambda m: m.related(k=20, overlap=0.05),
    ),
    "nearest": (["nearest", "L1N5.key", "-n", "4"], lambda m: m.nearest("L1N5.key", 4)),
    "nearest --among": (
        ["nearest", "L0H1.O2", "--among", "O", "--among", "values"],
        lambda m: m.nearest("L0H1.O2", among=["O", "values"]),
    ),
}
every_command = pytest.mark.parametrize("name", COMMANDS)


def called(name: str, model: Path) -> list[object]:
    command, *rest = COMMANDS[name][0]
    return [command, model, *rest]


@pytest.mark.slow
@every_command
def test_raw_is_the_papers_way(name: str, llama: Path) -> None:
    found = answer(*called(name, llama), "--raw")
    assert found == COMMANDS[name][1](Model.from_pretrained(llama).view("raw")).to_dict()
    assert found["reading"] == "raw"
    assert found == answer(*called(name, llama), "--view", "raw")


def test_a_view_cannot_be_two(llama: Path) -> None:
    ran = lexray("neuron", llama, "L1N5", "--raw", "--view", "standard")
    assert ran.code == 2
    assert "--raw and --view standard contradict each other" in ran.err


@every_command
def test_json_is_what_the_library_says(name: str, llama: Path) -> None:
    found = answer(*called(name, llama))
    assert found == COMMANDS[name][1](Model.from_pretrained(llama)).to_dict()
    assert found["model"] == str(llama)
    assert found["reading"] == "standard"


@every_command
def test_csv(name: str, llama: Path) -> None:
    ran = lexray(*called(name, llama), "--format", "csv")
    assert (ran.code, ran.err) == (0, "")
    header, *rows = csv.reader(io.StringIO(ran.out))
    assert rows
    assert all(len(row) == len(header) for row in rows)
    assert ran.out == COMMANDS[name][1](Model.from_pretrained(llama)).to_csv()


@every_command
def test_html(name: str, llama: Path, tmp_path: Path) -> None:
    ran = lexray(*called(name, llama), "-o", tmp_path / "a.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert "<script" not in page


@every_command
def test_table(name: str, llama: Path) -> None:
    ran = lexray(*called(name, llama))
    assert (ran.code, ran.err) == (0, "")
    assert "┏" in ran.out
    assert "standard" in ran.out
    assert "\x1b" not in ran.out


# ---------------------------------------------------------------------- the shapes of the answers


def is_token(value: Any) -> bool:
    return set(value) == {"id", "text"} and type(value["id"]) is int and type(value["text"]) is str


def check_vector(value: Any, k: int) -> None:
    for end, sign in (("top", -1), ("bottom", 1)):
        assert len(value[end]) == k
        scores = [entry["score"] for entry in value[end]]
        assert scores == sorted(scores, key=lambda score: sign * score)
        for entry in value[end]:
            assert set(entry) == {"score", "token"}
            assert is_token(entry["token"])


@pytest.mark.parametrize("matrix", ["VO", "QK"])
def test_a_head(llama: Path, matrix: str) -> None:
    found = answer("head", llama, "L1H2", f"--{matrix.lower()}", "-k", 5)
    assert {"model", "address", "matrix", "reading", "pairs"} <= set(found)
    assert (found["address"], found["matrix"]) == ("L1H2", matrix)
    assert len(found["pairs"]) == 5
    for pair in found["pairs"]:
        assert set(pair) == {"score", "row", "col"}
        assert is_token(pair["row"])
        assert is_token(pair["col"])


def test_a_head_shows_fifty_pairs(llama: Path) -> None:
    assert len(answer("head", llama, "L1H2")["pairs"]) == 50


@pytest.mark.slow
def test_a_neuron(llama: Path, gpt2: Path) -> None:
    gated = answer("neuron", llama, "L1N5", "-k", 3)
    plain = answer("neuron", gpt2, "L1N5", "-k", 3)
    for name in ("key", "gate", "value"):
        check_vector(gated[name], 3)
    assert "gate" not in plain
    assert "key" not in answer("neuron", llama, "L1N5.gate")


@pytest.mark.slow
def test_other_vectors(gpt2: Path) -> None:
    check_vector(answer("subhead", gpt2, "L0H1.Q2", "-k", 3)["Q"], 3)
    for name in ("b_O", "b_out", "attn_norm", "mlp_norm_bias"):
        check_vector(answer("vector", gpt2, f"L1.{name}", "-k", 3)[name], 3)
    check_vector(answer("vector", gpt2, "L1N3.key", "-k", 3)["key"], 3)


def test_singular_directions(llama: Path) -> None:
    found = answer("svd", llama, "L1H0.QK", "-n", 3, "-k", 4)
    assert found["matrix"] == "QK"
    assert len(found["directions"]) == 3
    for direction in found["directions"]:
        assert set(direction) == {"singular_value", "share", "input", "output"}
        check_vector(direction["input"], 4)
        check_vector(direction["output"], 4)


@pytest.mark.slow
def test_searches(llama: Path) -> None:
    looked = answer("lookup", llama, " law", "--limit", 3, "-k", 4)
    assert [is_token(word) for word in looked["words"]] == [True]
    assert len(looked["hits"]) == 3
    for hit in looked["hits"]:
        check_vector(hit["value"], 4)
    near = answer("nearest", llama, "L1N5.key", "-n", 4)
    assert len(near["hits"]) == 4
    check_vector(near["key"], 10)


@pytest.mark.slow
def test_related_cuts_its_table_only(llama: Path) -> None:
    options = ["related", llama, "-k", 40, "--overlap", 0.01, "--limit", 2]
    whole = answer(*options)["neurons"]
    table, sheet = lexray(*options).out, lexray(*options, "--format", "csv").out
    assert len(whole) > 2
    assert len(sheet.splitlines()) == len(whole) + 1
    assert f"{len(whole) - 2} more: see --limit" in table
    assert sum(f"│ {neuron['address']} " in table for neuron in whole) == 2
    assert "more:" not in lexray(*options[:-1], 1000).out


# ---------------------------------------------------------------------- views and filters

VIEWS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "folded": (["--no-folded"], {"folded": False}),
    "calibrated": (
        ["--no-standardised", "--calibrated"],
        {"standardised": False, "calibrated": True},
    ),
    "centred": (["--centred"], {"centred": True}),
    "every token": (["--all-tokens"], {"trained": False}),
    "expects": (["--reading", "output"], {"reading": "output"}),
    "pinv": (["--inverse", "pinv"], {"inverse": "pinv"}),
    "input": (["--reading", "input"], {"reading": "input"}),
    "offset": (["--offset", "-2"], {"offset": -2}),
    "all": (
        ["--folded", "--calibrated", "--centred", "--offset", "3"],
        {"folded": True, "calibrated": True, "centred": True, "offset": 3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str, llama: Path) -> None:
    given, options = VIEWS[name]
    model = Model.from_pretrained(llama).view(**options)
    found = answer("head", llama, "L1H2", "--qk", "-k", 9, *given)
    assert found == model["L1H2"].qk.top(9).to_dict()
    assert {name: found["view"][name] for name in options} == options
    if name != "offset":
        without = [word for word in given if word not in ("--offset", "3")]
        found = answer("neuron", llama, "L1N2", "-k", 9, *without)
        assert found == model.view(offset=0)["L1N2"].top(9).to_dict()


@pytest.mark.slow
def test_filters(llama: Path, tmp_path: Path) -> None:
    text, listed = tmp_path / "corpus.txt", tmp_path / "listed.txt"
    text.write_text("the law, a law and a cat", encoding="utf-8")
    listed.write_text("law\ncat\n", encoding="utf-8")
    some = filters.among(["law", "cat"], any_form=True)
    cases: list[tuple[list[object], filters.Filter]] = [
        (["--ascii"], filters.ascii),
        (["--alnum"], filters.alphanumeric),
        (["--starts-word"], filters.starts_word),
        (["--corpus", text], filters.corpus(text)),
        (["--corpus", text, "--min-count", "2"], filters.corpus(text, minimum=2)),
        (["--only", "law cat"], some),
        (["--only", "law", "--only", "cat"], some),
        (["--only", listed], some),
        (["--only", f"@{listed}"], some),
        (["--ascii", "--starts-word"], filters.ascii & filters.starts_word),
    ]
    model = Model.from_pretrained(llama)
    for given, filter in cases:
        pairs = answer("head", llama, "L1H2", "-k", 6, *given)
        assert pairs == model["L1H2"].vo.top(6, filter=filter).to_dict()
        value = answer("neuron", llama, "L1N2.value", "-k", 6, *given)
        assert value == model["L1N2.value"].top(6, filter=filter).to_dict()
        assert value["filter"] == filter.describe()


@pytest.mark.slow
def test_a_word_with_a_slash_is_no_file(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that a file of the folder happens to be called; @ says that a file is meant."""
    monkeypatch.chdir(tmp_path)
    Path("law").write_text("cat\n", encoding="utf-8")
    Path("lists").mkdir()
    Path("lists/animals").write_text("cat\n", encoding="utf-8")
    assert "'and/or' is" in mistake("head", llama, "L1H2", "--only", "and/or")
    model = Model.from_pretrained(llama)["L1H2"].vo
    cases = {"law": ["law"], "@law": ["cat"], "lists/animals": ["cat"], " @ law": ["@", "law"]}
    for given, expected in cases.items():
        some = filters.among(expected, any_form=True)
        assert (
            answer("head", llama, "L1H2", "--only", given) == model.top(50, filter=some).to_dict()
        )
    assert "no-file" in mistake("head", llama, "L1H2", "--only", "@no-file")


@pytest.mark.slow
def test_which_pairs(llama: Path) -> None:
    vo = Model.from_pretrained(llama)["L1H2"].vo
    cases: list[tuple[str, dict[str, Any]]] = [
        ("--smallest", {"sign": "smallest"}),
        ("--absolute", {"sign": "absolute"}),
        ("--exclude-same", {"exclude_same": True}),
        ("--exclude-inflected", {"exclude_same": "inflected"}),
    ]
    for flag, options in cases:
        found = answer("head", llama, "L1H2", "-k", 20, flag)
        assert found == vo.top(20, **options).to_dict()


def test_device_and_dtype(llama: Path) -> None:
    import torch

    model = Model.from_pretrained(llama, dtype=torch.float64)
    found = answer("neuron", llama, "L1N2", "--device", "cpu", "--dtype", "float64")
    assert found == model["L1N2"].top(30).to_dict()


def test_another_family(llama: Path) -> None:
    assert answer("neuron", llama, "L1N2", "--family", "mistral")["model"] == str(llama)


@pytest.mark.slow
def test_in_a_process_of_its_own(llama: Path) -> None:
    command = [sys.executable, "-m", "lexray.cli", "head", str(llama), "L1H2", "--format", "json"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=1800)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == lexray(*command[3:]).out
