"""Questions to an atlas, against the lists themselves."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path
from typing import Any

import pytest

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

ENDS = ("top", "bottom")


def lists(atlas: lx.Atlas) -> list[dict[str, Any]]:
    return list(atlas.vectors())


def place(row: dict[str, Any]) -> tuple[str, str]:
    return row["address"], row["side"]


def fold(text: str) -> str:
    return text.strip().lower()


@pytest.mark.parametrize("by", ["rank", "score"])
def test_who_has_a_token(atlas: lx.Atlas, by: Any) -> None:
    token = atlas.ids(" law")[0]
    expected = {
        (*place(row), end, row[f"{end}_ids"].index(token) + 1)
        for row in lists(atlas)
        for end in ("top", "bottom")
        if token in row[f"{end}_ids"]
    }
    found = atlas.parameters(" law", 10_000, by=by)
    assert {(*place(row), row["end"], row["rank"]) for row in found} == expected
    key = "rank" if by == "rank" else "score"
    order = [row[key] if by == "rank" else -abs(row[key]) for row in found]
    assert order == sorted(order)


def test_search_finds_lists_with_most_words(atlas: lx.Atlas) -> None:
    words = ["law", "cat", "dog"]
    forms = [set(atlas.ids(word)) for word in words]
    counts = {
        (*place(row), end): sum(bool(form & set(row[f"{end}_ids"])) for form in forms)
        for row in lists(atlas)
        for end in ("top", "bottom")
    }
    found = atlas.search("law cat dog", 10_000)
    assert {(*place(row), row["end"]): row["found"] for row in found} == {
        key: n for key, n in counts.items() if n
    }
    assert found.column("found") == sorted(found.column("found"), reverse=True)
    some = atlas.search(words, 10_000, legibility=0.05, kind="value", end="top", layer=1)
    legible = {place(row) for row in atlas.vectors("value", 1) if row["legibility"] >= 0.05}
    assert {place(row) for row in some} <= legible
    assert all(row["end"] == "top" for row in some)


def test_answers_show_the_lists_that_they_speak_of(atlas: lx.Atlas) -> None:
    """The first words of the end where a word stands, whatever the vector's kind."""
    known = {(*place(row), end): row[f"{end}_ids"] for row in lists(atlas) for end in ENDS}
    answers = [*atlas.parameters(" law", 10_000), *atlas.search("law cat", 10_000)]
    assert {row["kind"] for row in answers} >= {"key", "value", "Q", "O"}
    for row in answers:
        assert row["first_ids"] == known[*place(row), row["end"]][:10]
    for row in atlas.like("L1N7.value", 50):
        end = "bottom" if row["alike"] < 0 else "top"
        assert row["first_ids"] == known[*place(row), end][:10]


def test_all_lists_of_a_neuron(atlas: lx.Atlas) -> None:
    both = [*atlas.vector("L1N7.key"), *atlas.vector("L1N7.gate"), *atlas.vector("L1N7.value")]
    found = list(atlas.vector("L1N7"))
    assert sorted(map(place, found)) == sorted(map(place, both))
    for row in atlas.vector("L1N7", 3):
        (whole,) = [other for other in both if place(other) == place(row)]
        for name in ("top_ids", "top_scores", "bottom_ids", "bottom_scores"):
            assert row[name] == whole[name][:3]
    with pytest.raises(LexrayError, match="not in"):
        atlas.vector("L1N999")


def test_pairs_of_a_token_with_itself_can_be_left_out(atlas: lx.Atlas) -> None:
    for circuit in ("VO", "QK"):
        every = list(atlas.pairs("L0H1", circuit))
        texts = [[atlas.texts[row[side]] or "" for side in ("row", "col")] for row in every]
        other = [
            row
            for row, (a, b) in zip(every, texts, strict=True)
            if row["row"] != row["col"] and (fold(a) != fold(b) or not fold(a))
        ]
        assert list(atlas.pairs("L0H1", circuit, exclude_same=True)) == other
        assert list(atlas.pairs("L0H1", circuit, 2, exclude_same=True)) == other[:2]
    assert len(atlas.pairs("L0H1", n=3)) == 6


