"""Downloading from a Hub: only what is needed, once, and one clear sentence when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lexray.checkpoint.hub.grammar import looks_like_hub_id
from lexray.checkpoint.hub.repository import Repository, commit_of, fetch_folder
from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.safetensors import weight_map
from lexray.errors import LexrayError
from tests.checkpoint.hub.server import FakeHub, serve
from tests.checkpoint.test_lora import adapted
from tests.checkpoint.test_opening import name_base

Make = Callable[..., None]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    (tmp_path / "repos").mkdir()
    with serve(tmp_path / "repos") as hub:
        hub.use(monkeypatch, tmp_path)
        yield hub


@pytest.fixture
def make(hub: FakeHub) -> Make:
    """Fill a repository: names alone hold their own name, pairs hold JSON."""

    def fill(repo: str, *names: str, **contents: object) -> None:
        for name in (*names, *contents):
            path = hub.folder / repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(contents[name]) if name in contents else name)

    return fill


def index(*shards: str) -> dict[str, object]:
    return {"weight_map": {f"tensor{i}": shard for i, shard in enumerate(shards)}}


def names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


SMALL = ("config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt", "vocab.json")
OTHERS = ("README.md", "tf_model.h5", "onnx/model.onnx", "original/model.safetensors", "x.gguf")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt2", True),
        ("org/name", True),
        ("meta-llama/Llama-3.2-1B", True),
        ("org/name-GGUF/name.Q8_0.gguf", True),
        ("org/name-GGUF/quants/name.gguf", True),
        ("./gpt2", False),
        ("/models/gpt2", False),
        ("~/gpt2", False),
        ("org/name/more", False),
        ("a/../b", False),
        ("org/na--me", False),
        ("folder/model.gguf", False),
        ("model.safetensors", False),
        ("", False),
        ("org/", False),
        ("C:\\models", False),
        ("a" * 97, False),
    ],
)
def test_looks_like_hub_id(text: str, expected: bool) -> None:
    assert looks_like_hub_id(text) is expected


def test_single_safetensors_and_nothing_else(hub: FakeHub, make: Make) -> None:
    make("org/name", *SMALL, *OTHERS, "model.safetensors", "pytorch_model.bin")
    folder = fetch_folder("org/name")
    assert names(folder) == {*SMALL, "model.safetensors"}
    assert hub.files() == {*SMALL, "model.safetensors"}
    assert commit_of(folder) == folder.name == hub.commit("org/name")


def test_exactly_the_shards_that_the_index_names(make: Make) -> None:
    shards = ("model-1.safetensors", "model-2.safetensors")
    make("org/name", *SMALL, *OTHERS, *shards, "model-3.safetensors", "pytorch_model.bin")
    make("org/name", **{"model.safetensors.index.json": index(*shards)})
    assert names(fetch_folder("org/name")) == {*SMALL, *shards, "model.safetensors.index.json"}


def test_bin_where_there_is_no_safetensors(make: Make) -> None:
    make("org/one", *SMALL, *OTHERS, "pytorch_model.bin")
    assert names(fetch_folder("org/one")) == {*SMALL, "pytorch_model.bin"}
    make("org/two", *SMALL, *OTHERS, "a.bin", **{"pytorch_model.bin.index.json": index("a.bin")})
    assert names(fetch_folder("org/two")) == {*SMALL, "a.bin", "pytorch_model.bin.index.json"}


def test_adapter(make: Make) -> None:
    adapter = {"adapter_config.json", "adapter_model.safetensors"}
    make("org/lora", "README.md", "tokenizer.json", *adapter)
    assert names(fetch_folder("org/lora")) == {"tokenizer.json", *adapter}


def test_split_gguf(hub: FakeHub, make: Make) -> None:
    """All parts come along, whichever is named; a folder may hold several splits."""
    one = [f"q4/a-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    make("org/split", "README.md", *one)
    for name in ("org/split", f"org/split/{one[1]}"):
        path = fetch_folder(name)
        assert sorted(p.name for p in path.parent.iterdir()) == [Path(p).name for p in one]
    make("org/more", *one, "q8/a-00001-of-00001.gguf")
    with pytest.raises(LexrayError, match=r"several GGUF files: q4/a-00001-of-00003\.gguf, q8/"):
        fetch_folder("org/more")
    make("org/torn", *one[:2])
    with pytest.raises(LexrayError, match=r"no file q4/a-00003-of-00003\.gguf"):
        fetch_folder(f"org/torn/{one[0]}")


def test_gguf(hub: FakeHub, make: Make) -> None:
    make("org/one", "README.md", "config.json", "a.gguf")
    path = fetch_folder("org/one")
    assert (path.name, path.read_text()) == ("a.gguf", "a.gguf")
    assert commit_of(path) == hub.commit("org/one")
    make("org/two", "a.gguf", "more/b.gguf")
    with pytest.raises(
        LexrayError, match=r"several GGUF files: a\.gguf, more/b\.gguf; .*org/two/a"
    ):
        fetch_folder("org/two")
    path = fetch_folder("org/two/more/b.gguf")
    assert path.read_text() == "more/b.gguf"
    assert commit_of(path) == hub.commit("org/two")
    with pytest.raises(LexrayError, match=r"no file c\.gguf; there are a\.gguf, more/b\.gguf"):
        fetch_folder("org/two/c.gguf")


def test_second_time_only_asks_for_the_commit(hub: FakeHub, make: Make) -> None:
    make("org/name", *SMALL, "model.safetensors")
    first = fetch_folder("org/name")
    hub.reset()
    assert fetch_folder("org/name") == first
    assert [r.path for r in hub.log] == ["/api/models/org/name/revision/main"]


def test_revisions(hub: FakeHub, make: Make) -> None:
    make("org/name", *SMALL, "model.safetensors")
    commit = hub.commit("org/name")
    assert fetch_folder("org/name", revision=commit).name == commit
    with pytest.raises(LexrayError, match="org/name at v9: the repository has no such revision"):
        fetch_folder("org/name", revision="v9")


def test_offline_without_a_request(
    hub: FakeHub, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("org/name", *SMALL, "model.safetensors")
    make("org/quants", "a.gguf")
    folder, gguf = fetch_folder("org/name"), fetch_folder("org/quants")
    hub.reset()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_folder("org/name") == folder
    assert fetch_folder("org/name", revision=folder.name) == folder
    assert fetch_folder("org/quants") == fetch_folder("org/quants/a.gguf") == gguf
    assert not hub.log
    with pytest.raises(LexrayError, match=r"org/other at main is not in .*HF_HUB_OFFLINE is set"):
        fetch_folder("org/other")
    assert not hub.log


def test_offline_says_which_file_is_missing(
    hub: FakeHub, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("org/name", "config.json", "a.safetensors")
    make("org/name", **{"model.safetensors.index.json": index("a.safetensors")})
    folder = fetch_folder("org/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "a.safetensors").unlink()
    with pytest.raises(LexrayError, match=r"no shard a\.safetensors.* HF_HUB_OFFLINE is set"):
        fetch_folder("org/name")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(LexrayError, match=r"neither model\.safetensors.* HF_HUB_OFFLINE is set"):
        fetch_folder("org/name")


def test_network_down(hub: FakeHub, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make("org/name", *SMALL, "model.safetensors")
    folder = fetch_folder("org/name")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch_folder("org/name") == folder
    with pytest.raises(LexrayError, match=r"127\.0\.0\.1:9 cannot be reached .*check the conn"):
        fetch_folder("org/other")
    (folder / "model.safetensors").unlink()
    with pytest.raises(LexrayError, match=r"127\.0\.0\.1:9 cannot be reached"):
        fetch_folder("org/name")
    hub.unavailable = True
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    with pytest.raises(LexrayError, match="HTTP 503; try later"):
        fetch_folder("org/other")


def test_gated_private_missing(hub: FakeHub, make: Make) -> None:
    make("org/name", *SMALL, "model.safetensors")
    with pytest.raises(LexrayError, match="org/nothing at main is not on the Hub, or private"):
        fetch_folder("org/nothing")
    hub.token = "secret"
    with pytest.raises(LexrayError, match=r"is gated: .*token=… or run `hf auth login`"):
        fetch_folder("org/name")
    hub.private = True
    with pytest.raises(LexrayError, match=r"private: .*token=… or run `hf auth login`"):
        fetch_folder("org/name")
    assert names(fetch_folder("org/name", token="secret")) == {*SMALL, "model.safetensors"}
    assert {r.authorization for r in hub.log if r.server == "cdn"} == {None}


def test_token_from_the_environment(
    hub: FakeHub, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("org/name", "config.json", "model.safetensors")
    hub.token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert fetch_folder("org/name").is_dir()
    with pytest.raises(LexrayError, match="is gated"):
        Repository.resolve("org/name", token=False).download("model.safetensors.index.json")


def test_no_weights(make: Make) -> None:
    make("org/name", *SMALL, "README.md", "tf_model.h5")
    with pytest.raises(LexrayError, match=r"org/name at main has neither model\.safetensors"):
        fetch_folder("org/name")


def test_missing_shard(make: Make) -> None:
    make("org/name", "config.json", **{"model.safetensors.index.json": index("a.safetensors")})
    with pytest.raises(
        LexrayError, match=r"no shard a\.safetensors, which model\.safetensors\.ind"
    ):
        fetch_folder("org/name")


@pytest.mark.parametrize("shard", ["../a", "x/a", "/etc/passwd", "..", ".", "", "a\\b", "C:a", 5])
def test_hostile_index(tmp_path: Path, shard: object) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"t": shard}}))
    with pytest.raises(LexrayError, match=r"index\.json"):
        weight_map(path)


def test_index_without_a_map(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    for content in ("{}", '{"weight_map": []}', "[", "[]"):
        path.write_text(content)
        with pytest.raises(LexrayError, match=r"index\.json"):
            weight_map(path)


def test_bad_id() -> None:
    with pytest.raises(LexrayError, match="a Hub id looks like org/name"):
        fetch_folder("org/name/more")


def everything(folder: Path) -> dict[Path, bytes]:
    """All files under a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("revision", ["../../../../victim", "x/../../../../../victim"])
