"""The README's Python: a type checker has nothing to say about it, and it runs (on `demo`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from lexray.families import registry

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
TYPING = (ROOT / "docs" / "howto" / "typing.md").read_text(encoding="utf-8")
SMALLER = {
    '"smollm2"': '"demo"',
    "L25H1": "L2H1",
    "L26N777": "L3N77",
    "L3H7.V12": "L3H2.V12",
    "layers[20]": "layers[2]",
    "layers=[23]": "layers=[3]",
    "trace[23]": "trace[3]",
    '"cm", "kg", "inches"': '"film", "movie", "plot"',
    "The capital of Japan is the city of": "This movie was",
    " Tokyo": " great",
    "The capital of France is the city of": "That film was",
    "L23H4; ablate L23H5": "L3H4; ablate L3H3",
    "L23.attn": "L3.attn",
    "L29N50": "L3N50",
}
"""What the README says of SmolLM2, said of a model of four layers."""


def test_the_snippets_are_found() -> None:
    assert len(SNIPPETS) >= 4
    assert "from_pretrained" in SNIPPETS[0]


@pytest.mark.slow
def test_types(tmp_path: Path) -> None:
    """One script of all snippets, and the how-to page on types, read by mypy as strictly as the
    package itself is: with the same options, and from the same place, so that what `make check` has
    found is not found again."""
    scripts = [tmp_path / "readme.py", tmp_path / "typing_page.py"]
    for script, snippets in zip(scripts, (SNIPPETS, BLOCK.findall(TYPING)), strict=True):
        script.write_text("\n".join(snippets), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(ROOT)
        said, errors, _ = api.run(["--config-file", "pyproject.toml", *map(str, scripts)])
    assert not errors
    ours = [line for line in said.splitlines() if line.startswith(str(tmp_path))]
    assert not ours, "\n".join(ours)
    assert "checked" in said or "errors prevented" not in said


@pytest.mark.slow
def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry.families()))
    text = "\n".join(SNIPPETS)
    for said, smaller in SMALLER.items():
        assert said in text, f"the README no longer says {said}"
        text = text.replace(said, smaller)
    exec(compile(text, "README.md", "exec"), {})
    assert Path("flow.html").stat().st_size > 10_000
