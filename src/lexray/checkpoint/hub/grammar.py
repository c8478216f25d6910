"""What may be the name of a repository, a revision, a file, a commit or an ETag.

All of them become parts of paths in a cache and of addresses, here and inside huggingface_hub, and
all may come from others: from an adapter's config, an index, or a server's answer. So each is held
against the Hub's own grammar before it goes anywhere.
"""

from __future__ import annotations

import re

from lexray.checkpoint.fields import brief
from lexray.errors import LexrayError

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}")
_GGUF_FILE = re.compile(rf"({_PART}/{_PART})/(.+\.gguf)")
_FILE_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json", ".git")
_REVISION = re.compile(r"\w[\w.+@#=,/-]{0,199}")
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+=-]{0,199}")
_LONGEST_PART = 200
"""Bytes of one part of a file's name: systems allow 255, and caches add endings of their own."""


def split_id(text: str) -> tuple[str, str | None]:
    """A repository's id, and the GGUF file that may stand behind it."""
    match = _GGUF_FILE.fullmatch(text)
    return (match[1], match[2]) if match else (text, None)


def looks_like_hub_id(text: str) -> bool:
    """Whether `text` has the form `name`, `org/name` or `org/name/file.gguf`."""
    repository, gguf = split_id(text)
    if gguf is not None:
        return _is_repository(repository) and is_file_name(gguf)
    return _is_repository(text) and not text.endswith(_FILE_ENDINGS)


def _is_repository(text: str) -> bool:
    return bool(_REPOSITORY.fullmatch(text)) and "--" not in text and ".." not in text


def is_file_name(text: str) -> bool:
    """Whether `text` is a path inside a repository that leads nowhere else."""
    parts = text.split("/")
    return (
        all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= _LONGEST_PART
            for part in parts)
        and not re.search(r"[\x00-\x1f\x7f\\:*?\"<>|\ud800-\udfff]", text)
    )  # fmt: skip


def is_token(text: str) -> bool:
    """Whether a server's commit id or ETag is a plain token, which may be part of a path."""
    return bool(_TOKEN.fullmatch(text)) and ".." not in text


def check_repository(text: str) -> str:
    """The id, or an error if no repository can be called that."""
    if not _is_repository(text):
        raise LexrayError(f"{brief(text)}: a Hub id looks like org/name")
    return text


def check_revision(text: str) -> str:
    """The revision, or an error if no branch, tag or commit can be called that."""
    sound = _REVISION.fullmatch(text) and not re.search(r"\.\.|//|/\.|/$|\.lock(/|$)", text)
    if not sound:
        raise LexrayError(
            f"{brief(text)} cannot be a revision; one is called main, v1.0, refs/pr/3 or 607a30d7…"
        )
    return text


def check_file(text: str, where: str) -> str:
    """The file's name, or an error if it leads out of the repository `where`."""
    if not is_file_name(text):
        raise LexrayError(f"{brief(text)} cannot be the name of a file in {where}")
    return text


def check_token(text: str, what: str, where: str) -> str:
    """A server's word for a version, or an error if it is no plain one."""
    if not is_token(text):
        raise LexrayError(
            f"{where} answers with the {what} {brief(text)}, which is no plain token and could "
            "lead out of the cache; this server is broken or hostile"
        )
    return text
