"""The page that the code writes when the site is built: the commands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

OUTSIDE = re.compile(r'<script src="https?://[^"]*"></script>')
"""What the theme would load from elsewhere, so that search works from a file system too."""
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def on_files(files: Files, config: Any) -> Files:
    from tools.docs.commands import commands_page

    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Nothing is loaded from elsewhere."""
    return OUTSIDE.sub("", output)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    return OUTSIDE.sub("", output_content)
