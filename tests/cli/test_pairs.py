"""Encoder–decoders on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray import Model
from tests.cli.running import answer, lexray, mistake
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


PAIR = ("law court walks", "--target-text", "the cat")


@pytest.mark.parametrize(
    "command",
    [
        ("lens",),
        ("lens", "--of", "cross_heads", "--of", "self", "--layers", "1"),
        ("lens", "--encoder"),
        ("contributions", "--sources"),
        ("contributions", "--edits", "ablate enc.L0H1; ablate L1X1"),
        ("attention",),
        ("attention", "--cross"),
        ("attention", "--encoder"),
        ("ablate",),
        ("ablate", "enc.L1H2", "L1X1[-1]", "L1.cross"),
        ("ablate", "positions", "--window=2", "--cross"),
    ],
)
def test_a_source_and_a_target(pair: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    places = [option for option in options if name == "ablate" and option[0] != "-"]
    others = [option for option in options if option not in places]
    ran = lexray(name, pair, PAIR[0], *places, *PAIR[1:], *others, "--format", "json")
    assert ran.code == 0, ran.err
    assert ran.json


def test_what_they_say_is_the_library(pair: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(pair)
    trace = model.trace(PAIR[0], target=PAIR[2])
    lens = answer("lens", pair, *PAIR)
    assert len(lens["tokens"]) == len(trace)
    looks = answer("attention", pair, *PAIR, "--cross")
    assert [head["address"] for head in looks["heads"]][:2] == ["L0X0", "L0X1"]
    assert looks["heads"][0]["weights"] == [
        [pytest.approx(x, abs=1e-3) for x in row] for row in trace[0].cross.pattern[0].tolist()
    ]
    assert len(looks["keys"]) == len(trace.encoder)
    removed = answer("ablate", pair, *PAIR)["removed"]
    assert {r["component"][:3] for r in removed} >= {"enc", "L0H", "L0X"}
    patched = answer("patch", pair, "law court walks", "law court walked", *PAIR[1:], "--encoder")
    assert patched["lines"][0] == "enc.L0"
    said = answer("steer", pair, *PAIR, "--edits", "scale enc.L1.mlp by 3; ablate L1X1", "-n", 3)
    assert said["changed"][0]["token"]["id"] == int(
        model.trace(PAIR[0], target=PAIR[2], edits="scale enc.L1.mlp by 3; ablate L1X1")
        .logits[-1]
        .argmax()
    )
    for ending, options in ((".json", ()), (".svg", ("--paper",)), (".html", ("--encoder",))):
        path = tmp_path / f"flow{ending}"
        ran = lexray("flow", pair, *PAIR, "-o", path, *options)
        assert ran.code == 0, ran.err
        assert path.stat().st_size > 1000
    graph = json.loads((tmp_path / "flow.json").read_text(encoding="utf-8"))
    assert graph["n_source"] == len(trace.encoder)
    assert lexray("flow", pair, *PAIR, "--compare", "law court walked").code == 0


def test_switches_without_an_effect_are_refused(pair: Path, llama: Path) -> None:
    assert "name its parts" in mistake("ablate", pair, *PAIR, "--encoder")
    assert "--cross belongs to --window" in mistake("ablate", pair, *PAIR, "--cross")
    assert "encoder–decoders" in mistake("lens", llama, *PAIR)
    assert "no encoder beside it" in mistake("lens", llama, "law court", "--encoder")
    assert "no cross-attention" in mistake("attention", llama, "law court", "--cross")
