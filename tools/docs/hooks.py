"""Pages that the code writes when the site is built: the commands, and the table of families."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def on_files(files: Files, config: Any) -> Files:
    from tools.docs.commands import commands_page
    from tools.docs.families import families_page

    for path, text in (
        ("reference/commands.md", commands_page()),
        ("reference/families.md", families_page()),
    ):
        files.append(File.generated(config, path, content=text))
    return files
