"""The documentation cannot lie: its Python runs and shows what it says, nothing is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from tools.docs.commands import commands_page
from tools.docs.run import PAGES, run

import lexray as lx
from lexray.cli import app
from lexray.families import registry

DOCS = PAGES.parent
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
TUTORIALS = sorted(page.stem for page in PAGES.glob("*.md"))
WORD = re.compile(r"[^\W\d_]{2,}")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_show_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words; numbers may differ in their last digits from machine to machine."""
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry.families()))
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for ran in run(text, tmp_path):
        assert bool(ran.said) == bool(ran.shows), f"run python -m tools.docs.run {name}"
        said, shows = (set(WORD.findall(x)) for x in (ran.said, ran.shows))
        assert len(said & shows) >= 0.8 * len(said), f"run python -m tools.docs.run {name}"


def test_every_public_name_is_documented() -> None:
    told = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in told}
    assert set(lx.__all__) - last == set()


def test_every_command_and_option_is_documented() -> None:
    page = commands_page()
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f"## lexray {name}\n" in page
        assert command.help, f"lexray {name} says nothing of itself"
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name} is not explained"


def test_real_json_is_as_documented() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = json.loads((DOCS / "reference" / "schemas.json").read_text())
    model = lx.Model.from_pretrained("demo")
    flow = model.trace("This film was").flow(layers=[2], heads=2, neurons=(2, 1))
    for name, result in {
        "reading": model["L2N3"].top(4),
        "pairs": model["L2H1"].vo.top(4),
        "flow": flow,
    }.items():
        data = json.loads(result.to_json())
        validator = jsonschema.Draft202012Validator(schemas | {"$ref": f"#/$defs/{name}"})
        assert not list(validator.iter_errors(data))
        assert list(validator.iter_errors({**data, "model": 3})), "the schema refuses something"


@pytest.mark.slow
def test_how_to_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for page in (DOCS / "index.md", DOCS / "howto" / "index.md"):
        for code in BLOCK.findall(page.read_text(encoding="utf-8")):
            exec(compile(code, page.name, "exec"), {})


def test_every_page_is_in_the_navigation() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if f"- {page}" not in nav} == set()
    assert "- reference/commands.md" in nav
