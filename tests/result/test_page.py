"""The shell of every page, and several modules as one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lexray.flow.draw.html import module
from lexray.result.page import IMPORT, Script, embed_json, join_modules, page, read_asset

STATIC = Path(__file__).parents[2] / "src/lexray/flow/static"


def test_every_text_is_escaped_and_nothing_may_be_loaded() -> None:
    text = page("</title><b>\ud800", "<p>body</p>")
    assert "<title>&lt;/title&gt;&lt;b&gt;\ufffd</title>" in text
    assert "default-src 'none'" in text
    assert "script-src" not in text
    assert "script-src 'unsafe-inline'" in page("", "", scripts=[Script("1")])
    text.encode("utf-8")


def test_a_script_cannot_end_its_own_element() -> None:
    data = Script(embed_json("</script>\u2028\ud800"), "application/json", "data")
    assert str(data).count("</script") == 1
    assert json.loads(data.text) == "</script>\u2028\ud800"
    with pytest.raises(ValueError, match="ends its own element"):
        str(Script("'</SCRIPT>'"))


def test_modules_become_one(tmp_path: Path) -> None:
    """In one scope: no import is left, no name is declared twice, each module stands once."""
    joined = module()
    assert not re.search(r"^import\b", joined, re.MULTILINE)
    assert re.findall(r"^export (.*?)[ (;]", joined, re.MULTILINE) == ["function", "default"]
    names = re.findall(r"^(?:export )?(?:class|function|const|let) (\w+)", joined, re.MULTILINE)
    assert len(names) == len(set(names)) > 20
    for path in STATIC.glob("*.js"):
        body = IMPORT.sub("", path.read_text("utf-8"))
        assert joined.count(re.findall(r"^(?:export )?class \w+", body, re.M)[0].split()[-1] + " {")
    assert joined == join_modules("lexray.flow", "static/flow.js")


@pytest.mark.skipif(not shutil.which("node"), reason="no node here")
def test_the_joined_module_is_javascript(tmp_path: Path) -> None:
    path = tmp_path / "flow.mjs"
    path.write_text(module(), "utf-8")
    subprocess.run(["node", "--check", str(path)], check=True, capture_output=True)


def test_assets_are_in_the_package() -> None:
    assert read_asset("lexray.flow", "static/flow.css").startswith(".lexray-flow")
