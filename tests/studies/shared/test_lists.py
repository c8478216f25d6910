"""Lists of vectors of a pass: the logit lens by the papers' view, standardised by the standard one,
against transformers' own last step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.studies import find
from lexray.studies.attention_output import LISTS, gather
from lexray.studies.shared.lists import PIECES, ListReader, PassVectors, pieces
from lexray.trace.read.project import project
from tests.studies.recorded import TEXT, K, logits, model, prompts_file
from tests.vocabulary.vocabularies import worded


def test_the_papers_lists_are_the_logit_lens() -> None:
    raw = model("gpt2")
    parts = gather(raw.trace(TEXT, what="residual", positions=-1))
    found = LISTS.tops(raw, parts, K)
    for name, part in parts.items():
        assert torch.equal(found[name], project(raw, part.vectors, K).top_ids)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_standard_lists_are_standardised_by_place(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """z of every token from the module's own logits, over the last positions of the pieces."""
    monkeypatch.setattr("lexray.studies.shared.lists.PIECES", 20)
    seen = worded(name).view(standardised=True)
    parts = gather(seen.trace(TEXT, what="residual", positions=-1))
    found = LISTS.tops(seen, parts, K)
    usual = [gather(seen.trace(text, what="residual", positions=-1)) for text in pieces(seen)]
    for kind, part in parts.items():
        for layer in range(seen.n_layers):
            there = logits(name, torch.stack([u[kind].vectors[layer] for u in usual]))
            own = logits(name, part.vectors[[layer]])[0]
            z = (own - there.mean(0)) / there.std(0, unbiased=False)
            ids = found[kind][layer]
            rest = z.clone()
            rest[ids] = -torch.inf
            assert float(z[ids].min()) > float(rest.max()) - 1e-3


def test_readers_and_writers_are_told_apart() -> None:
    raw = model("llama")
    X = torch.randn(4, raw.d_model, generator=torch.Generator().manual_seed(0))
    lists = ListReader("x", ("residual",), lambda trace: {})
    where = torch.zeros(4, dtype=torch.long)
    parts = {"reads": PassVectors(X, where, "reading"), "writes": PassVectors(X, where)}
    found = lists.tops(raw, parts, K)
    assert torch.equal(found["reads"], project(raw, X, K, side="reading").top_ids)
    assert torch.equal(found["writes"], project(raw, X, K).top_ids)


def test_pieces_are_spread_over_the_text() -> None:
    found = pieces(model("gpt2"))
    assert 100 < len(found) <= PIECES
    assert all(0 < len(ids) <= model("gpt2").architecture.n_ctx for ids in found)


@pytest.mark.parametrize(
    "name",
    [
        *("hidden-vs-parameters", "heads", "memories", "attention-output", "own-token"),
        *("queries-keys", "regularisation-neurons", "keep-k", "isotropy", "sim-k"),
    ],
)
def test_studies_have_two_views(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard one says so, and gives other figures than the papers'."""
    monkeypatch.setattr("lexray.studies.shared.lists.PIECES", 6)
    study = find(name)
    options = {"prompts": prompts_file(tmp_path)} if study.needs_prompts else {}
    size = {} if name in ("keep-k", "isotropy", "regularisation-neurons") else {"k": K}
    raw = study(worded("llama"), **options, **size)
    standard = study(worded("llama").view("standard"), **options, **size)
    assert str(raw.source.view) == "raw"
    assert str(standard.source.view) == "standard"
    if name != "regularisation-neurons":
        assert raw.numbers != standard.numbers


def test_probabilities_have_no_view(tmp_path: Path) -> None:
    study = find("norm-filters")
    found = study(worded("gpt2").view("standard"), n=2, prompts=prompts_file(tmp_path))
    assert str(found.source.view) == "raw"
