"""GGUF files that are not what they say: refused in words, whatever is wrong with them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from tests.checkpoint.gguf.images import image, opened, tensor, text, u32, u64

BIG = 2**64 - 1
HOSTILE = {
    "empty": (b"", "empty"),
    "magic": (b"GGML" + bytes(100), "no GGUF file"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
    "short": (b"GGUF\3\0", "truncated"),
    "version 1": (image(version=1), "version 1"),
    "version 9": (image(version=9), "version 9"),
    "big-endian": (image(version=3 << 24), "big-endian"),
    "key count": (image(n_keys=BIG), f"{BIG} keys"),
    "tensor count": (image(n_tensors=BIG), f"{BIG} tensors"),
    "name length": (image(keys=(u64(BIG),), data=256), "a name of"),
    "string length": (image(keys=(text("s") + u32(8) + u64(BIG),)), "should follow"),
    "string count": (
        image(keys=(text("s") + u32(9) + u32(8) + u64(BIG),)),
        "strings should follow",
    ),
    "string in array": (
        image(keys=(text("s") + u32(9) + u32(8) + u64(2) + u64(BIG, 0),)),
        "strings of 's'",
    ),
    "number count": (image(keys=(text("s") + u32(9) + u32(12) + u64(BIG),)), "should follow"),
    "nested arrays": (image(keys=(text("s") + u32(9) + u32(9) + u64(1),)), "array of arrays"),
    "array type": (image(keys=(text("s") + u32(9) + u32(77) + u64(1),)), "unknown type 77"),
    "value type": (image(keys=(text("s") + u32(13),)), "unknown type 13"),
    "same key": (image(keys=(text("s") + u32(0) + b"a",) * 2), "'s' occurs twice"),
    "key text": (image(keys=(u64(1) + b"\xff" + u32(0) + b"a",)), "not UTF-8"),
    "alignment": (image(keys=(text("general.alignment") + u32(4) + u32(12),)), "power of two"),
    "no alignment": (image(keys=(text("general.alignment") + u32(4) + u32(0),)), "power of two"),
    "text alignment": (
        image(keys=(text("general.alignment") + u32(8) + text("32"),)),
        "whole number",
    ),
    "array alignment": (
        image(keys=(text("general.alignment") + u32(9) + u32(4) + u64(2) + u64(32),)),
        "whole number",
    ),
    "huge alignment": (
        image(tensor("w", 4), keys=(text("general.alignment") + u32(10) + u64(2**63),)),
        "w should end at byte",
    ),
    "same tensor": (image(tensor("w", 4), tensor("w", 4, offset=32)), "'w' occurs twice"),
    "overlap": (image(tensor("w", 16), tensor("v", 4, offset=32)), "w overlaps v"),
    "same place": (image(tensor("w", 4), tensor("v", 4)), "v overlaps w"),
    "far": (image(tensor("w", 4, offset=2**40)), "w should end at byte"),
    "overflow": (image(tensor("w", 4, offset=2**64 - 32)), "w should end at byte"),
    "misaligned": (image(tensor("w", 4, offset=8)), "multiple of 32"),
    "too big": (image(tensor("w", 17)), "w should end at byte"),
    "product": (image(tensor("w", 2**32, 2**32, 2**32)), "w should end at byte"),
    "no values": (image(tensor("w", 0, 2**63)), "has shape"),
    "part of a block": (image(tensor("w", 20, kind=8)), "has shape"),
    "axes": (image(tensor("w", 1, axes=5)), "5 axes"),
    "many axes": (image(tensor("w", 1, axes=2**32 - 1)), "axes"),
    "type": (image(tensor("w", 4, kind=4)), "w has the unknown tensor type 4;"),
    "huge type": (
        image(tensor("w", 4, kind=2**32 - 1)),
        "w has the unknown tensor type 4294967295",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LexrayError, match=message) as caught:
            GGUFCheckpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_too_many_names_and_strings(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    starts = {
        "keys": image(n_keys=10**7),
        "tensors": image(n_tensors=10**7),
        "strings": image(keys=(text("s") + u32(9) + u32(8) + u64(10**8),)),
    }
    for what, start in starts.items():
        path.write_bytes(start)
        with path.open("r+b") as file:
            file.truncate(2**30)  # sparse: the counts could be true
        with pytest.raises(LexrayError, match=rf"\d+ {what} should follow"):
            GGUFCheckpoint(path)


def test_types_that_nobody_can_decode(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q8_K
    checkpoint = opened(tmp_path / "m.gguf", image(tensor("w", 256, kind=kind), data=512))
    assert checkpoint.info("w").shape == (256,)
    before = checkpoint.bytes_read
    with pytest.raises(LexrayError, match=r"m\.gguf: w is stored as Q8_K"):
        checkpoint.read("w")
    assert checkpoint.bytes_read == before


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="cannot be read"):
        GGUFCheckpoint(tmp_path / "absent.gguf")
    with pytest.raises(LexrayError, match="cannot be read"):
        GGUFCheckpoint(tmp_path)


@pytest.mark.slow
def test_truncated_anywhere(valid: Path, tmp_path: Path) -> None:
    content = valid.read_bytes()
    last = GGUFCheckpoint(valid).info("b").stop
    for length in range(last):
        with pytest.raises(LexrayError, match=r"bad\.gguf"):
            opened(tmp_path / "bad.gguf", content[:length])
    assert "b" in opened(tmp_path / "bad.gguf", content[:last]).names()


def read_everything(path: Path) -> None:
    """Opens a file and asks for all it has; only a LexrayError may come of it."""
    size = path.stat().st_size
    try:
        checkpoint = GGUFCheckpoint(path)
    except LexrayError:
        return
    for key in checkpoint.metadata:
        value = checkpoint.metadata[key]
        assert not hasattr(value, "__len__") or len(list(value)) <= size
    for name in checkpoint.names():
        try:
            assert checkpoint.read(name).numel() <= 8 * size
        except LexrayError:
            continue


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "fuzz.gguf"


@settings(max_examples=150)
@given(st.binary(max_size=300), st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0", image()[:24]]))
def test_random_bytes(scratch: Path, content: bytes, start: bytes) -> None:
    scratch.write_bytes(start + content)
    read_everything(scratch)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    flips=st.lists(st.tuples(st.integers(0, 450), st.integers(0, 255)), min_size=1, max_size=4),
    kept=st.one_of(st.none(), st.integers(0, 1000)),
)
def test_mutated_file(
    valid: Path, scratch: Path, flips: list[tuple[int, int]], kept: int | None
) -> None:
    content = bytearray(valid.read_bytes())
    for place, byte in flips:
        content[place] = byte
    scratch.write_bytes(content[:kept])
    read_everything(scratch)
