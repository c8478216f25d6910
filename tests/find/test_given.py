"""The user's own vectors: read as a model's own are, looked up, and from files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lexray.checkpoint.vectors import load_vectors
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.readings import Reading, Readings
from tests.vocabulary.vocabularies import worded

KINDS = ["value", "key", "gate", "Q", "K", "V", "O"]
VIEWS: list[dict[str, Any]] = [{}, {"name": "standard", "trained": False}, {"folded": True}]


@cache
def model() -> Model:
    return worded("llama")


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_models_own_vectors_read_the_same(kind: str, layer: int, view: dict[str, Any]) -> None:
    """A reader of the first layer sees other tokens than the later ones do."""
    seen = model().view(*([view["name"]] if "name" in view else []), **_options(view))
    neuron = kind in ("value", "key", "gate")
    own = seen[f"L{layer}N3.{kind}" if neuron else f"L{layer}H1.{kind}3"]
    read = seen.read(own.tensor, kind=kind, layer=layer, k=6)
    assert isinstance(read, Reading)
    assert (read.top, read.bottom, read.legibility) == _ends(own.top(6))


def _options(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if name != "name"}


def _ends(reading: Reading) -> tuple[Any, Any, float]:
    return reading.top, reading.bottom, reading.legibility


def test_tensors_arrays_lists_and_matrices() -> None:
    x = model()["L1N3.value"].tensor
    one = model().read(x, k=4)
    assert isinstance(one, Reading)
    for same in (x.numpy(), x.tolist(), tuple(x.tolist()), x.double(), x.clone().requires_grad_()):
        again = model().read(same, "values", k=4)
        assert isinstance(again, Reading)
        assert again.tokens == one.tokens
    many = model().read(torch.stack([x, -x]), k=4)
    assert isinstance(many, Readings)
    assert len(many) == 2
    assert many[0].tokens == one.tokens
    assert many[1].tokens == [scored.token.shown for scored in one.bottom]
    assert "2 vectors, read as values of layer 1" in str(model().read([x.tolist()] * 2, layer=1))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(7), r"shape \(7,\); .* reads vectors of 24 numbers"),
        (torch.zeros(2, 2, 24), r"shape \(2, 2, 24\)"),
        (torch.zeros(0, 24), r"shape \(0, 24\)"),
        (torch.zeros(()), r"shape \(\)"),
        (torch.full((24,), torch.nan), "infinite or no numbers"),
        (["a"] * 24, "no vector of numbers"),
        ([[1.0], [1.0, 2.0]], "no vector of numbers"),
        (np.zeros(24, dtype=bool), "real numbers"),
        (torch.zeros(24, dtype=torch.complex64), "real numbers"),
        (None, "no vector of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(x: Any, message: str) -> None:
    with pytest.raises(LexrayError, match=message):
        model().read(x)


def test_other_mistakes() -> None:
    x = torch.ones(24)
    with pytest.raises(LexrayError, match="no kind 'row' of vectors; there are value, key, gate"):
        model().read(x, "row")
    with pytest.raises(LexrayError, match="there is no layer 5"):
        model().read(x, layer=5)
    with pytest.raises(LexrayError, match="one vector at a time"):
        model().lookup(torch.ones(2, 24))
    with pytest.raises(LexrayError, match="zero everywhere"):
        model().lookup(torch.zeros(24))


@pytest.mark.parametrize("by", ["standard", "dot", "cosine"])
def test_lookup_of_a_vector(by: Any) -> None:
    """By the correlation of lists, or as the vectors are: a parameter finds itself."""
    x = model()["L1N3.value"].tensor
    values = torch.cat([group.tensor for group in model().groups("value")]).double()
    found = model().lookup(x.numpy(), by=by)
    E = model().W_U.double()
    expected = {
        "standard": torch.corrcoef(torch.cat([(x.double() @ E)[None], values @ E]))[0, 1:],
        "dot": values @ x.double(),
        "cosine": torch.nn.functional.cosine_similarity(values, x.double()[None]),
    }[by]
    assert torch.allclose(found.scores.double(), expected, atol=1e-3, rtol=1e-3)
    best = found.top(2)
    assert best[0].address == "L1N3.value" or by == "dot"
    assert best[0].ranks == ()
    assert "like the given vector" in str(best)
    standard = model().view("standard", trained=False)
    key = standard["L1N3.key"].tensor
    assert standard.lookup(key, ["keys", "gates"], kind="key").top(1)[0].address == "L1N3.key"


# ---------------------------------------------------------------------- files


def test_files_of_numbers(tmp_path: Path) -> None:
    x = torch.randn(3, 24)
    np.save(tmp_path / "a.npy", x.numpy())
    save_file({"one": x, "two": x[0].clone()}, tmp_path / "b.safetensors")
    save_file({"half": x.half()}, tmp_path / "half.safetensors")
    (tmp_path / "c.json").write_text(json.dumps(x.tolist()))
    np.savetxt(tmp_path / "d.csv", x.numpy(), delimiter=",")
    np.savetxt(tmp_path / "e.txt", x.numpy())
    np.savetxt(tmp_path / "column.txt", x[0].numpy())
    (tmp_path / "row.csv").write_text("; ".join(map(str, x[0].tolist())))
    for name in ("a.npy", "c.json", "d.csv", "e.txt"):
        assert torch.allclose(load_vectors(tmp_path / name).float(), x), name
    assert torch.equal(load_vectors(tmp_path / "b.safetensors", "two"), x[0])
    assert load_vectors(tmp_path / "half.safetensors").dtype == torch.float32
    for name in ("column.txt", "row.csv"):
        assert torch.allclose(load_vectors(tmp_path / name).float(), x[0]), name


def test_hostile_and_odd_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.pt", "b.bin", "c.pkl"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
        with pytest.raises(LexrayError, match="pickle, which may run code"):
            load_vectors(tmp_path / name)
    np.save(tmp_path / "object.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "rows.json").write_text("[[1, 2], [3]]")
    (tmp_path / "text.json").write_text('{"a": 1}')
    (tmp_path / "words.txt").write_text("one two")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "x.parquet").write_text("")
    save_file({"one": torch.zeros(2), "two": torch.zeros(2)}, tmp_path / "two.safetensors")
    for name, message in {
        "object.npy": "holds no numbers but '|O'",
        "words.npy": "holds no numbers",
        "cut.npy": "no .npy file, or its header is cut off",
        "rows.json": "not of one length",
        "text.json": "something else than a list of numbers",
        "words.txt": "something else than numbers",
        "x.parquet": "is no file of vectors; those end in .npy",
        "two.safetensors": "which tensor is it.*'one', 'two'",
        "missing.npy": "cannot be read",
    }.items():
        with pytest.raises(LexrayError, match=message):
            load_vectors(tmp_path / name)
    with pytest.raises(LexrayError, match="there is no 'three' in it"):
        load_vectors(tmp_path / "two.safetensors", "three")
    with pytest.raises(LexrayError, match="has no names"):
        load_vectors(tmp_path / "words.txt", "three")
    assert load_vectors(tmp_path / "empty.txt").numel() == 0


@pytest.mark.parametrize(
    ("header", "message"),
    {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, ": "cannot be read",
        "-" * 9000: "cannot be read",
        "(" * 9000: "cannot be read",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 24)}": "is truncated",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 24)}": "no vector and no matrix",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 24}": "no vector and no matrix",
        "{'descr': '<f1', 'fortran_order': False, 'shape': (24,)}": "no numbers but '<f1'",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (24,)}": "no vector",
        "{'descr': 'V999999999', 'fortran_order': False, 'shape': (24,)}": "no numbers",
    }.items(),
)
def test_headers_of_npy_files(tmp_path: Path, header: str, message: str) -> None:
    """None of them reaches numpy's own reader, which ends in errors of its tokenizer, or memory."""
    raw = header.encode()
    data = b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + bytes(96)
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(LexrayError, match=message):
        load_vectors(tmp_path / "x.npy")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">i2", "|u1"])
def test_numpy_writes_what_is_read(tmp_path: Path, dtype: str, order: Literal["C", "F"]) -> None:
    x = np.asarray(np.arange(12).reshape(3, 4), dtype, order=order)
    np.save(tmp_path / "x.npy", x)
    assert load_vectors(tmp_path / "x.npy").tolist() == x.tolist()


def test_a_list_of_words_takes_no_room(tmp_path: Path) -> None:
    """numpy would make each as long as the longest: 40 GB here."""
    (tmp_path / "x.json").write_text(json.dumps(["x" * 100_000, *["y"] * 100_000]))
    with pytest.raises(LexrayError, match="something else than a list of numbers"):
        load_vectors(tmp_path / "x.json")
    (tmp_path / "y.json").write_text(f"[1, {10**400}]")
    with pytest.raises(LexrayError, match="too large"):
        load_vectors(tmp_path / "y.json")
