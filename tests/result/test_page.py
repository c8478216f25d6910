"""The shell of every page, and several modules as one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from lexray.flow.draw.html import module
from lexray.result.assets import IMPORT, join_modules, read_asset
from lexray.result.page import Script, embed_json, page
from lexray.result.theme import DARK, LIGHT, Theme, style_sheet, variables

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
        first = re.findall(r"^(?:export )?(?:class|function|const) (\w+)", body, re.M)[0]
        assert len(re.findall(rf"(?:class|function|const) {first}\b", joined)) == 1
    assert joined == join_modules("lexray.flow", "static/flow.js")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="no node here")
def test_the_joined_module_is_javascript(tmp_path: Path) -> None:
    path = tmp_path / "flow.mjs"
    path.write_text(module(), "utf-8")
    subprocess.run(["node", "--check", str(path)], check=True, capture_output=True)


def test_assets_are_in_the_package() -> None:
    assert read_asset("lexray.flow", "static/flow.css").startswith(".lexray-flow")


def test_one_theme_for_light_and_dark() -> None:
    """Every colour that the style sheet names is one of the theme's, in both modes."""
    sheet = style_sheet()
    named = set(re.findall(r"var\(--lx-([a-z-]+)\)", sheet)) - {"sans", "mono"}
    colours = {field.name.replace("_", "-") for field in fields(Theme)}
    charts = {"third", "fourth", "fifth", "sixth", "seventh"}
    assert named == colours - charts, "charts name theirs in their elements"
    assert not re.findall(r"#[0-9a-f]{3,8}", read_asset("lexray.result", "static/theme.css"))
    for theme in (LIGHT, DARK):
        assert sheet.count(variables(theme)) == 2  # by the system's wish, and by JupyterLab's


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_can_be_read(theme: Theme) -> None:
    """WCAG AA: contrast of at least 4.5 for text on its ground."""
    pairs = [
        *((ink, ground) for ink in ("ink", "faint", "accent") for ground in ("paper", "card")),
        *(("ink", "chip"), ("good", "good_ground"), ("bad", "bad_ground"), ("on_hot", "hot")),
    ]
    for ink, ground in pairs:
        a, b = sorted(luminance(getattr(theme, name)) for name in (ink, ground))
        assert (b + 0.05) / (a + 0.05) >= 4.5, (ink, ground)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
