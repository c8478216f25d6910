"""Pictures to files, whole or not at all."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path

from lexray.errors import LexrayError


def written(text: str, path: str | Path | None) -> str:
    """The text, also written to `path` if there is one."""
    if path is not None:
        write_whole(Path(path), text.encode("utf-8", "backslashreplace"))
    return text


def write_png(svg: str, path: Path, scale: float) -> Path:
    """An SVG as PNG, by resvg."""
    try:
        import resvg_py
    except ImportError as error:
        raise LexrayError(
            f"{path.name} was not written, {path.with_suffix('.svg').name} could be: for PNG "
            "lexray needs resvg (pip install 'lexray[png]')"
        ) from error
    try:
        image = resvg_py.svg_to_bytes(svg_string=svg, zoom=_zoom(svg, scale))
    except Exception as error:  # resvg's own errors come as ValueError or a panic
        raise LexrayError(f"{path.name} was not written; resvg says: {error}") from error
    write_whole(path, bytes(image))
    return path


MOST_PIXELS = 100e6
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')


def _zoom(svg: str, scale: float) -> float:
    """The scale, or less where the image would have more than 100 megapixels."""
    size = _SIZE.search(svg)
    area = float(size[1]) * float(size[2]) if size else 1.0
    return min(scale, math.sqrt(MOST_PIXELS / area))


def write_whole(path: Path, content: bytes) -> None:
    """Never half a file: a new one takes the old one's place when it is complete."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            part = Path(folder) / path.name
            part.write_bytes(content)
            part.replace(path)
    except OSError as error:
        raise LexrayError(f"cannot write {path}: {error.strerror}") from error
