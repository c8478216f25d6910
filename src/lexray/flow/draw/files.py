"""Pictures to files, whole or not at all."""

from __future__ import annotations

import math
import re
from pathlib import Path

from lexray.errors import LexrayError
from lexray.files import write_whole


def write_text(text: str, path: str | Path | None) -> str:
    """Gives the text back, and writes it to `path` if there is one."""
    if path is not None:
        write_whole(Path(path), text)
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
