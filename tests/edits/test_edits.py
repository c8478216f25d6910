"""Edits as values: their text is read as what was written, and nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lexray.address import Address
from lexray.edits import ablate, add, clamp, cut, parse, parse_all, patch, replace, scale
from lexray.edits.directions import Difference, OfAddress, OfWords
from lexray.edits.positions import Positions
from lexray.edits.site import Site
from lexray.edits.values import Ablate, Add, Clamp, Cut, Edit, Patch, Replace, Scale
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.zoo import build

small = st.integers(0, 99)
numbers = st.floats(allow_nan=False, allow_infinity=False)
item = st.integers(-50, 50) | st.tuples(
    st.none() | st.integers(-50, 50), st.none() | st.integers(-50, 50)
)
positions = st.lists(item, max_size=3).map(tuple).filter(lambda x: x != ((None, None),))
where = positions.map(Positions)
layers = st.builds(Address, small)
heads = st.builds(Address, small, head=small)
neurons = st.builds(Address, small, neuron=small) | st.builds(
    Address, small, expert=small, neuron=small
)
experts = st.builds(Address, small, expert=small) | st.builds(Address, small, shared=st.just(True))
writers = st.builds(Site, layers, st.sampled_from(["", "attn", "mlp"])) | st.builds(
    Site, heads | neurons | experts
)
recorded = st.builds(Site, layers, st.sampled_from(["", "pre", "attn", "mlp"])) | st.builds(
    Site, heads, st.sampled_from(["", "q", "k", "v", "pattern"])
)
texts = st.text(min_size=1)
runs = texts | st.lists(small, min_size=1).map(tuple)
vectors = (
    st.builds(OfAddress, st.builds(Address, small, neuron=small, vector=st.just("value")))
    | st.builds(OfWords, st.lists(texts, min_size=1, max_size=3).map(tuple))
    | st.builds(Difference, runs, runs)
)
stream = st.builds(Site, layers, st.sampled_from(["", "pre"]))
edits = st.one_of(
    st.builds(Ablate, writers, where, st.sampled_from(["zero", "mean"])),
    st.builds(Ablate, writers, where, runs, st.just(True)),
    st.builds(Scale, writers, where, numbers),
    st.builds(Clamp, st.builds(Site, neurons), where, numbers),
    st.builds(Add, stream, where, vectors, numbers),
    st.builds(Patch, recorded, where, runs),
    st.builds(
        Cut,
        where,
        where,
        st.lists(st.builds(Site, layers | heads), max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(
        Replace,
        st.builds(Address, small, neuron=small, vector=st.sampled_from(["key", "value"])),
        vectors,
        numbers,
    ),
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # the type checker does
@given(st.lists(edits, min_size=1, max_size=3))
def test_text_is_read_as_what_was_written(several: list[Edit]) -> None:
    assert parse_all("; ".join(map(str, several))) == tuple(several)
    assert eval(repr(several[0]), {type(several[0]).__name__: parse}) == several[0]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (ablate("L23H4"), "ablate L23H4"),
        (ablate("l23h4", positions=-1, to="mean"), "ablate L23H4[-1] to mean"),
        (ablate("L3.attn", to=[1, 2]), "ablate L3.attn to mean of [1, 2]"),
        (ablate("L5E2"), "ablate L5E2"),
        (scale("L29N50", 3), "scale L29N50 by 3"),
        (scale("L29N50", 0.5, positions=slice(2, None)), "scale L29N50[2:] by 0.5"),
        (clamp("L29N50", 8.0), "clamp L29N50 to 8"),
        (add("L29", "L29N50.value", 8), "add 8*L29N50.value@L29"),
        (add("L12.pre", [" Paris", " France"]), 'add [" Paris", " France"]@L12.pre'),
        (patch("L18.post", "The capital"), 'patch L18 from "The capital"'),
        (patch("L18H3.pattern", [5, 6], positions=[1, 2]), "patch L18H3.pattern[1,2] from [5, 6]"),
        (cut(3, -1, heads="L5H2"), "cut [3]->[-1] in L5H2"),
        (cut(3, renormalise=True), "cut [3]->[:] renormalised"),
        (replace("L12N3.value", "L29N50.value", -1), "replace L12N3.value by -1*L29N50.value"),
    ],
)
def test_how_edits_read(edit: Edit, text: str) -> None:
    assert str(edit) == text
    assert parse(text) == edit


@pytest.mark.parametrize(
    "text",
    [
        *("", "ablate", "ablate L3H", "ablate L3H2 to", "ablate L3H2 to nothing", "remove L3H2"),
        *("scale L3N1", "scale L3N1 by", "scale L3N1 by x", "clamp L3H2 to 1", "add L3N1.value"),
        *("add 8*@L3", "add L3N1.value@L3H2", "patch L3 from x", 'patch L3 from "x', "cut [3]"),
        *(
            "cut [3]->[4] in L3N1",
            "cut []->[1]",
            "ablate L3[a]",
            "ablate L3H2.q",
            "ablate L3H2 L4H1",
        ),
        *("replace L3H2 by L3N1.value", "scale L3N1 by 1e999", "ablate L3.b_out", "add [1, 2]@L3"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(LexrayError):
        parse(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ablate("L3H2", to="nothing"), "zero"),
        (lambda: ablate("L3H2", positions="1"), "positions"),
        (lambda: ablate("L3H2", positions=[]), "positions"),
        (lambda: ablate("L3H2", positions=slice(0, 4, 2)), "step"),
        (lambda: scale("L3H2", float("nan")), "finite"),
        (lambda: clamp("L3H2", 1), "one cannot clamp L3H2"),
        (lambda: add("L3.attn", torch.ones(4)), "one cannot add"),
        (lambda: add("L3", torch.ones(4, 4)), "one axis"),
        (lambda: add("L3", torch.full((4,), torch.inf)), "finite"),
        (lambda: cut(3, -1, heads="L3N4"), "heads or layers"),
        (lambda: replace("L3H2", torch.ones(4)), "only vectors"),
        (lambda: patch("L3", 1.5), "a run is a trace"),
    ],
)
def test_bad_values_are_refused(make: Any, said: str) -> None:
    with pytest.raises(LexrayError, match=said):
        make()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_module(build("llama")).view("raw")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (ablate("L2H0"), "no layer 2"),
        (ablate("L0H4"), "heads 0–3"),
        (ablate("L0N20"), "neurons 0–19"),
        (ablate("L0E1"), "no experts"),
        (ablate("L0H1", positions=7), "no position 7"),
        (ablate("L0H1", positions=slice(9, 12)), "none of the 7"),
        (add("L0", torch.ones(5)), "5 entries"),
        (add("L0", "L9N1.value"), "no layer 9"),
        (cut(9, -1), "no position 9"),
        (cut(1, -1, heads="L5"), "no layer 5"),
        (replace("L0N1.value", torch.ones(24)), "model.edited"),
        (patch("L0", [5, 6]), "2 tokens"),
    ],
)
def test_refused_before_anything_runs(
    model: Model, edit: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lexray.trace.record import run as runs

    if said != "2 tokens":  # that needs the other run to be known
        monkeypatch.setattr(runs.Runner, "_forward", lambda *_: pytest.fail("it ran"))
    with pytest.raises(LexrayError, match=said):
        model.trace([5, 11, 3, 29, 36, 7, 20], edits=[edit])


def test_a_trace_of_another_model_does_not_fit(model: Model) -> None:
    other = Model.from_module(build("gpt2")).trace([5, 11, 3])
    with pytest.raises(LexrayError, match="does not fit"):
        model.trace([5, 11, 3], edits=[patch("L0", other)])
    partial = model.trace([5, 11, 3], what="logits")
    with pytest.raises(LexrayError, match="has not kept"):
        model.trace([5, 11, 3], edits=[patch("L0H1", partial)])


def test_a_prompt_is_run_once(model: Model) -> None:
    demo = Model.from_pretrained("demo")
    text = "This movie was"
    there = demo.trace(text)
    ours = demo.trace("That story is", edits=[patch("L0.pre", text), patch("L1.attn", text)])
    assert torch.allclose(ours.final.float(), there.final.float(), atol=2e-2)
    assert str(ours.edits[0]) == f'patch L0.pre from "{text}"'
    assert "patch L0.pre" in repr(ours)