def test_what_is_there_is_known(atlas: lx.Atlas, llama: Path, tmp_path: Path) -> None:
    assert atlas.holds("roles")
    assert atlas.holds("vectors", kind="gate", layer=1)
    assert not atlas.holds("evidence")
    some = lx.Atlas.write(str(llama), tmp_path / "some", kinds=["values"], layers=[1], k=5)
    assert some.holds("vectors", kind="value", layer=1)
    assert not some.holds("vectors", layer=0)
    assert not some.holds("vectors", kind="key")


def test_like_weighs_shared_tokens(atlas: lx.Atlas) -> None:
    own = atlas.vector("L1N7.value")[0]
    tokens = 6

    def weigh(row: dict[str, Any]) -> float:
        total = 0.0
        for mine in ("top", "bottom"):
            for place_, token in enumerate(own[f"{mine}_ids"][:tokens], 1):
                for theirs in ("top", "bottom"):
                    if token in row[f"{theirs}_ids"]:
                        rank = row[f"{theirs}_ids"].index(token) + 1
                        sign = 1 if mine == theirs else -1
                        total += sign / log2(1 + rank) / log2(1 + place_)
        return total / (2 * sum(log2(1 + i) ** -2 for i in range(1, tokens + 1)))

    expected = {place(row): weigh(row) for row in lists(atlas) if row["address"] != "L1N7.value"}
    found = atlas.like("L1N7.value", 15, tokens=tokens)
    assert len(found) == 15
    for row in found:
        assert row["alike"] == pytest.approx(expected[place(row)], abs=1e-5)
    best = sorted(map(abs, expected.values()), reverse=True)[:15]
    assert [abs(x) for x in found.column("alike")] == pytest.approx(best, abs=1e-5)


def test_like_in_another_atlas_goes_by_the_text(atlas: lx.Atlas, folder: Path) -> None:
    """In the same model it finds the parameter itself."""
    found = atlas.like("L0N3.key", 3, other=lx.Atlas(folder))
    assert found[0]["address"] == "L0N3.key"
    assert found[0]["alike"] == pytest.approx(1.0, abs=1e-5)


def test_words_that_are_no_tokens_are_left_out(atlas: lx.Atlas) -> None:
    found = atlas.search("law jurisprudence", 5)
    assert "no tokens: jurisprudence" in found.note
    assert found.to_arrow().equals(atlas.search("law", 5).to_arrow())
    with pytest.raises(LexrayError, match="none of"):
        atlas.search("jurisprudence")


def test_shared_subheads_are_found_by_any_head(atlas: lx.Atlas) -> None:
    assert atlas.vector("L1H3.K5")[0]["address"] == "L1H2.K5"
    assert atlas.vector("L1H3.Q5")[0]["address"] == "L1H3.Q5"
    with pytest.raises(LexrayError, match="is not in"):
        atlas.vector("L1H9.K5")


def test_layers_may_share_keys_among_more_or_fewer_heads(tmp_path: Path) -> None:
    """Gemma 4: two heads of keys for four in most layers, one in those without a window."""
    model = Model(ModuleCheckpoint(build("gemma4-moe")), vocabulary=vocabulary())
    atlas = lx.Atlas.write(model, tmp_path, views=("raw",), k=5, kinds=("K",))
    assert atlas.vector("L0H3.K5")[0]["address"] == "L0H2.K5"
    assert atlas.vector("L1H3.K5")[0]["address"] == "L1H0.K5"


def test_neurons(atlas: lx.Atlas, model: lx.Model) -> None:
    rows = atlas.neurons(1, None, by="place")
    assert rows.column("address") == [f"L1N{i}" for i in range(model.d_mlp)]
    values = atlas.vectors("value", 1)
    assert rows.column("value_norm") == values.column("norm")
    assert [row["value_ids"] for row in rows] == [row["top_ids"][:10] for row in values]
    best = atlas.neurons(n=4)
    every = atlas.neurons(n=None)
    assert best.column("address") == every.column("address")[:4]
    legible = every.column("value_legibility")
    assert legible == sorted(legible, reverse=True)