def test_revisions_do_not_lead_out_of_the_cache(
    hub: FakeHub, make: Make, tmp_path: Path, revision: str
) -> None:
    """huggingface_hub writes the commit into a file that is named after the revision."""
    make("org/one", "config.json", "model.safetensors")
    (tmp_path / "victim").write_text("mine")
    with pytest.raises(LexrayError, match="cannot be a revision"):
        fetch_folder("org/one", revision=revision)
    assert (tmp_path / "victim").read_text() == "mine"
    assert not hub.log


@pytest.mark.parametrize("commit", ["../../../../out", "a/b", "..", "", "x" * 5000])
def test_commits_do_not_lead_out_of_the_cache(
    hub: FakeHub, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    make("org/one", "config.json", "model.safetensors")
    monkeypatch.setattr(FakeHub, "commit", lambda self, repo: commit)
    before = everything(tmp_path)
    with pytest.raises(LexrayError, match=r"no plain token|did not say which commit"):
        fetch_folder("org/one")
    assert everything(tmp_path) == before


def test_listed_files_that_lead_out_are_not_there(hub: FakeHub, make: Make) -> None:
    make("org/one", "config.json", "model.safetensors")
    hub.listing = ["config.json", "../../x.gguf", "/etc/x", "a\0b", "a/b"]
    assert Repository.resolve("org/one").files == {"config.json", "a/b"}
    with pytest.raises(LexrayError, match="cannot be the name of a file"):
        Repository.resolve("org/one").download("../../x.gguf")


@pytest.mark.parametrize("revision", ["../../../../victim", "a/../../b", "/etc/x", "x\n", 7])
def test_an_adapters_revision_does_not_lead_out_of_the_cache(
    hub: FakeHub, make: Make, tmp_path: Path, revision: str | int
) -> None:
    """An adapter's config names base and revision: opening it must not write where it says."""
    make("org/base", "config.json", "model.safetensors")
    (tmp_path / "victim").write_text("mine")
    _, adapter, _ = adapted(tmp_path / "local", target_modules=["q_proj"])
    name_base(adapter, "org/base", revision=revision)
    before = everything(tmp_path)
    with pytest.raises(LexrayError, match=r"cannot be a revision|revision should be a text"):
        open_checkpoint(adapter)
    assert everything(tmp_path) == before
    assert not hub.log
