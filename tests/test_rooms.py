"""What may import what: from the ground up, and nowhere in a circle.

Imports count wherever they stand: at the top of a module, in a function's body, for type checkers.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import lexray

SOURCE = Path(lexray.__file__).parent
FLOORS: list[tuple[str, ...]] = [
    ("errors", "clean"),
    ("address", "choice", "view", "progress", "files", "finite", "scratch"),
    ("checkpoint",),
    ("families",),
    ("vocabulary",),
    ("result",),
    ("model.cache", "model.config", "model.fold", "model.open", "space.kinds", "space.topk"),
    ("model.weights", "model.groups", "model.embedding", "model.kept"),
    ("space",),
    ("model",),
    ("find",),
    ("edits", "trace.apply", "trace.record", "trace.recording"),
    ("trace.read",),
    ("trace.attribute",),
    ("flow", "effects"),
    ("trace",),
    ("roles",),
    ("model.model", "model.runs"),
    ("compare", "dictionary"),
    ("studies",),
    ("atlas",),
    ("web",),
    ("cli", "__main__"),
]
"""From the ground up. The longest name that fits a module says on which floor it lies: what it
imports lies below it or on the same floor."""
MODEL = "lexray.model.model"


def name_of(path: Path, root: Path = SOURCE) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}


def imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """The modules among the known ones that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inner]
        else:
            continue
        yield from (name for name in names if name in known)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. The package itself is left out: it is the public face, which
    imports nothing until it is asked, and those who import it want the version."""
    known = modules()
    return {
        name: set(imported(tree, known)) - {name, "lexray"}
        for name, tree in trees().items()
        if name != "lexray"
    }


def floor_of(module: str) -> int:
    inside = module.removeprefix("lexray.")
    fitting = [
        (len(name), floor)
        for floor, names in enumerate(FLOORS)
        for name in names
        if inside == name or inside.startswith(f"{name}.")
    ]
    assert fitting, f"{module} is in no room that FLOORS knows: put its room on a floor"
    return max(fitting)[1]


def upward(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {other}, which lies above it"
        for module, others in sorted(graph.items())
        for other in sorted(others)
        if floor_of(other) > floor_of(module)
    ]


def test_imports_go_down() -> None:
    assert upward(imports()) == []


def test_only_what_lies_above_the_model_knows_it() -> None:
    top = floor_of(MODEL)
    below = [name for name, others in imports().items() if MODEL in others and floor_of(name) < top]
    assert not below


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of imports, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_imports_in_a_circle() -> None:
    """A result hands the figure or page that draws it what to draw, as `trace.read.plots` does."""
    assert circle(imports()) == []


def test_a_class_name_means_one_thing() -> None:
    """But for what a family describes and the part of a model that is made by it."""
    described = {"FeedForward", "Heads", "Mixer"}
    classes = (n for tree in trees().values() for n in tree.body if isinstance(n, ast.ClassDef))
    names = Counter(each.name for each in classes)
    assert {name for name, n in names.items() if n > 1} <= described


@pytest.mark.parametrize(
    "text",
    [
        "from lexray.model.model import Model",
        "import lexray.model.model",
        "from lexray.model import model",
        "def f():\n    from lexray.model.model import Model",
        "if TYPE_CHECKING:\n    from lexray.model.model import Model",
    ],
)
def test_the_checks_would_find_one(text: str) -> None:
    found = set(imported(ast.parse(text), modules()))
    assert MODEL in found
    assert upward({"lexray.space.side": found})
    assert not upward({"lexray.cli.heads": found})
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not circle({"a": {"b"}, "b": {"c"}, "c": set()})
    with pytest.raises(AssertionError, match="no room"):
        floor_of("lexray.attic.boxes")
