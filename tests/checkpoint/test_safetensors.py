"""The safetensors reader against the format's own library, and against hostile files."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lexray.checkpoint import safetensors
from lexray.checkpoint.base import Box, runs
from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.plain import MOST_VALUES
from lexray.checkpoint.safetensors import DTYPES, SafetensorsFile, SafetensorsFolder, parse_header
from lexray.errors import LexrayError

quick = settings(max_examples=100)


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), start: Any = 0, stop: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@st.composite
def shapes_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    box = []
    for size in shape:
        start = draw(st.integers(0, size))
        box.append((start, draw(st.integers(start, size))))
    return shape, tuple(box)


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bit pattern at all, except that a bool is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    count = prod(shape) * dtype.itemsize
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=generator)
    return data.to(torch.uint8).view(dtype).view(shape)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(-1).view(torch.uint8)

    return one.shape == other.shape and one.dtype == other.dtype and raw(one).equal(raw(other))


@given(shapes_and_boxes(), st.sampled_from([1, 2, 4, 8]))
def test_runs_are_the_bytes_of_the_box(case: tuple[tuple[int, ...], Box], itemsize: int) -> None:
    shape, box = case
    data = np.arange(prod(shape) * itemsize).reshape(*shape, itemsize)
    inside = data[tuple(slice(*bounds) for bounds in box)].ravel()
    found = list(runs(shape, itemsize, box))
    read = np.concatenate([np.arange(at, at + n) for at, n in found] or [np.arange(0)])
    assert read.tolist() == inside.tolist()
    assert all(n > 0 for _, n in found)


@quick
@given(
    case=shapes_and_boxes(), dtype=st.sampled_from(list(DTYPES.values())), seed=st.integers(0, 9)
)
def test_any_box_of_any_dtype_equals_the_library(
    tmp_path: Path, case: tuple[tuple[int, ...], Box], dtype: torch.dtype, seed: int
) -> None:
    shape, box = case
    path = tmp_path / "model.safetensors"
    save_file({"w": random_bytes(shape, dtype, seed), "other": torch.ones(3)}, path)
    checkpoint = SafetensorsFolder(tmp_path, [path])
    theirs = load_file(path)["w"]
    part = [slice(*bounds) for bounds in box]
    assert same_bytes(checkpoint.read_unchecked("w"), theirs)
    before = checkpoint.bytes_read
    ours = checkpoint.read_unchecked("w", *part)
    assert same_bytes(ours, theirs[tuple(part)] if part else theirs)
    assert ours.is_contiguous()
    assert checkpoint.bytes_read - before == ours.numel() * dtype.itemsize
    assert checkpoint.cost("w", *part) == ours.numel() * dtype.itemsize
    assert checkpoint.info("w").shape == shape
    assert checkpoint.info("w").dtype == dtype


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 3, 4)])
def test_misaligned_data(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    data = tensor.numpy().tobytes()
    header = {"pad": entry("U8", (1,), 0, 1), "w": entry("F32", shape, 1, 1 + len(data))}
    for spaces in range(4):
        text = json.dumps(header).encode() + b" " * spaces
        path = raw_file(tmp_path / "model.safetensors", text, b"x" + data)
        checkpoint = SafetensorsFolder(tmp_path, [path])
        assert checkpoint.read("w").equal(tensor)
        if shape:
            assert checkpoint.read("w", slice(1, 2)).equal(tensor[1:2])


def test_a_read_is_a_copy(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsFolder(tmp_path, [tmp_path / "model.safetensors"])
    checkpoint.read("w").fill_(1)
    assert checkpoint.read("w").equal(torch.zeros(4))


def test_a_large_tensor_stays_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(12.0).view(3, 4), "v": torch.zeros(2)}, path)
    monkeypatch.setattr(safetensors, "MAPPED_FROM", 48)
    checkpoint = SafetensorsFolder(tmp_path, [path])
    whole = checkpoint.read("w")
    assert whole.equal(torch.arange(12.0).view(3, 4))
    assert whole.data_ptr() == checkpoint.read("w").data_ptr()
    whole[0] = 7  # in memory alone: the file keeps what it has
    assert load_file(path)["w"].equal(torch.arange(12.0).view(3, 4))
    checkpoint.read("v").fill_(1)
    assert checkpoint.read("v").equal(torch.zeros(2))


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b"{", "corrupt"),
        (b"[]", "not a JSON object"),
        (b'{"a": {"dtype"', "corrupt"),
        (b"[" * 100_000, "corrupt"),
        (b"\xff\xfe{}", "corrupt"),
        (b'{"a": 1, "a": 2}', "twice"),
        ({"a": 1}, "entry of 'a'"),
        ({"a": entry(shape=[-1], stop=-4)}, "entry of 'a'"),
        ({"a": entry(shape=[2.0])}, "entry of 'a'"),
        ({"a": entry(shape=[True], stop=4)}, "entry of 'a'"),
        ({"a": entry(shape="2")}, "entry of 'a'"),
        ({"a": entry("F7")}, "unknown dtype 'F7'"),
        ({"a": entry(shape=[100], stop=400)}, "truncated"),
        ({"a": entry(stop=10**30)}, "truncated"),
        ({"a": entry(start=8, stop=0)}, "cannot fill"),
        ({"a": entry(shape=[3])}, "cannot fill"),
        ({"a": entry(shape=[0, 2**63], stop=0)}, "cannot fill"),
        ({"a": entry(shape=[0, 2**40, 2**40], stop=0)}, "cannot fill"),
        ({"a": entry("U8", [1] * 65, stop=1)}, "cannot fill"),
        ({"a": entry(), "b": entry(start=4, stop=12)}, "overlaps"),
        ({"a": entry(), "b": entry()}, "overlaps"),
    ],
)
def test_bad_headers_are_named(tmp_path: Path, header: Any, complaint: str) -> None:
    path = raw_file(tmp_path / "bad.safetensors", header, bytes(16))
    with pytest.raises(LexrayError, match=complaint) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"abc", bytes(7), struct.pack("<Q", 2**63) + b"{}"])
def test_files_too_short_for_their_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(LexrayError, match=r"model\.safetensors is"):
        SafetensorsFile(path)


def test_git_lfs_pointers_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    with pytest.raises(LexrayError, match="git lfs pull"):
        SafetensorsFile(path)


def test_a_file_that_shrinks_or_vanishes_after_opening(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for harm in (lambda: path.write_bytes(path.read_bytes()[:-4]), path.unlink):
        save_file({"w": torch.zeros(4)}, path)
        checkpoint = SafetensorsFolder(tmp_path, [path])
        harm()
        with pytest.raises(LexrayError, match=r"shorter|any more"):
            checkpoint.read("w")


def test_huge_shapes_are_refused_without_multiplying(tmp_path: Path) -> None:
    digits = [10**4000] * 300
    with pytest.raises(LexrayError):
        SafetensorsFile(raw_file(tmp_path / "a.safetensors", {"a": entry(shape=digits)}))


def opens_or_refuses(path: Path) -> None:
    """Reads everything in a file, or raises LexrayError; allocates about as much as there is."""
    size, complaint = path.stat().st_size, None
    tracemalloc.start()
    try:
        checkpoint = SafetensorsFolder(path.parent, [path])
        for name in checkpoint.names():
            tensor = checkpoint.read(name)
            assert tensor.numel() * tensor.itemsize <= size
    except LexrayError as error:
        complaint = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert complaint is None or str(path) in complaint
    assert peak < 2_000_000 + 100 * size


@pytest.mark.slow
@quick
@given(content=st.binary(max_size=200))
def test_fuzz_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    opens_or_refuses(path)
    raw_file(path, content, bytes(8))
    opens_or_refuses(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
sizes = st.integers(-2, 40) | st.sampled_from([2**31, 2**63 - 1, 2**64, 10**30])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F9"]) | json_values,
        "shape": st.lists(sizes, max_size=4) | json_values,
        "data_offsets": st.lists(sizes, min_size=2, max_size=2) | json_values,
    }
)


@pytest.mark.slow
@quick
@given(header=st.dictionaries(st.text(max_size=4), entries | json_values, max_size=4) | json_values)
def test_fuzz_any_json(tmp_path: Path, header: Any) -> None:
    opens_or_refuses(raw_file(tmp_path / "model.safetensors", header, bytes(64)))


@pytest.mark.slow
@quick
@given(data=st.data())
def test_fuzz_damaged_files(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 2), "b": torch.zeros(5, dtype=torch.bfloat16)}, path)
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    opens_or_refuses(path)


def test_a_large_sharded_checkpoint_opens_at_once(tmp_path: Path) -> None:
    """Ten sparse gigabytes: the time and memory of opening are those of the headers."""
    shards, rows = 10, 2**16
    where = {}
    for shard in range(shards):
        filename = f"model-{shard:05}-of-{shards:05}.safetensors"
        span = rows * 4096 * 2
        names = [f"layers.{shard}.{i}.weight" for i in range(2)]
        header = {
            name: entry("BF16", [rows, 4096], i * span, (i + 1) * span)
            for i, name in enumerate(names)
        }
        path = raw_file(tmp_path / filename, header)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + 2 * span)
        where |= dict.fromkeys(names, filename)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (tmp_path / "config.json").write_text("{}")
    tracemalloc.start()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.info("layers.9.1.weight").shape == (rows, 4096)
    assert checkpoint.read("layers.9.1.weight", slice(rows - 1, rows)).shape == (1, 4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) > 10**10
    assert peak < 5_000_000
    assert checkpoint.bytes_read < 1_000_000


def test_missing_tensors_come_with_near_names(tmp_path: Path) -> None:
    save_file({"wte.weight": torch.zeros(4)}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsFolder(tmp_path, [tmp_path / "model.safetensors"])
    with pytest.raises(LexrayError, match=r"nearest: wte\.weight"):
        checkpoint.read("wte.weigth")
    with pytest.raises(LexrayError, match="cannot read 2:9"):
        checkpoint.read("wte.weight", slice(2, 9))


def test_parse_header_counts_offsets_from_the_files_start() -> None:
    raw = json.dumps({"a": entry(), "__metadata__": {"format": "pt"}}).encode()
    found = parse_header(raw, 8 + len(raw) + 8, "here")
    assert (found["a"].start, found["a"].stop) == (8 + len(raw), 16 + len(raw))


def test_a_file_that_shrinks_while_it_is_mapped(tmp_path: Path) -> None:
    """Reading a mapped file behind its end would kill the process."""
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(1 << 16)}, path)
    checkpoint = SafetensorsFolder(tmp_path, [path])
    assert checkpoint.read("b").sum() == 1 << 16
    os.truncate(path, 4096)
    with pytest.raises(LexrayError, match=r"has become shorter .*now 4096"):
        checkpoint.read("b")


@pytest.mark.parametrize("piece", [b"[],", b'{"a":0},'])
def test_headers_of_endless_lists(tmp_path: Path, piece: bytes) -> None:
    """30 MB that Python would make a gigabyte of: the values are counted before."""
    inner = b'{"__metadata__": {"a": [' + piece * (MOST_VALUES // 2 + 1) + b"0]}}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(inner)) + inner)
    with pytest.raises(LexrayError, match="values, many times what such files have"):
        SafetensorsFile(path)


@pytest.mark.slow
def test_a_header_of_many_tensors(tmp_path: Path) -> None:
    """As a large mixture of experts has them, with long names; benchmarks/opening.py has 10⁵."""
    names = [f"model.layers.{i % 100}.mlp.experts.{i}.down_proj.weight" for i in range(20_000)]
    header = {name: entry("F32", [1], 4 * i, 4 * i + 4) for i, name in enumerate(names)}
    path = raw_file(tmp_path / "model.safetensors", header)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 4 * len(names))
    assert len(SafetensorsFile(path).entries) == 20_000