def test_rows_as_arrow_pandas_and_polars(atlas: lx.Atlas) -> None:
    rows = atlas.parameters(" law", 7)
    assert rows.to_arrow().num_rows == len(rows.to_pandas()) == len(rows.to_polars()) == 7
    assert "·law" in str(rows)
    assert rows.to_dict()["rows"][0]["token_shown"] == "·law"
    assert rows.to_csv().startswith("address,kind,side,")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: a.parameters("no such token"), "is no token"),
        (lambda a: a.vector("L9N3.key"), "is not in"),
        (lambda a: a.search(""), "search for what"),
        (lambda a: a.parameters(" law", 0), "at least one"),
        (lambda a: lx.Atlas(a.where, "folded"), "no view"),
        (lambda a: lx.Atlas(a.where / "nothing"), "there is no atlas"),
    ],
)
def test_mistakes_are_told(atlas: lx.Atlas, call: Any, said: str) -> None:
    with pytest.raises(LexrayError, match=said):
        call(atlas)


def test_words_in_sql(atlas: lx.Atlas) -> None:
    (row,) = atlas.sql(
        "select address, words(top_ids) w, word(top_ids[1]) first from vectors limit 1"
    )
    own = next(
        each
        for each in lists(atlas) + list(lx.Atlas(atlas.where, "raw").vectors())
        if each["address"] == row["address"]
    )
    assert row["first"] == row["w"][0]
    assert len(row["w"]) == len(own["top_ids"])


def test_an_atlas_without_its_index_answers_the_same(
    folder: Path, tmp_path: Path, atlas: lx.Atlas
) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "part")
    for path in (tmp_path / "part/index").rglob("*.parquet"):
        path.unlink()
    part = lx.Atlas(tmp_path / "part")
    assert any(name.startswith("index/") for name in part.missing)
    found, whole = part.parameters(" law", 30), atlas.parameters(" law", 30)
    assert found.to_arrow().equals(whole.to_arrow())
    assert "not finished" in found.note
    assert part.like("L1N7.value").column("address") == atlas.like("L1N7.value").column("address")


@pytest.mark.slow
def test_compare_two_checkpoints(llama: Path, atlas: lx.Atlas, tmp_path: Path) -> None:
    """Two neurons that change places are what changed; by words they are found again."""
    model = lx.Model.from_pretrained(llama)
    one, other = model["L1N3"].W_out, model["L1N8"].W_out
    swapped = model.edited(
        [lx.edits.replace("L1N3.value", other), lx.edits.replace("L1N8.value", one)]
    )
    edited = lx.Atlas.write(swapped, tmp_path / "edited", kinds=["values", "heads"], k=12)
    found = atlas.compare(edited, 10, kind="value", layer=1)
    changed = [row["address"] for row in found if row["shared"] < 1]
    assert set(changed) == {"L1N3.value", "L1N8.value"}
    own = {row["address"]: set(row["top_ids"]) for row in atlas.vectors("value", 1)}
    share = len(own["L1N3.value"] & own["L1N8.value"]) / 12
    assert found[0]["shared"] == pytest.approx(share)
    by_words = atlas.compare(edited, 100, by="words", kind="value", layer=1)
    alike = [abs(score or 0) for score in by_words.column("alike")]
    assert alike == sorted(alike, reverse=True)
    again = {row["address"]: row["other"] for row in by_words}
    assert again["L1N3.value"] == "L1N8.value"
    assert again["L1N8.value"] == "L1N3.value"
    same = atlas.compare(edited, 100, kind="VO")
    assert set(same.column("shared")) == {1.0}
    assert len(same) == 8


def test_rows_as_json(atlas: lx.Atlas) -> None:
    rows = atlas.tokens()
    assert len(json.loads(rows.to_json())["rows"]) == len(rows)
