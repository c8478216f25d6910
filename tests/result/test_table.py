"""One description, many renderings: nothing in a token is ever taken for markup."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lexray.errors import LexrayError
from lexray.result.format import show_bytes, show_number
from lexray.result.table import Result, Table, shorten

TOKENS = (
    "<script>alert(1)</script>",
    "[bold]x[/bold]",
    "[/]",
    ":smile:",
    '"a",b',
    "·Tokyo",
    "&lt;",
)


@dataclass(frozen=True)
class Example(Result):
    shown: tuple[Table, ...]

    def tables(self) -> list[Table]:
        return list(self.shown)

    def to_dict(self) -> dict[str, Any]:
        return {"rows": [list(row) for table in self.shown for row in table.rows]}


def example(*tokens: str, **options: Any) -> Example:
    rows = tuple((i, token, 1.5 * i - 2) for i, token in enumerate(tokens or TOKENS))
    return Example((Table(("rank", "token", "score"), rows, **options),))


class Reader(HTMLParser):
    """What a browser would make of a page: its tags with attributes, and its cells' text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.styles: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")
            self.styles.append(dict(attrs).get("style") or "")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["td"]:
            self.cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")


# ---------------------------------------------------------------------- text


def test_text_shows_tokens_as_they_are() -> None:
    text = str(example())
    for token in TOKENS:
        assert token in text


def test_titles_notes_and_columns_are_no_markup_either() -> None:
    table = Table(("[red]a", "b"), (("x", 1),), title="[bold]t[/bold]", note="[link=x]n[/link]")
    text, page = str(Example((table,))), Example((table,))._repr_html_()
    for part in ("[red]a", "[bold]t[/bold]", "[link=x]n[/link]"):
        assert part in text
        assert part in page


def test_text_has_no_trailing_blanks_and_no_colours() -> None:
    text = str(example(title="top"))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_numbers_are_aligned_to_the_right() -> None:
    lines = [line for line in str(example("a", "b", "c")).splitlines() if "." in line]
    assert [line.rstrip("│ ").split()[-1] for line in lines] == ["-2.000", "-0.500", "1.000"]
    assert len({line.rstrip("│ ").rindex(".") for line in lines}) == 1


def test_rich_shows_a_result_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as captured:
        console.print(example())
    assert "[bold]x[/bold]" in captured.get()


def test_long_cells_are_folded_not_cut() -> None:
    long = "x" * 300
    assert str(example(long)).count("x") == 300


# ---------------------------------------------------------------------- HTML


@pytest.mark.slow
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"])),
        min_size=1,
        max_size=4,
    )
)
def test_html_cells_hold_exactly_the_tokens(tokens: list[str]) -> None:
    reader = Reader(example(*tokens)._repr_html_())
    assert reader.cells[1::3] == tokens
    allowed = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert {tag.removeprefix("/") for tag in reader.tags} <= allowed


def test_a_page_has_no_scripts_and_no_links() -> None:
    page = example(title="<script>t</script>", note="</p><img src=x>").to_html()
    reader = Reader(page)
    assert not {"script", "img", "a", "link", "iframe"} & set(reader.tags)
    assert page.startswith("<!doctype html>")
    assert 'charset="utf-8"' in page
    assert "http" not in page.replace("http-equiv", "")


def test_bars_are_as_long_as_numbers_are_large() -> None:
    rows = (("a", 4.0), ("b", -2.0), ("c", None), ("d", 0.0))
    table = Table(("token", "score"), rows, bars=frozenset({"score"}))
    styles = Reader(Example((table,))._repr_html_()).styles[1::2]
    assert [s.split("%")[0].split()[-1] for s in styles] == ["100.0", "50.0", "0.0", "0.0"]
    assert styles[0].split("(")[1] != styles[1].split("(")[1], "another colour for what is negative"
    zeros = Table(("score",), ((0.0,),), bars=frozenset({"score"}))
    assert "0.0%" in Example((zeros,))._repr_html_()


# ---------------------------------------------------------------------- for programs


def test_csv_is_read_back() -> None:
    tokens = (*TOKENS, "line\nbreak", " ")
    rows = list(csv.reader(io.StringIO(example(*tokens).to_csv())))
    assert rows[0] == ["rank", "token", "score"]
    assert [row[1] for row in rows[1:]] == list(tokens)
    assert float(rows[3][2]) == 1.0


def test_csv_numbers_are_not_rounded() -> None:
    table = Table(("score",), ((0.1234567890123,), (None,), (True,)))
    assert Example((table,)).to_csv() == 'score\n0.1234567890123\n""\nTrue\n'


