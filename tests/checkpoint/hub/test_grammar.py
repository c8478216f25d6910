"""Names from strangers: what the Hub's grammar allows passes, what leads elsewhere does not."""

from __future__ import annotations

import pytest

from lexray.checkpoint.hub.grammar import (
    check_repository,
    check_revision,
    is_file_name,
    is_token,
)
from lexray.errors import LexrayError

ESCAPES = ["..", "../x", "a/../b", "/x", "a//b", "a/./b", "a\\b", "", "a\n", "a\0b", "x" * 5000]


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/3", "6" * 40, "fix#12", "größe"])
def test_revisions(revision: str) -> None:
    assert check_revision(revision) == revision


@pytest.mark.parametrize(
    "revision", [*ESCAPES, "refs/heads/../x", "a/", ".hidden", "a.lock", "a b"]
)
def test_what_is_no_revision(revision: str) -> None:
    with pytest.raises(LexrayError, match="cannot be a revision") as found:
        check_revision(revision)
    assert len(str(found.value)) < 300


@pytest.mark.parametrize("name", ["config.json", "a/b/model-00001-of-00002.safetensors", "ä ö.txt"])
def test_files(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize("name", [*ESCAPES, "a/", "C:x", "a\x1b[31m", "a/..", "\ud800"])
def test_what_is_no_file(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("token", ["abc123", "6" * 64, "cdn-607a30d7", "686897696a7c876b7e-2"])
def test_tokens(token: str) -> None:
    assert is_token(token)


@pytest.mark.parametrize("token", [*ESCAPES, ".", "a/b", "a b", "é"])
def test_what_is_no_token(token: str) -> None:
    assert not is_token(token)


@pytest.mark.parametrize("name", [*ESCAPES, "a/b/c", "a--b", "-a", "a.", "a b"])
def test_what_is_no_repository(name: str) -> None:
    with pytest.raises(LexrayError, match="a Hub id looks like org/name"):
        check_repository(name)
