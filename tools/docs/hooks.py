"""The page that the code writes when the site is built: the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def on_files(files: Files, config: Any) -> Files:
    from tools.docs.commands import commands_page

    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files
