"""Files that are lexray's own: where it keeps what it need not fetch or count again."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_root() -> Path:
    """The one folder of everything that lexray caches.

    `$LEXRAY_CACHE` where it is set, else `lexray` in the platform's folder for caches
    (`$XDG_CACHE_HOME`, else `~/.cache`, on Linux). Read at each call: it may be set late.
    """
    if folder := os.environ.get("LEXRAY_CACHE"):
        return Path(folder).expanduser()
    return user_cache_path("lexray", appauthor=False)