def test_tables_alike_share_a_header() -> None:
    one, two = (Table(("a", "b"), ((i, i),)) for i in range(2))
    other = Table(("c",), ((5,),))
    assert Example((one, two, other)).to_csv() == "a,b\n0,0\n1,1\nc\n5\n"


def test_json_is_the_dict() -> None:
    text = example().to_json(state=False)
    assert json.loads(text) == example().to_dict()
    assert "·Tokyo" in text


def test_pandas() -> None:
    frame = example().to_pandas()
    assert list(frame.columns) == ["rank", "token", "score"]
    assert tuple(frame["token"]) == TOKENS
    assert frame["score"].dtype == float
    assert len(Example((*example().shown, *example().shown)).to_pandas()) == 2 * len(TOKENS)
    assert Example(()).to_pandas().empty


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.000"),
        (-0.0, "0.000"),
        (0.5, "0.500"),
        (-12.34567, "-12.346"),
        (0.0012, "0.00120"),
        (-0.0567, "-0.0567"),
        (1234.5678, "1235"),
        (99_999.0, "99999"),
        (123_456.0, "1.23e+05"),
        (1.2e-5, "1.20e-05"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_show_number(value: float, shown: str) -> None:
    assert show_number(value) == shown


@given(st.floats(-1e300, 1e300))
def test_shown_numbers_are_near(value: float) -> None:
    assert float(show_number(value)) == pytest.approx(value, rel=6e-3)
    assert len(show_number(value)) <= 10


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (3_400_000, "3.4 MB"),
        (999_999_999, "1 GB"),
        (548_105_171, "548 MB"),
        (12_345_678_901, "12.3 GB"),
        (1_300_000_000_000, "1.3 TB"),
        (4e15, "4000 TB"),
    ],
)
def test_show_bytes(n: float, shown: str) -> None:
    assert show_bytes(n) == shown


@pytest.mark.parametrize(
    ("cell", "shown"), [(None, "–"), (True, "yes"), (False, "no"), (7, "7"), (0.25, "0.250")]
)
def test_cells(cell: Any, shown: str) -> None:
    page = Example((Table(("x",), ((cell,),)),))._repr_html_()
    assert Reader(page).cells == [shown]


def test_long_tables_are_cut_in_notebooks_and_whole_elsewhere() -> None:
    rows = tuple((i, f"word{i}") for i in range(1000))

    class Long(Result):
        def tables(self) -> list[Table]:
            return [Table(("n", "word"), rows, "long", "a note")]

        def to_dict(self) -> dict[str, Any]:
            return {}

    shown = Long()._repr_html_()
    assert shown.count("<tr>") == 1 + 200
    assert "The first 200 of 1,000 rows" in shown
    assert "a note" in shown
    assert Long().to_html().count("<tr>") == 1 + 1000
    assert len(Long().to_csv().splitlines()) == 1 + 1000
    short = Table(("n",), ((1,),))
    assert shorten(short) is short


def test_columns_for_other_tables(tmp_path: Path) -> None:
    """Arrow, polars and Parquet hold what pandas does."""
    pyarrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    one = Table(("token", "score", "mixed"), (("=a", 1.5, 1), ("b", 2, None)))
    two = Table(("token", "other"), (("c", True),))
    result = Example((one, two))
    columns = {
        "token": ["=a", "b", "c"],
        "score": [1.5, 2.0, None],
        "mixed": [1, None, None],
        "other": [None, None, True],
    }
    assert result.to_arrow().to_pydict() == columns
    assert result.to_polars().to_dict(as_series=False) == columns
    result.to_parquet(tmp_path / "x.parquet")
    assert polars.read_parquet(tmp_path / "x.parquet").to_dict(as_series=False) == columns
    assert pyarrow.table(result.to_arrow()).num_rows == len(result.to_pandas())


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_package_that_is_not_there(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    way = {"pyarrow": "arrow"}.get(package, package)
    with pytest.raises(LexrayError, match=rf"pip install {package}"):
        getattr(example(), f"to_{way}")()


def test_tables_of_a_page_stand_beside_each_other_where_they_fit() -> None:
    @dataclass(frozen=True)
    class Some(Result):
        titles: tuple[str, ...]

        def tables(self) -> list[Table]:
            return [Table(("token",), (("a",),), title) for title in self.titles]

        def to_dict(self) -> dict[str, Any]:
            return {"titles": self.titles}

    both = Some(("first", "second")).to_html().partition("<body")[2]
    assert both.count('<div class="beside">') == 1
    assert both.index("first") < both.index("</div></div>") < both.index("second")
    assert 'class="beside"' not in Some(("first",)).to_html().partition("<body")[2]
