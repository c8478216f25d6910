"""The user's own vectors and dictionaries on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lexray import Dictionary, Model
from tests.cli.running import answer, mistake


def test_vectors_from_files(llama: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(llama)
    x = torch.randn(2, model.d_model)
    np.save(tmp_path / "x.npy", x.numpy())
    save_file({"a": x, "b": x[0].clone()}, tmp_path / "x.safetensors")
    found = answer("vector", llama, tmp_path / "x.npy", "--kind", "key", "--layer", 1, "-k", 4)
    assert found == model.read(x, "key", 1, k=4).to_dict()
    found = answer("vector", llama, tmp_path / "x.safetensors", "--name", "b", "-k", 4)
    assert found == model.read(x[0], k=4).to_dict()
    (tmp_path / "x.pt").write_bytes(b"")
    assert "pickle" in mistake("vector", llama, tmp_path / "x.pt")
    assert "cannot be read" in mistake("vector", llama, "missing.npy")
    assert "is no address" in mistake("vector", llama, "nonsense")


@pytest.mark.slow
def test_features_of_a_dictionary(llama: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(llama)
    path = tmp_path / "layer_1.safetensors"
    tensors = {"W_enc": torch.randn(model.d_model, 40), "W_dec": torch.randn(40, model.d_model)}
    save_file(tensors, path)
    dictionary = Dictionary.open(path, model)
    found = answer("feature", llama, path, "L1F7", "-k", 4)
    assert found == dictionary["L1F7"].top(4).to_dict()
    assert answer("feature", llama, path, "L1F7.value") == dictionary[7].value.top(30).to_dict()
    near = answer("feature", llama, path, "L1F7", "--nearest", "features,values", "-n", 3)
    assert near == dictionary[7].nearest(3, among=["features", "values"]).to_dict()
    looked = answer("lookup", llama, " law", "--dictionary", path, "-n", 3, "-k", 5)
    assert looked == dictionary.lookup(" law").top(3, tokens=5).to_dict()
    assert "features have no 'Q'" in mistake(
        "lookup", llama, " law", "--dictionary", path, "--among", "Q"
    )
    assert "is no feature of" in mistake("feature", llama, path, "L0F7")
