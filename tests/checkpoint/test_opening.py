"""From a folder, a file or a Hub id to a checkpoint, and what is said when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.hub import remote
from lexray.checkpoint.hub import repository as hub
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.safetensors import SafetensorsFolder
from lexray.checkpoint.torch_bin import TorchBinFolder
from lexray.errors import LexrayError
from tests.checkpoint.test_lora import adapted

pytestmark = pytest.mark.filterwarnings("ignore")
W = {"w": torch.arange(3.0)}
SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Path:
        raise LexrayError(f"asked the Hub for {args[0]}")

    monkeypatch.setattr(hub, "fetch_folder", fail)


def sharded(folder: Path, where: Any = SHARDS) -> Path:
    for name, shard in SHARDS.items():
        save_file({name: torch.full((2,), float(ord(name)))}, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


def test_the_better_format_wins(tmp_path: Path) -> None:
    torch.save(W, tmp_path / "pytorch_model.bin")
    assert isinstance(open_checkpoint(tmp_path), TorchBinFolder)
    sharded(tmp_path)
    assert set(open_checkpoint(tmp_path).names()) == {"a", "b"}
    save_file(W, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    assert set(checkpoint.names()) == {"w"}
    assert checkpoint.name == str(tmp_path)
    assert checkpoint.revision is None


def test_shards(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    for source in (tmp_path, index, tmp_path / SHARDS["b"]):
        checkpoint = open_checkpoint(source)
        assert checkpoint.read("a").tolist() == [97.0, 97.0]
        assert checkpoint.read("b").tolist() == [98.0, 98.0]


def test_links_are_followed_as_in_the_hubs_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    snapshot.mkdir()
    sharded(blobs)
    for number, path in enumerate(sorted(blobs.iterdir())):
        blob = path.rename(blobs / f"hash{number}")
        (snapshot / path.name).symlink_to(blob)
    assert open_checkpoint(snapshot).read("b").tolist() == [98.0, 98.0]
    (blobs / "hash0").unlink()
    with pytest.raises(LexrayError, match=SHARDS["a"]):
        open_checkpoint(snapshot)


def test_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(LexrayError, match=r"model\.safetensors cannot be read: No such file"):
        open_checkpoint(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    save_file(W, tmp_path / "model.safetensors")
    with pytest.raises(LexrayError, match=r"has no config\.json; download it too"):
        _ = open_checkpoint(tmp_path).config


@pytest.mark.parametrize("name", ["odd.safetensors", "weights.bin", "x.pt", "y.pth"])
def test_files_themselves(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (save_file if name.endswith("safetensors") else torch.save)(W, tmp_path / name)
    checkpoint = open_checkpoint(tmp_path / name)
    assert checkpoint.read("w").equal(W["w"])
    assert checkpoint.config == {"model_type": "gpt2"}


def test_the_only_safetensors_file_of_a_folder(tmp_path: Path) -> None:
    save_file(W, tmp_path / "odd.safetensors")
    assert open_checkpoint(tmp_path).read("w").equal(W["w"])
    save_file(W, tmp_path / "odder.safetensors")
    with pytest.raises(LexrayError, match=r"several files .*odd\.safetensors, odder.*index\.json"):
        open_checkpoint(tmp_path)


def test_gguf_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def stand_in(path: Path) -> Checkpoint:
        opened.append(path)
        return SafetensorsFolder(tmp_path, [])

    monkeypatch.setattr("lexray.checkpoint.opening.GGUFCheckpoint", stand_in)
    (tmp_path / "m.gguf").touch()
    open_checkpoint(tmp_path)
    open_checkpoint(tmp_path / "m.gguf")
    assert opened == [tmp_path / "m.gguf"] * 2
    (tmp_path / "n.gguf").touch()
    with pytest.raises(LexrayError, match=r"2 GGUF models \(m\.gguf, n\.gguf\); give the path"):
        open_checkpoint(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "mmproj-m.gguf").touch()
    with pytest.raises(LexrayError, match=r"belong to a model and are none \(mmproj-m\.gguf\)"):
        open_checkpoint(tmp_path)
    for part in (1, 2):
        (tmp_path / f"m-{part:05}-of-00002.gguf").touch()
    open_checkpoint(tmp_path)
    assert opened[-1].name == "m-00001-of-00002.gguf"


def test_broken_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"no")
    with pytest.raises(LexrayError, match=r"m\.gguf"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "source",
    [Path("gone"), Path("org/name"), "./gone", "/no/such", "a/b/c", "a b", "x\0", "x" * 999],
)
def test_what_is_nowhere(source: Any) -> None:
    with pytest.raises(LexrayError, match="does not exist, and is no Hub id"):
        open_checkpoint(source)


@pytest.mark.parametrize("source", ["gpt2", "org/name"])
def test_hub_ids(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LexrayError, match=f"asked the Hub for {source}"):
        open_checkpoint(source)
    folder = tmp_path / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    save_file(W, folder / "model.safetensors")
    asked: dict[str, Any] = {}

    def fetch(repo_id: str, **options: Any) -> Path:
        asked.update(options, repo_id=repo_id)
        return folder

    monkeypatch.setattr(hub, "fetch_folder", fetch)
    checkpoint = open_checkpoint(source, revision="v1", token="secret")
    assert asked == {"repo_id": source, "revision": "v1", "token": "secret"}
    assert (checkpoint.name, checkpoint.revision) == (source, "c0ffee")


def test_what_exists_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    save_file(W, "gpt2/model.safetensors")
    for anywhere in (False, True):
        assert open_checkpoint("gpt2", remote=anywhere).name == "gpt2"


def test_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    opened = object.__new__(remote.RemoteCheckpoint)
    monkeypatch.setattr(remote.RemoteCheckpoint, "open", lambda *args: asked.append(args) or opened)
    monkeypatch.setattr(remote.RemoteCheckpoint, "config", {})
    monkeypatch.setattr(remote.RemoteCheckpoint, "asset", lambda *args: None)
    assert open_checkpoint("org/name", revision="v1", token="t", remote=True) is opened
    assert asked == [("org/name", "v1", "t")]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], "no weights, only: nothing"),
        (
            ["config.json", "README.md"],
            r"no weights, only: README\.md, config\.json\. lexray opens",
        ),
        ([f"{n:02}.txt" for n in range(12)], r"08\.txt, 09\.txt, …"),
        (
            ["tf_model.h5", "flax_model.msgpack"],
            r"flax_model\.msgpack \(Flax\).*tf_model\.h5 \(Ten",
        ),
        (["model.onnx", "config.json"], r"model\.onnx \(ONNX\); convert"),
        (["consolidated.00.pth", "params.json"], "Meta's original release"),
    ],
)
def test_folders_without_weights(tmp_path: Path, files: list[str], complaint: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(LexrayError, match=complaint) as caught:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_files_of_no_known_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LexrayError, match=r"notes\.txt is no file of weights"):
        open_checkpoint(tmp_path / "notes.txt")


def test_missing_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / SHARDS["b"]).unlink()
    with pytest.raises(LexrayError, match=f"lacks 1 of the 2 shards .*: {SHARDS['b']}; download"):
        open_checkpoint(tmp_path)


def test_truncated_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    path = tmp_path / SHARDS["b"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LexrayError, match=f"{SHARDS['b']} is truncated"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_an_absent_tensor(tmp_path: Path) -> None:
    sharded(tmp_path, SHARDS | {"c": SHARDS["a"]})
    with pytest.raises(LexrayError, match=f"'c' is in {SHARDS['a']}, which does not have it"):
        open_checkpoint(tmp_path)


def test_the_index_decides_between_copies(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, tmp_path / SHARDS["b"])
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("a").tolist() == [97.0, 97.0]
    assert checkpoint.read("b").tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/passwd", "..", "", "a\\b", "C:x", "a/b", "\0"]
)
@pytest.mark.parametrize("stem", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_cannot_lead_outside(tmp_path: Path, shard: str, stem: str) -> None:
    index = tmp_path / f"{stem}.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(LexrayError, match="not a file beside it"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 10**5]
)
def test_corrupt_indices(tmp_path: Path, content: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(LexrayError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


def test_a_missing_or_corrupt_config_is_named(tmp_path: Path) -> None:
    save_file(W, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for content in (None, "{", "[]"):
        if content:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(LexrayError, match=r"config\.json"):
            _ = checkpoint.config


NAME = "model.layers.0.self_attn.q_proj.weight"


def name_base(adapter: Path, name: Any, **more: Any) -> None:
    """Let an adapter's config name another base."""
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text()) | {"base_model_name_or_path": name} | more
    path.write_text(json.dumps(config))


