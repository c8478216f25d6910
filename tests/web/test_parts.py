"""The small parts: markup, expressions, names, answers, the worker's desk."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexray.errors import LexrayError
from lexray.model.origin import Origin
from lexray.web.answers import Answers
from lexray.web.desk import Desk
from lexray.web.expression import name, spell
from lexray.web.library import Library, slug_of, spell_opening, words_of
from lexray.web.markup import Markup, el, join
from lexray.web.query import Query, link
from lexray.web.worker import Evaluation


@given(st.text())
def test_text_becomes_text(text: str) -> None:
    made = el("a", text, title=text)
    assert made.count("<") == 2
    assert made.count('"') == 2


def test_markup_stays_and_the_rest_does_not() -> None:
    assert join(Markup("<b>"), "<b>", None, 3, [el("i")]) == "<b>&lt;b&gt;3<i></i>"
    assert el("input", disabled=True, hidden=False, data_x=None) == "<input disabled>"


@pytest.mark.parametrize(
    "wrong",
    [{"style": "x"}, {"onclick": "x"}, {"href": "https://a"}, {"href": "//a"}, {"src": "data:,"}],
)
def test_what_the_policy_forbids_is_not_written(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"style|on|lead"):
        el("a", **wrong)


@given(st.text())
def test_texts_are_spelled_as_python_reads_them(text: str) -> None:
    assert eval(spell(text)) == text


def test_an_expression_runs_as_it_reads() -> None:
    call = name("model").item("a").get("real").call("__add__", name("n"))
    assert call.text == 'model["a"].real.__add__(n)'
    scope = {"model": {"a": 2.0}, "n": 3}
    assert call.evaluate(scope) == eval(call.text, dict(scope)) == 5
    assert call.names == {"model", "n"}
    assert name("x").call("f", [1, "two"], k=None).text == 'x.f([1, "two"], k=None)'


def test_names_of_models() -> None:
    assert slug_of("static/../..") == "model"
    library = Library.of([Origin("a/demo"), Origin("b/demo"), Origin("x/static")])
    assert [each.slug for each in library] == ["demo", "demo-2", "static-2"]
    with pytest.raises(LexrayError, match=r"nothing is served as 'c'; there is demo, demo-2"):
        library["c"]
    origin = Origin("demo", revision="main", remote=True)
    assert spell_opening(origin) == 'lx.Model.from_pretrained("demo", revision="main", remote=True)'
    assert words_of(origin) == ["demo", "--revision", "main", "--remote"]


def test_queries_have_bounds() -> None:
    query = Query({"n": "7", "long": "x" * 500, "words": "a,·b, ,c"})
    assert query.number("n", 1, 0, 9) == 7
    assert query.words("words", 3) == ["a", " b", "c"]
    for wrong in (
        lambda: query.text("long"),
        lambda: query.number("n", 1, 0, 6),
        lambda: query.words("words", 2),
        lambda: query.choice("n", ("a", "b")),
    ):
        with pytest.raises(LexrayError):
            wrong()
    assert link(("a b", "c/d"), q="é&", none=None) == "/a%20b/c%2Fd?q=%C3%A9%26"


def test_an_answer_is_worked_out_once() -> None:
    answers, begun = Answers(kept=2), []
    gate = threading.Event()

    def work() -> int:
        begun.append(1)
        gate.wait(600)
        return 7

    first, second = answers.ask("a", work), answers.ask("a", work)
    gate.set()
    assert first.result(600) == second.result(600) == 7
    assert answers.ask("a", work).result(600) == 7
    assert len(begun) == 1
    with pytest.raises(ZeroDivisionError):
        answers.ask("b", lambda: 1 // 0).result(600)
    assert answers.ask("b", lambda: 3).result(600) == 3
    answers.close()


@pytest.mark.slow
def test_the_worker_works_fails_in_words_and_is_ended() -> None:
    """A process of its own: results, errors, a run that is ended, and work after that."""
    desk = Desk({"demo": Origin("demo")})
    try:
        model = name("model")
        top = model.item("L3N17").get("value").call("top", 3)
        done = desk.submit("a", Evaluation("demo", "standard", 0, top))
        wrong = desk.submit("b", Evaluation("demo", "raw", 0, model.item("L9N1")))
        endless = Evaluation("demo", "raw", 0, model.call("relations", shuffled=10**7))
        long = desk.submit("c", endless)
        waiting = desk.submit("d", Evaluation("demo", "raw", 0, model.get("name")))
        assert desk.submit("c", endless) is long
        assert done.ended.wait(1800)
        assert done.state == "done"
        assert len(done.result.top) == 3
        assert wrong.ended.wait(1800)
        assert (wrong.state, "layers 0–3" in wrong.words) == ("failed", True)
        assert desk.find("b") is None
        desk.cancel(long)
        assert not long.ended.is_set()  # two want it
        desk.cancel(waiting)
        assert waiting.state == "cancelled"
        while long.state == "waiting":
            time.sleep(0.02)
        desk.cancel(long, gently=True)
        time.sleep(0.3)
        assert long.state == "running"  # for whoever comes back
        desk.cancel(desk.submit("c", endless))
        assert long.ended.wait(1800)
        assert long.state == "cancelled"
        after = desk.submit("e", Evaluation("demo", "raw", 0, model.get("n_layers")))
        assert after.ended.wait(1800)
        assert after.result == 4
    finally:
        desk.close()
