"""Numbers as people read them: the one place where figures, shares and sizes become text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath


def show_number(value: float) -> str:
    """Three decimals, and at least three significant digits.

    >>> [show_number(x) for x in (12.3456, 0.5, 0.00123, 1.2e-5, 12345.6)]
    ['12.346', '0.500', '0.00123', '1.20e-05', '12346']
    """
    size = abs(value)
    if size == 0 or 0.1 <= size < 1000:
        return f"{size if size == 0 else value:.3f}"
    if 1e-3 <= size < 0.1:
        return f"{value:#.3g}"
    return f"{value:.0f}" if 1000 <= size < 1e5 else f"{value:.2e}"


def show_percent(share: float, digits: int | None = None, *, sign: bool = False) -> str:
    """A share of one as a percentage, with two significant digits unless `digits` says how many
    decimals; `sign` writes the plus of a change as well.

    >>> [show_percent(x) for x in (0.254, 0.0123, 0.0045, 1e-6, 12, 0)]
    ['25 %', '1.2 %', '0.45 %', '<0.01 %', '1,200 %', '0 %']
    >>> show_percent(0.0123, 0), show_percent(0.05, 2, sign=True)
    ('1 %', '+5.00 %')
    """
    value = 100 * share
    plus = "+" if sign else ""
    if digits is not None:
        return f"{value:{plus},.{digits}f} %"
    size = abs(value)
    if size == 0 or size >= 9.95:
        return f"{value:{plus},.0f} %"
    if size < 0.01:
        return "<0.01 %" if value > 0 else ">−0.01 %"
    return f"{value:{plus}.{1 if size >= 0.995 else 2}f} %"


def show_bytes(n: float) -> str:
    """A size in powers of a thousand.

    >>> show_bytes(999), show_bytes(1234), show_bytes(4.5e9)
    ('999 bytes', '1.23 kB', '4.5 GB')
    """
    unit = "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if n < 999.5:  # what would be shown as 1000 is one of the larger unit
            break
        n, unit = n / 1000, larger
    return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.3g} {unit}"


SNAPSHOT = re.compile(r"models--(.+?)[/\\\\]snapshots[/\\\\]")
"""Where huggingface_hub keeps the files of a repository."""


def show_model(name: str) -> str:
    """A model as people call it: no path to it.

    >>> show_model("/data/models/gpt2-medium/"), show_model("openai-community/gpt2")
    ('gpt2-medium', 'openai-community/gpt2')
    >>> show_model("/cache/models--openai-community--gpt2/snapshots/607a30d7")
    'openai-community/gpt2'
    """
    if kept := SNAPSHOT.search(name):
        return kept[1].replace("--", "/")
    path = PurePath(name)
    is_path = path.is_absolute() or len(path.parts) > 2 or name.startswith((".", "~"))
    return path.name or name if is_path else name


SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def show_place(tokens: Sequence[str], position: int) -> str:
    """A token of a prompt; one that occurs more than once carries its position.

    >>> show_place(["the", "·cat", "the"], 1), show_place(["the", "·cat", "the"], 2)
    ('·cat', 'the₂')
    """
    shown = tokens[position]
    return shown + str(position).translate(SMALL) if tokens.count(shown) > 1 else shown


def show_flop(n: float) -> str:
    """12.3 TFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} EFLOP"


def show_time(seconds: float) -> str:
    """12 s, 3.4 min, 5.6 h, 7.8 days."""
    for unit, size in (("s", 60.0), ("min", 60.0), ("h", 48.0)):
        if seconds < size:
            return f"{seconds:.2g} {unit}" if seconds < 10 else f"{seconds:.0f} {unit}"
        seconds /= size if unit != "h" else 24.0
    return f"{seconds:,.0f} days"