def test_adapters_open_with_their_base(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    expected = LoraCheckpoint(adapter, open_checkpoint(base)).read(NAME)
    base.rename(adapter / "base")
    name_base(adapter, "base")
    for source in (adapter, adapter / "adapter_model.safetensors", adapter / "adapter_config.json"):
        checkpoint = open_checkpoint(source)
        assert isinstance(checkpoint, LoraCheckpoint)
        assert checkpoint.name == str(source)
        assert checkpoint.read(NAME).equal(expected)


@pytest.mark.parametrize("opened", [False, True])
def test_adapters_open_with_another_base(tmp_path: Path, opened: bool) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    base = base.rename(tmp_path / "moved")
    with pytest.raises(LexrayError, match=r"cannot be opened: .*BASE --adapter "):
        open_checkpoint(adapter)
    checkpoint = open_checkpoint(adapter, base=open_checkpoint(base) if opened else base)
    assert NAME in checkpoint.names()


def test_merged_folders_with_a_left_over_adapter(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    save_file(load_file(base / "model.safetensors"), adapter / "model.safetensors")
    assert isinstance(open_checkpoint(adapter), SafetensorsFolder)
    assert isinstance(open_checkpoint(adapter, base=base), LoraCheckpoint)


def test_a_base_for_what_is_no_adapter(tmp_path: Path) -> None:
    save_file(W, tmp_path / "model.safetensors")
    with pytest.raises(LexrayError, match="is no adapter"):
        open_checkpoint(tmp_path, base="gpt2")


@pytest.mark.parametrize("target", [None, 3, "", "itself", "gpt2"])
def test_adapters_without_a_usable_base(tmp_path: Path, target: Any) -> None:
    _, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    name_base(adapter, str(adapter) if target == "itself" else target)
    with pytest.raises(LexrayError, match=r"BASE --adapter "):
        open_checkpoint(adapter)


def test_adapters_without_weights(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(LexrayError, match=r"no adapter_model\.safetensors or adapter_model\.bin"):
        open_checkpoint(adapter, base=base)


@pytest.mark.slow
def test_local_files_need_neither_transformers_nor_the_network_stack(tmp_path: Path) -> None:
    save_file(W, tmp_path / "model.safetensors")
    code = (
        "import sys; from lexray.checkpoint.opening import open_checkpoint; "
        f"open_checkpoint({str(tmp_path)!r}).read('w'); "
        "print([m for m in ('transformers', 'peft', 'huggingface_hub') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_adapter_does_not_choose_a_path_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by its full name, nor past its own folder, nor by a link, nor from where we are."""
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    (adapter / "link").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    for name in (str(base), "../base", "link", "base"):
        name_base(adapter, name)
        with pytest.raises(LexrayError, match=r"outside its own folder.*BASE --adapter "):
            open_checkpoint(adapter)
    assert NAME in open_checkpoint(adapter, base="base").names()


def test_the_base_of_an_adapter_is_said(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    (note,) = open_checkpoint(adapter, base=base).notes
    assert note == f"{adapter} is an adapter; the model under it is {base}"


def test_an_empty_name() -> None:
    with pytest.raises(LexrayError, match=r"name is empty; the folder you are in is called \."):
        open_checkpoint("")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "model.gguf", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe would be waited for, a device read without end."""
    make = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
    }
    make[kind](tmp_path / name)
    with pytest.raises(LexrayError, match=rf"it is a {kind}, not a regular file|has no weights"):
        open_checkpoint(tmp_path)


def test_configs_and_tokenizers_that_are_no_files(tmp_path: Path) -> None:
    save_file(W, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        os.mkfifo(tmp_path / name)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(LexrayError, match=r"config\.json .*a pipe"):
        _ = checkpoint.config
    with pytest.raises(LexrayError, match=r"tokenizer\.json .*a pipe"):
        checkpoint.asset("tokenizer.json")


def test_shards_with_impossible_names(tmp_path: Path) -> None:
    for name in ("x" * 5000, "é" * 200, "\ud800", "a\0b"):
        index = {"weight_map": {"w": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(LexrayError, match=r"index\.json") as found:
            open_checkpoint(tmp_path)
        assert len(str(found.value)) < 500
