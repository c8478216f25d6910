"""The map that is fitted on the vocabulary, against scipy and plain float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from lexray.compare.stitch.fit import FitSums, count_tokens, expect_tokens, fit_maps, shuffle, weigh
from lexray.compare.stitch.stitch import Stitched, encode, stitch
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.compare.stitch.test_stitch import TEXTS, classifier, live, saved

pytestmark = pytest.mark.filterwarnings("ignore")


def pairs(a: Model, b: Model, after: int, layers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both models' states of every row, from transformers' own list of hidden states."""
    rows = shuffle(a, b)
    found = []
    for model, index in ((a, after + 1), (b, b.n_layers - layers)):
        with torch.no_grad():
            out = model.module()(rows, output_hidden_states=True).hidden_states[index]
        found.append(out[:, 1:].flatten(0, 1).double())
    return found[0], found[1], rows[:, 1:].flatten()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pair", [("llama", "stablelm"), ("gpt2", "llama")])
def test_the_map_is_scipys(pair: tuple[str, str], weighted: bool) -> None:
    a, b = live(pair[0]), live(pair[1])  # 24 and 32 wide, and 24 and 24
    frequencies = torch.arange(37.0) if weighted else None
    found = fit_maps(a, b, [0], 1, frequencies=frequencies)[0]
    X, Y, tokens = pairs(a, b, 0, 1)
    w = torch.ones(len(X)).double()
    if weighted:
        w = (torch.arange(37.0) / 18 + 0.01).sqrt().double()[tokens]
    w = (w / w.sum())[:, None]
    x, y = (w * X).sum(0), (w * Y).sum(0)
    left, right = ((t * w.sqrt()).numpy() for t in (X - x, Y - y))
    padded = np.pad(left, ((0, 0), (0, right.shape[1] - left.shape[1])))
    Q, _ = orthogonal_procrustes(padded, right)
    size = np.linalg.norm(right) / np.linalg.norm(left)
    K = torch.from_numpy(Q[: left.shape[1]] * size)
    torch.testing.assert_close(found.kernel, K, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x @ found.kernel + found.offset, y, atol=1e-5, rtol=1e-5)
    square = found.kernel @ found.kernel.T / size**2
    torch.testing.assert_close(square, torch.eye(a.d_model).double(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen3"])
def test_a_model_and_itself_at_the_same_place_give_the_identity(name: str) -> None:
    model = live(name)
    found = fit_maps(model, model, [0], model.n_layers - 1)[0]
    eye = torch.eye(model.d_model).double()
    torch.testing.assert_close(found.kernel, eye, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.offset, torch.zeros_like(found.offset), atol=1e-5, rtol=0)


def test_each_layer_has_its_own_map_as_if_it_were_alone() -> None:
    a, b = live("gpt2"), live("llama")
    both = fit_maps(a, b, [0, 1], 1)
    for after in (0, 1):
        alone = fit_maps(a, b, [after], 1)[after]
        torch.testing.assert_close(both[after].kernel, alone.kernel)
        torch.testing.assert_close(both[after].offset, alone.offset)
    assert not torch.allclose(both[0].kernel, both[1].kernel, atol=1e-2)


def test_every_token_takes_part_equally_often_and_first_places_do_not() -> None:
    a, b = live("gpt2"), live("stablelm")
    rows = shuffle(a, b)
    counts = torch.bincount(rows[:, 1:].flatten(), minlength=37)
    assert counts.min() >= 32 * 32 // 37
    assert counts.max() - counts.min() <= 2  # what fills the last row
    assert rows.shape[1] <= 32  # gpt2's positions
    torch.testing.assert_close(rows, shuffle(a, b))
    moved = rows.clone()
    assert len(set(moved[:, 0].tolist())) > 1


def test_frequencies_are_counted_and_predicted(tmp_path: Path) -> None:
    a, b = (saved(name, tmp_path / name) for name in ("llama", "stablelm"))
    ids, mask = encode(a, TEXTS, 64)
    counts = count_tokens(ids, mask, 37)
    assert counts.sum() == 7
    assert counts[[3, 5, 30]].tolist() == [1, 1, 1]
    assert counts[0] == 0  # padding
    torch.testing.assert_close(weigh(counts), (counts * 37 / 7 + 0.01).sqrt())
    torch.testing.assert_close(weigh(counts), weigh(counts * 9))
    counted = stitch(a, b, after=0, last=1, frequencies="counted", calibrate=TEXTS)
    expected = fit_maps(a, b, [0], 1, frequencies=counts)[0]
    torch.testing.assert_close(counted.kernel.double(), expected.kernel, atol=1e-6, rtol=1e-5)
    rows = shuffle(a, b)
    with torch.no_grad():
        own = a.module()(rows[: max(1, 1024 // rows.shape[1])]).logits[:, 1:].softmax(-1)
    torch.testing.assert_close(expect_tokens(a, b), own.mean((0, 1)), atol=1e-5, rtol=1e-4)
    kernels = [
        stitch(a, b, after=0, last=1, frequencies=way).kernel for way in ("none", "predicted")
    ]
    assert not torch.allclose(*kernels, atol=1e-4)
    assert not torch.allclose(kernels[0], counted.kernel, atol=1e-4)


def test_carried_states_have_bs_mean_and_size() -> None:
    a, b = live("llama"), live("stablelm")
    stitched = stitch(a, b, after=0, last=1)
    X, Y, _ = pairs(a, b, 0, 1)
    moved = stitched.carry(X.float()[None])[0].double()
    torch.testing.assert_close(moved.mean(0), Y.mean(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close((moved - moved.mean(0)).norm(), (Y - Y.mean(0)).norm())
    normed = stitch(a, b, after=0, last=1, a_norm=True)
    again = normed.carry(X.float()[None])[0].double()
    torch.testing.assert_close(again.mean(0), Y.mean(0), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(again, moved, atol=1e-2)


def test_folders_of_earlier_versions_open(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    a = saved("gpt2", tmp_path / "gpt2")
    made = stitch(a, a, after=0, last=1, kernel="pinv")
    folder = made.save_pretrained(tmp_path / "s")
    path = folder / "stitch.safetensors"
    tensors = load_file(path)
    del tensors["offset"]
    save_file(tensors, path)
    again = Stitched.from_pretrained(folder)
    torch.testing.assert_close(again.kernel, made.kernel)
    assert not again.offset.any()


def test_what_cannot_be_fitted_is_said() -> None:
    sums = FitSums(3, 2)
    sums.add(torch.ones(4, 3), torch.ones(4, 2), torch.ones(4))
    with pytest.raises(LexrayError, match="one and the same"):
        sums.solve()
    a = Model.from_module(classifier("llama", "sequence"))
    with pytest.raises(LexrayError, match="predicts no tokens"):
        expect_tokens(a, live("llama"))
