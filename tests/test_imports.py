"""What is imported when: quick starts, and no transformers on the static path."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lexray
from tests.saved import save

SOURCE = Path(lexray.__file__).parent
HEAVY = ("transformers", "peft")
MAY_IMPORT_TRANSFORMERS = ("trace", "stitch", "studies", "vocabulary")


def modules_after(code: str, *arguments: str) -> set[str]:
    """The top-level packages that a fresh interpreter has imported after running `code`."""
    ending = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + ending, *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


COMMAND = """
import sys
from lexray.cli import main
sys.argv[0] = "lexray"
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.slow
def test_importing_lexray_imports_no_torch() -> None:
    modules = modules_after("import lexray; dir(lexray); lexray.LexrayError; lexray.__version__")
    assert "lexray" in modules
    assert not {"torch", "transformers", "numpy", "rich", "typer"} & modules


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"], ["--version"]])
def test_help_imports_no_torch(arguments: list[str]) -> None:
    assert not {"torch", "transformers", "numpy"} & modules_after(COMMAND, *arguments)


@pytest.mark.slow
def test_the_static_path_imports_no_transformers(tmp_path: Path) -> None:
    """A command, and then reading a head, raw and folded, and its vocabulary."""
    save("llama", tmp_path)
    reading = (
        "import lexray as lx\n"
        "model = lx.Model.from_pretrained(sys.argv[2]).view('raw')\n"
        "model['L1H2'].W_O, model.vocabulary.shown(3), model.view(folded=True).W_U\n"
        "model['L1H2'].vo.top(3), model.lookup([3]).top(1)"
    )
    modules = modules_after(COMMAND + reading, "info", str(tmp_path))
    assert "torch" in modules
    heavy = {"transformers", "huggingface_hub", "gguf", "pandas", "peft", "plotly", "scipy"}
    assert not heavy & modules


def test_every_public_name_can_be_had() -> None:
    for name in lexray.__all__:
        assert getattr(lexray, name) is not None
        assert name in dir(lexray)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lexray.nonsense  # noqa: B018


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports, anywhere in it, but for type checkers; none if
    it never names one that is heavy."""
    source = path.read_text(encoding="utf-8")
    if not any(name in source for name in HEAVY):
        return
    tree = ast.parse(source)
    for_checkers = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in for_checkers:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


@pytest.mark.slow
def test_transformers_is_imported_in_a_few_places_only() -> None:
    """In trace, stitching, studies and odd tokenizers; and peft nowhere."""
    for path in SOURCE.rglob("*.py"):
        rooms = {part.removesuffix(".py") for part in path.relative_to(SOURCE).parts}
        packages = set(imported(path))
        assert "transformers" not in packages or rooms & set(MAY_IMPORT_TRANSFORMERS), path
        assert "peft" not in packages, path


def test_the_check_above_would_find_one(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from transformers.models import gpt2\n")
    assert "transformers" in imported(file)
    file.write_text("if TYPE_CHECKING:\n    import transformers\n")
    assert "transformers" not in imported(file)
