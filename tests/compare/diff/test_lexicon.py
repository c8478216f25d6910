"""The lexicon against counts by hand, and the count of App. D where the answer is known."""

from __future__ import annotations

import gzip
import json
from math import log
from pathlib import Path

import pytest
import torch

import lexray as lx
from lexray import filters
from lexray.compare.diff.lexicon import Lexicon, count_words, read_reviews, rotations_of, suits
from lexray.errors import LexrayError
from lexray.model.model import Model

REVIEWS = [
    *[(1, "A great film, great indeed; Anna shines")] * 6,
    *[(1, "great and dull")] * 1,
    *[(0, "a dull film, so dull. Anna snores")] * 5,
    *[(0, "an awful film")] * 3,
]


def written(path: Path, reviews: list[tuple[int, str]] = REVIEWS) -> Path:
    text = "\n".join(json.dumps({"label": label, "text": text}) for label, text in reviews)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_from_reviews(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name)
    assert list(read_reviews(path)) == REVIEWS
    found = Lexicon.from_reviews(path, n=3, minimum=3)
    odds = {
        "great": log(7.5 / 0.5) - log(0.5 / 8.5),
        "dull": log(1.5 / 6.5) - log(5.5 / 3.5),
    }
    assert odds["great"] > 0 > odds["dull"]
    assert {"great", "indeed", "shines"} == found.praise
    assert {"snores", "awful", "dull"} <= found.blame | {"dull"}
    assert "anna" not in found.praise | found.blame  # a name
    assert "15 labelled reviews" in found.made
    one = Lexicon.from_reviews(path, n=1, minimum=6)
    assert (one.praise, one.blame) == ({"great"}, {"dull"})
    again = tmp_path / "list.json"
    again.write_text(found.to_json())
    assert Lexicon.from_file(again) == found


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match=r"nothing\.jsonl\.gz cannot be read"):
        Lexicon.from_file(tmp_path / "nothing.jsonl.gz")
    path = tmp_path / "odd.jsonl"
    path.write_text('{"label": 3, "text": "x"}\n')
    with pytest.raises(LexrayError, match="line 1: a review is"):
        Lexicon.from_file(path)
    with pytest.raises(LexrayError, match="give both"):
        Lexicon.from_reviews(written(tmp_path / "one.jsonl", REVIEWS[:3]))
    with pytest.raises(LexrayError, match="lower the minimum"):
        Lexicon.from_reviews(written(tmp_path / "few.jsonl"))
    path = tmp_path / "list.json"
    path.write_text("[1, 2]")
    with pytest.raises(LexrayError, match="two lists of words"):
        Lexicon.from_file(path)
    path.write_text("not JSON")
    with pytest.raises(LexrayError, match="cannot read the lexicon"):
        Lexicon.from_file(path)


def test_the_shipped_list() -> None:
    found = Lexicon.shipped()
    assert len(found.praise) == len(found.blame) == 150
    assert {"wonderful", "great", "perfect"} <= found.praise
    assert {"awful", "worst", "boring"} <= found.blame
    assert not found.praise & found.blame
    assert "labelled reviews" in found.made
    vocabulary = Model.from_pretrained("demo").view("raw").vocabulary
    assert int(found.mask(vocabulary, vocabulary.n_ids).sum()) >= 250


def test_rotations_keep_lengths_and_angles() -> None:
    X = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    first, second = rotations_of(X, 2, torch.Generator().manual_seed(1))
    torch.testing.assert_close(first @ first.T, X @ X.T, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(first, second, atol=1e-2)
    assert not torch.allclose(first, X, atol=1e-2)


def test_who_classifies_sentiment() -> None:
    assert suits({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}})
    assert not suits({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    assert not suits({})


@pytest.mark.slow
def test_planted_sentiment_is_found_and_noise_is_not() -> None:
    """Vectors made of praise less blame read as sentiment, random ones do not."""
    model, lexicon = Model.from_pretrained("demo").view("raw"), Lexicon.shipped()
    generator = torch.Generator().manual_seed(0)
    E = model.W_U.float()
    sides = [
        Lexicon(words, frozenset({"-"})).mask(model.vocabulary, E.shape[1])
        for words in (lexicon.praise, lexicon.blame)
    ]
    axis = E[:, sides[0]].mean(1) - E[:, sides[1]].mean(1)
    noise = torch.randn(20, len(axis), generator=generator)
    planted = axis / axis.norm() + 0.3 * noise / noise.norm(dim=1, keepdim=True)
    before = torch.randn(20, len(axis), generator=generator)
    found = count_words(model, lexicon, {"K": ("K", planted, before), "V": ("V", noise, before)})
    assert [share.reads for share in found.shares] == [True, False]
    assert found.verdict == "W_K differences read as sentiment; W_V does not"
    words = filters.starts_word & filters.alphanumeric
    mask = words.mask(model.vocabulary, E.shape[1])
    both = sides[0] | sides[1]
    assert found.chance == pytest.approx(float(both[mask].float().mean()))
    scores = torch.where(mask, planted @ E, torch.nan)
    order = scores.nan_to_num(-1e9).argsort(dim=1, descending=True)[:, :20]
    other = scores.nan_to_num(1e9).argsort(dim=1)[:, :20]
    share = both[torch.cat([order, other], 1)].float().mean()
    assert found.shares[0].share == pytest.approx(float(share), abs=0.01)
    tiny = Lexicon(frozenset({"wonderful"}), frozenset({"zzzz"}))
    with pytest.raises(LexrayError, match="only 1 words of the lexicon"):
        count_words(model, tiny, {"K": ("K", planted, before)})


@pytest.mark.slow
def test_the_count_comes_by_itself() -> None:
    """For a model whose classes are positive and negative, and not for others."""
    found = lx.diff("demo", "demo-sentiment", n=2, k=3, each=1, groups=["K", "O"])
    assert found.sentiment is not None
    assert [share.group for share in found.sentiment.shares] == ["K", "O"]
    answer = found.to_dict()["sentiment"]
    assert {"verdict", "chance", "groups"} <= set(answer)
    assert found.sentiment.verdict in str(found).replace("\n", " ")
    assert "Words of praise and blame" in found.to_html()
    assert lx.diff("demo", "demo-sentiment", n=2, k=3, groups=["K"], lexicon=None).sentiment is None
