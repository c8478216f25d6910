"""Every example in a docstring runs, on `demo`; where it shows an answer, that is the answer.

An example finds its module's own names, and `lx`, `model`, `filters`, `trace` and a few more.
"""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import lexray as lx
from lexray.families import registry

SOURCE = Path(lx.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
PROMPT = "This movie was"
GIVEN = {
    "words.txt": "film\nmovie\n",
    "reviews.txt": "a film is a film\n" * 5,
    "reviews.jsonl": '{"text": "great film", "label": 1}\n{"text": "awful film", "label": 0}\n',
}
"""Files that examples read."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """All strings with examples that stand by themselves: of modules, functions, attributes."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if ">>> " in source else ():
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if ">>> " in text:
                yield node.lineno, text


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if any(docstrings(path))]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def names() -> dict[str, Any]:
    """What examples take for granted."""
    model = lx.Model.from_pretrained("demo")
    trace = model.trace(PROMPT)
    return {
        "lx": lx,
        "Path": Path,
        "filters": lx.filters,
        "model": model,
        "base": model,
        "a": model,
        "b": lx.Model.from_pretrained("demo-b"),
        "tuned": lx.Model.from_pretrained("demo-sentiment"),
        "checkpoint": model.checkpoint,
        "vocabulary": model.vocabulary,
        "figure": model["L3N17"].value.top(5).plot(),
        "trace": trace,
        "graph": trace.flow(layers=[2], heads=2, neurons=(2, 1)),
    }


class Answers(doctest.OutputChecker):
    """An example that shows no answer need only run."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def run(path: Path) -> tuple[int, str]:
    """How many examples a file has, and what is wrong with them."""
    module = import_module(module_name(path))
    runner = doctest.DocTestRunner(Answers(), verbose=False, optionflags=FLAGS)
    said: list[str] = []
    count = 0
    for line, text in docstrings(path):
        given = vars(module) | names()
        test = doctest.DocTestParser().get_doctest(text, given, module.__name__, str(path), line)
        count += len(test.examples)
        runner.run(test, out=said.append, clear_globs=False)
    return count, "".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry.families()))
    for name, text in GIVEN.items():
        Path(name).write_text(text, encoding="utf-8")
    count, said = run(path)
    assert count
    assert not said, said


def test_a_wrong_example_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_docstrings.SOURCE", tmp_path)
    monkeypatch.setattr("tests.test_docstrings.import_module", lambda _: pytest)
    cases = {"1 + 1\n2": True, "1 + 1\n3": False, "1 + 1": True, "nothing_of_this_name": False}
    for example, right in cases.items():
        path = tmp_path / "wrong.py"
        path.write_text(f'"""A docstring.\n\n>>> {example}\n"""\n', encoding="utf-8")
        monkeypatch.setattr("tests.test_docstrings.module_name", lambda _: "pytest")
        assert run(path) == (1, "") if right else run(path)[1]
