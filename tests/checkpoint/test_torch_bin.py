"""`pytorch_model.bin`: what torch.save writes is read, what runs code or is broken is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.checkpoint import pickles
from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.torch_bin import TorchBinFile, TorchBinFolder
from lexray.errors import LexrayError

WEIGHTS = OrderedDict(
    a=torch.randn(6, 4),
    half=torch.randn(3, 5).half(),
    bf16=torch.randn(7).bfloat16(),
    transposed=torch.randn(4, 6).T,
    part=torch.randn(10, 10)[2:5, 3:],
    parameter=torch.nn.Parameter(torch.randn(2, 2)),
    scalar=torch.tensor(3.0),
    empty=torch.empty(0, 4),
    flags=torch.tensor([True, False]),
    ids=torch.arange(5),
)


def folder_with(tmp_path: Path, content: Any, **how: Any) -> TorchBinFolder:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path, **how)
    return TorchBinFolder(tmp_path, [path])


@pytest.mark.parametrize("zipped", [True, False])
def test_every_tensor_and_slice(tmp_path: Path, zipped: bool) -> None:
    checkpoint = folder_with(tmp_path, WEIGHTS, _use_new_zipfile_serialization=zipped)
    assert set(checkpoint.names()) == set(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert checkpoint.info(name).shape == tuple(tensor.shape)
        assert checkpoint.info(name).dtype == tensor.dtype
        assert checkpoint.read(name).equal(tensor)
        if tensor.ndim == 2 and len(tensor):
            before = checkpoint.bytes_read
            part = checkpoint.read(name, slice(0, 2), slice(1, 2))
            assert part.equal(tensor[0:2, 1:2])
            assert part.is_contiguous()
            assert checkpoint.bytes_read - before == part.numel() * part.itemsize


def test_new_dtypes(tmp_path: Path) -> None:
    checkpoint = folder_with(tmp_path, {"u": torch.arange(3).to(torch.uint16)})
    assert checkpoint.read("u").tolist() == [0, 1, 2]


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_nested_weights_and_other_entries(tmp_path: Path, key: str) -> None:
    content = {key: {"a": torch.ones(2), "step": 3, 7: torch.ones(1)}, "epoch": 4, "lr": [0.1]}
    assert list(folder_with(tmp_path, content).names()) == ["a"]


def test_tied_tensors_keep_both_names(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    checkpoint = folder_with(tmp_path, {"wte": shared, "lm_head": shared})
    assert checkpoint.read("wte").equal(checkpoint.read("lm_head"))


def test_slices_are_mapped_and_copied(tmp_path: Path) -> None:
    checkpoint = folder_with(tmp_path, {"w": torch.zeros(1000, 1000)})
    row = checkpoint.read("w", slice(3, 4))
    assert row.untyped_storage().nbytes() == 4000
    row.fill_(1)
    assert checkpoint.read("w").count_nonzero() == 0
    assert checkpoint.bytes_read < 4_100_000


class Evil:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_refused_by_name(tmp_path: Path, zipped: bool) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(LexrayError, match=r"pytorch_model\.bin asks to run code .*posix\.mkdir"):
        folder_with(
            tmp_path, {"a": torch.ones(1), "x": Evil(mark)}, _use_new_zipfile_serialization=zipped
        )
    assert not mark.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bare_pickles_with_code_are_refused(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Evil(tmp_path / "ran"), protocol=protocol))
    with pytest.raises(LexrayError, match=r"posix\.mkdir"):
        TorchBinFile(path)
    assert not (tmp_path / "ran").exists()


def test_whole_modules_and_memory_bombs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match=r"torch\.nn\.modules\.linear\.Linear"):
        folder_with(tmp_path, torch.nn.Linear(2, 2))
    with pytest.raises(LexrayError, match="bytearray"):
        folder_with(tmp_path, {"a": torch.ones(1), "b": bytearray(3)})


def test_torchs_list_of_safe_globals_does_not_widen_ours(tmp_path: Path) -> None:
    with (
        torch.serialization.safe_globals([Evil]),
        pytest.raises(LexrayError, match=r"posix\.mkdir"),
    ):
        folder_with(tmp_path, Evil(tmp_path / "ran"))


def zipped(weights: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (zipped(WEIGHTS)[:-10], "truncated"),
        (zipped(WEIGHTS)[:1000], "truncated"),
        (b"", "truncated or no torch file"),
        (b"hello", "truncated or no torch file"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (pickle.dumps({"a": 1}), "truncated or no torch file"),
        (zipped([1, 2]), "no named tensors"),
        (zipped({"a": torch.ones(1).expand(10**6)}), "claims more bytes"),
        (zipped({"a": torch.ones(2, device="meta")}), r"asks to run code|no plain tensor"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(LexrayError, match=complaint) as caught:
        open_checkpoint(tmp_path)
    assert str(path) in str(caught.value)


def test_zips_of_others_and_compressed_pickles(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(LexrayError, match=r"not one of torch\.save"):
        TorchBinFile(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02]" + b"N" * 10**6 + b".")
    with pytest.raises(LexrayError, match="compressed pickle"):
        TorchBinFile(path)


def test_a_dict_inside_itself(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"a": torch.ones(1)}
    loop["model"] = loop
    assert list(folder_with(tmp_path, loop).names()) == ["a"]


@settings(max_examples=60)
@given(data=st.data(), legacy=st.booleans())
def test_fuzz_damaged_files(tmp_path: Path, data: st.DataObject, legacy: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    weights = {"a": torch.ones(3, 2), "b": torch.zeros(5)}
    torch.save(weights, path, _use_new_zipfile_serialization=not legacy)
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    complaint = None
    try:
        checkpoint = TorchBinFolder(tmp_path, [path])
        for name in checkpoint.names():
            assert checkpoint.read(name).numel() < 1000
    except LexrayError as error:
        complaint = str(error)
    assert complaint is None or str(path) in complaint


def sharded(folder: Path) -> dict[str, str]:
    where = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for name, shard in where.items():
        torch.save({name: torch.full((2,), float(ord(name)))}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    return where


def test_shards_open_when_asked(tmp_path: Path) -> None:
    shards = sharded(tmp_path)
    (tmp_path / shards["b"]).write_bytes(b"broken")
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.names()) == ["a", "b"]
    assert checkpoint.bytes_read == 0
    assert checkpoint.read("a").tolist() == [97.0, 97.0]
    with pytest.raises(LexrayError, match=shards["b"]):
        checkpoint.info("b")


def test_an_index_that_names_an_absent_tensor(tmp_path: Path) -> None:
    where = sharded(tmp_path) | {"c": "pytorch_model-00001-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(LexrayError, match="'c' is in pytorch_model-00001"):
        checkpoint.read("c")
    with pytest.raises(LexrayError, match="no tensor 'd'"):
        checkpoint.read("d")


def test_config_and_assets_lie_beside(tmp_path: Path) -> None:
    checkpoint = folder_with(tmp_path, WEIGHTS)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert checkpoint.config == {"model_type": "gpt2"}
    assert checkpoint.asset("tokenizer.json") is None
    assert checkpoint.asset("config.json") == tmp_path / "config.json"


class Claim:
    """Pickles as a tensor of any offset, size and strides over a storage of two numbers."""

    def __init__(self, *claim: Any) -> None:
        self.claim = claim

    def __reduce__(self) -> Any:
        storage = torch.ones(2)._typed_storage()
        return torch._utils._rebuild_tensor_v2, (storage, *self.claim, False, OrderedDict())


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "claim",
    [
        (0, (10**9,), (1,)),
        (10**6, (1,), (1,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
        (0, (-2,), (1,)),
        (0, (10**5, 10**5), (0, 0)),
        (0, (2**62, 2**62), (0, 0)),
        (0, (2,), (2**62,)),
    ],
)
def test_tensors_beyond_their_storage(tmp_path: Path, claim: Any, legacy: bool) -> None:
    with pytest.raises(LexrayError, match=r"pytorch_model\.bin"):
        folder_with(tmp_path, {"a": Claim(*claim)}, _use_new_zipfile_serialization=not legacy)


def rewritten(path: Path, change: Any) -> None:
    """The zip of torch.save with each record as `change` gives it: (content, compression)."""
    with zipfile.ZipFile(path) as archive:
        records = {i.filename: archive.read(i) for i in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, *change(name, content))


@pytest.mark.slow
@pytest.mark.parametrize("record", ["byteorder", "version", ".format_version", "data/0"])
def test_records_that_unpack_to_gigabytes(tmp_path: Path, record: str) -> None:
    """64 MB of zeros in 64 kB: refused by their stated size, before anything is unpacked."""
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(4)}, path)

    def change(name: str, content: bytes) -> tuple[bytes, int]:
        if name.endswith(f"/{record}"):
            return b"\0" * (1 << 26), zipfile.ZIP_DEFLATED
        return content, zipfile.ZIP_STORED

    rewritten(path, change)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(LexrayError, match="compressed record"):
        TorchBinFile(path)


def test_long_side_records(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(4)}, path)
    rewritten(path, lambda n, c: (b"3\n" * (1 << 17) if n.endswith("/version") else c,))
    with pytest.raises(LexrayError, match="side records larger"):
        TorchBinFile(path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "opcodes",
    {
        "tuples": b"\x80\x02)" + b"\x85" * 20_000 + b".",
        "lists": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
        "memo": b"\x80\x02]" + b"q\x00]h\x00a" * 20_000 + b".",
        "key": b"\x80\x02}q\x00)" + b"\x85" * 20_000 + b"K\x01s.",
        "marks": b"\x80\x02" + b"(" * 20_000 + b"t" * 20_000 + b".",
        "length": b"\x80\x02" + b"N0" * 20_000 + b".",
    }.values(),
    ids=["tuples", "lists", "memo", "key", "marks", "length"],
)
def test_pickles_of_endless_depth_or_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opcodes: bytes, zipped: bool
) -> None:
    """Hashing the key, for one, would overflow the stack and kill the process."""
    monkeypatch.setattr(pickles, "MOST_OPCODES", 30_000)
    path = tmp_path / "pytorch_model.bin"
    if not zipped:
        path.write_bytes(opcodes)
    else:
        torch.save({"a": torch.ones(4)}, path)
        rewritten(path, lambda n, c: (opcodes if n.endswith(".pkl") else c,))
    with pytest.raises(LexrayError, match="longer or deeper nested than weights can be"):
        TorchBinFile(path)


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    """Reading a mapped file behind its end would kill the process."""
    checkpoint = folder_with(tmp_path, {"a": torch.ones(1 << 16)})
    assert checkpoint.read("a").sum() == 1 << 16
    os.truncate(tmp_path / "pytorch_model.bin", 4096)
    with pytest.raises(LexrayError, match="has become shorter"):
        checkpoint.read("a")
