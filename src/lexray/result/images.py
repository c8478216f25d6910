"""From SVG to files: PNG by resvg, PDF by typst, neither of which needs a browser."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from lexray.errors import LexrayError
from lexray.files import write_whole

MOST_PIXELS = 100e6
POINTS = 0.75
"""A CSS pixel in points."""
_SIZE = re.compile(r'<svg[^>]* width="([0-9.]+)" height="([0-9.]+)"')
IMAGES = (".svg", ".png", ".pdf")


def write_text(text: str, path: str | Path | None) -> str:
    """Gives the text back, and writes it to `path` if there is one."""
    if path is not None:
        write_whole(Path(path), text)
    return text


def write_image(svg: str, path: str | Path, scale: float = 2.0) -> Path:
    """An SVG as the file that its ending names."""
    path = Path(path)
    match path.suffix.lower():
        case ".svg":
            write_whole(path, svg)
        case ".png":
            write_png(svg, path, scale)
        case ".pdf":
            write_pdf(svg, path)
        case _:
            raise LexrayError(f"{path.name}: pictures are saved as {', '.join(IMAGES)}")
    return path


def write_png(svg: str, path: Path, scale: float = 2.0) -> Path:
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


def write_pdf(svg: str, path: Path) -> Path:
    """An SVG as a page of PDF of its size, by typst: vectors, and text whose fonts are embedded."""
    try:
        import typst
    except ImportError as error:
        raise LexrayError(
            f"{path.name} was not written, {path.with_suffix('.svg').name} could be: for PDF "
            "lexray needs typst (pip install 'lexray[pdf]')"
        ) from error
    width, height = (POINTS * side for side in svg_size(svg))
    page = (
        f"#set page(width: {width:.2f}pt, height: {height:.2f}pt, margin: 0pt)\n"
        f'#image("picture.svg", width: {width:.2f}pt)\n'
    )
    try:
        make: Any = typst.compile  # whose types do not know of files in memory
        pdf = make({"main.typ": page.encode(), "picture.svg": svg.encode()})
    except Exception as error:  # typst's own error
        raise LexrayError(f"{path.name} was not written; typst says: {error}") from error
    write_whole(path, bytes(pdf))
    return path


def svg_size(svg: str) -> tuple[float, float]:
    """The width and the height that an SVG of ours states."""
    size = _SIZE.search(svg)
    return (float(size[1]), float(size[2])) if size else (1.0, 1.0)


def _zoom(svg: str, scale: float) -> float:
    """The scale, or less where the image would have more than 100 megapixels."""
    width, height = svg_size(svg)
    return min(scale, math.sqrt(MOST_PIXELS / (width * height)))
