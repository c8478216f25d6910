r"""Text that came from a file, made fit to be printed.

Names of tensors and folders, fields of configs and tokens may hold anything: escape codes that
move the cursor or rename the window, characters that turn the direction of writing, halves of
surrogate pairs. Whatever is printed goes through `clean`, JSON through `clean_json`; what a
terminal has no signs for is replaced by `fitted`.
"""

from __future__ import annotations

import codecs
import json
from unicodedata import category

KEPT = "\n\t"
"""Control characters that lay out our own text."""
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of what commands, turns, hides or breaks; private signs do no harm."""
STAND_INS = {
    "↵": "\\n",
    "⇥": "\\t",
    "∅": '""',
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "…": "...",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "′": "'",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "±": "+-",
    "∞": "inf",
    "‖": "||",
    "√": "sqrt",
    "½": "1/2",
    "ᵀ": "^T",
    "⁺": "^+",
    "⁻": "^-",
    "²": "^2",
    "✓": "yes",
    "✗": "no",
}
"""What stands for a sign where there is none; box drawing and blocks are told by their range."""
HANDLER = "lexray"
"""The name of `_substituted` among Python's ways to treat what cannot be encoded."""


def clean(text: str, encoding: str | None = None) -> str:
    r"""The text with everything that does not simply print written out: `\x1b`, `\u202e`.

    Line breaks and tabs stay. `encoding`: of the terminal, see `fitted`.

    >>> clean("a\x1b[2Jb\u202ec\udcff")
    'a\\x1b[2Jb\\u202ec\\xff'
    """
    if not text.isprintable():
        text = "".join(c if _prints(c) else escape(c) for c in text)
    return fit(text, encoding)


def _prints(char: str) -> bool:
    return char.isprintable() or char in KEPT or category(char) not in UNSEEN


def escape(char: str) -> str:
    r"""`\x07`, `\u200b`; a byte that was no UTF-8 as that byte: `\xf0`."""
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean_json(text: str) -> str:
    """JSON that says the same, with what does not print as JSON's own escapes."""
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else _escape_json(line) for line in lines)


def ascii_json(text: str) -> str:
    """JSON that says the same in ASCII."""
    return text if text.isascii() else "".join(c if c.isascii() else _json_escape(c) for c in text)


def _escape_json(line: str) -> str:
    return "".join(c if _prints(c) else _json_escape(c) for c in line)


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


# ------------------------------------------------------------------ terminals that know few signs


def is_unicode(encoding: str | None) -> bool:
    """Whether an encoding has room for everything; one that is not known has."""
    return (encoding or "utf-8").lower().replace("_", "-").startswith("utf")


def fit(text: str, encoding: str | None) -> str:
    """The text with a stand-in for each sign that an encoding lacks; all others stay.

    >>> fit("·Tokyo → 日本 · raw", "ascii")
    '_Tokyo -> \\\\u65e5\\\\u672c - raw'
    """
    if text.isascii() or is_unicode(encoding):
        return text
    return text.encode(encoding or "utf-8", HANDLER).decode(encoding or "utf-8")


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    places = range(error.start, error.end)
    return "".join(_stand_in(error.object, at) for at in places), error.end


def _stand_in(text: str, at: int) -> str:
    """A space in a token is `_`, a dot between two facts a dash; unknown signs are written out."""
    sign = text[at]
    if sign == "·":
        return "-" if text[at - 1 : at + 2] == " · " else "_"
    if "─" <= sign <= "╿":
        return "-" if sign in "─━═╌╍┄┅┈┉╴╶╸╺" else "|" if sign in "│┃║╎╏┆┇┊┋" else "+"
    if "▀" <= sign <= "▟":
        return "#"
    return STAND_INS.get(sign) or escape(sign)


codecs.register_error(HANDLER, _substitute)
