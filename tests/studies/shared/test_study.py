"""Options, results and pages of studies, and what studies measure with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.studies import MODULES, find, list_studies, question
from lexray.studies.shared import measures
from lexray.studies.shared.page import page, tally
from lexray.studies.shared.study import StudyResult, Untestable
from tests.studies import counting
from tests.vocabulary.vocabularies import worded


def counted() -> StudyResult:
    return counting.STUDY(worded("gpt2"), right=False, limit=3)


@pytest.mark.parametrize("name", MODULES)
def test_studies_say_what_they_are(name: str) -> None:
    study = find(name)
    assert study.name == name
    assert question(name) == study.about.partition("\n")[0]
    assert len(study.about.split("\n\n")) >= 3, "a question, what is done, where it departs"
    assert study.title.endswith("?")
    help = [f.metadata["help"] for f in study.options.__dataclass_fields__.values()]
    assert all(text.endswith(".") for text in help)


def test_the_list() -> None:
    (table,) = list_studies().tables()
    assert [row[0] for row in table.rows] == list(MODULES)
    assert list_studies().to_dict()["studies"][0]["study"] == "keep-k"


def test_unknown_names_and_options() -> None:
    with pytest.raises(LexrayError, match=r"no study 'x'; there are keep-k"):
        find("x")
    with pytest.raises(LexrayError, match=r"no option kay; there are seed"):
        find("sim-k")(worded("gpt2"), kay=3)
    with pytest.raises(LexrayError, match="k is 0, and must be at least 1"):
        find("sim-k")(worded("gpt2"), k=0)


def test_a_result_as_json() -> None:
    data = json.loads(counted().to_json(), parse_constant=lambda name: pytest.fail(name))
    assert data["study"] == "letters"
    assert data["model"] == worded("gpt2").name
    assert data["options"] == {
        "seed": 0, "prompts": None, "right": False, "limit": 3, "letter": "a"
    }  # fmt: skip
    assert data["numbers"]["odd"] == [None, None]
    assert [f["verdict"] for f in data["findings"]] == ["holds", "not testable"]
    assert data["numbers"]["total"] == sum(row["n"] for row in data["numbers"]["rows"])


def test_a_result_as_tables() -> None:
    result = counted()
    assert "not testable" in str(result)
    assert result.to_csv().startswith("prompt,count\n")
    assert len(result.to_pandas()) == 3


def test_a_page_is_whole_and_escaped() -> None:
    text = counted().to_html()
    assert "How many &lt;i&gt;letters" in text
    assert "<i>letters" not in text
    assert "&lt;b&gt;many&lt;/b&gt;" in text
    assert "<script" not in text, "the figure is drawn already"
    assert "<svg" in text
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="?https?:', text)
    assert "counted by hand" in text


def test_a_report_names_what_cannot_be_run() -> None:
    result = counted()
    other = Untestable(find("sim-k"), "because <of> this")
    sections = [result.section, other.section]
    text = page(sections, "All & sundry", files=True)
    assert "All &amp; sundry" in text
    assert "because &lt;of&gt; this" in text
    assert "not testable: 2" in text
    assert 'href="letters.csv"' in text
    assert 'href="sim-k.csv"' not in text
    assert text.count("<figure") == 1
    lines = tally(sections).splitlines()
    assert lines == [
        "letters holds: 1, not testable: 1",
        "sim-k   not testable: 1",
    ]


def test_a_fixed_view_is_what_the_result_says() -> None:
    folded = worded("gpt2").view(folded=True)
    assert find("keep-k")(folded, n=4).source.view.folded is False
    assert find("sim-k")(folded, k=3, n=4).source.view.folded is True


def test_a_figure_as_a_file(tmp_path: Path) -> None:
    chart = counted().plot()
    for name in ("x.png", "x.pdf", "x.svg", "x.html"):
        chart.save(tmp_path / name)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    assert len((tmp_path / "x.html").read_bytes()) < 100_000
    with pytest.raises(LexrayError, match=r"x.gif: plots are saved as"):
        chart.save(tmp_path / "x.gif")


def test_deranged() -> None:
    for n in (2, 3, 10):
        order = measures.derange(n, measures.seed_generator(0, n))
        assert sorted(order.tolist()) == list(range(n))
        assert (order != torch.arange(n)).all()


def test_seeds_are_told_apart() -> None:
    drawn = {
        tuple(torch.randn(3, generator=measures.seed_generator(*key)).tolist())
        for key in [(0, "a"), (0, "b"), (1, "a"), (0, "a", 1)]
    }
    assert len(drawn) == 4


def test_shared_tokens() -> None:
    torch.manual_seed(0)
    a, b = (torch.stack([torch.randperm(20)[:7] for _ in range(30)]) for _ in range(2))
    sets = [(set(x), set(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert measures.count_shared(a, b).tolist() == [len(x & y) for x, y in sets]
    assert measures.jaccard(a, b).tolist() == pytest.approx(
        [len(x & y) / len(x | y) for x, y in sets]
    )


@pytest.mark.parametrize("k", [1, 5, 30, 37])
def test_largest_in_absolute_value(k: int) -> None:
    model = worded("gpt2")
    X = model.layers[0].values.tensor
    found = measures.largest_ids(model.space.side("value").top(X, k), k)
    want = (X @ model.W_U).abs().topk(k).indices
    assert [set(row) for row in found.tolist()] == [set(row) for row in want.tolist()]
