"""Effects are those of whole runs with the same edits, however few layers are run again."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from lexray.edits import Edit, ablate, add, cut, patch, scale
from lexray.effects.aim import Aim, own_actions
from lexray.effects.removals import Effects, rerun_each
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.apply.rerun import Rerun
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.trace import Trace
from tests.families.oracles import close
from tests.families.span import every_variant
from tests.trace.test_proof import IDS, case, state_of

TARGET, AGAINST = 7, 11


@cache
def demo() -> Trace:
    return Model.from_pretrained("demo", dtype=torch.float32).trace("This movie was a very")


@every_variant
def test_part_of_a_run_is_the_whole_run(name: str) -> None:
    """Edits of every kind at the last layer, run from there, in one batch and alone."""
    c = case(name)
    n = c.model.n_layers - 1
    edits: list[Edit] = [
        ablate(f"L{n}H1"),
        ablate(f"L{n}.mlp"),
        scale(f"L{n}", 0.5, positions=[2, -1]),
        cut(0, -1, heads=f"L{n}", renormalise=True),
        add(f"L{n}.pre", torch.ones(c.model.d_model)),
        patch(f"L{n}H0", c.trace, positions=[1]),
        ablate(f"L{n}H2", to="mean"),
    ]
    aim = Aim.of(c.trace, TARGET, -1)
    before = state_of(c.module)
    for edit, logits in rerun_each(c.trace, edits, aim, "testing"):
        close(logits, c.model.trace(IDS, edits=[edit]).logits[-1])
    assert state_of(c.module) == before


@every_variant
def test_a_run_that_was_changed_itself_is_run_on(name: str) -> None:
    c = case(name)
    n = c.model.n_layers - 1
    own = [ablate("L0H1"), add(f"L{n}.pre", torch.ones(c.model.d_model)), scale(f"L{n}.mlp", 2)]
    trace = c.model.trace(IDS, edits=own)
    more = ablate(f"L{n}H0")
    actions = ReadyEdits.check(c.model, [more], lambda run: pytest.fail("ran")).actions(len(IDS))
    (found,) = Rerun(trace, own_actions(trace)).logits([actions], -1)
    close(found, c.model.trace(IDS, edits=[*own, more]).logits[-1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral", "bert", "falcon-rw"])
@pytest.mark.parametrize("what", ["heads", "layers", "attention", "mlps", "positions", "neurons"])
def test_each_removal_is_a_whole_run(name: str, what: str) -> None:
    c = case(name)
    layers = [1] if what == "neurons" else None
    found = c.trace.effects(what, TARGET, against=AGAINST, layers=layers)
    for removed in list(found)[::3]:
        at = int(removed.component) if what == "positions" else None
        edit = ablate(removed.component) if at is None else cut(at, renormalise=True)
        logits = c.model.trace(IDS, edits=[edit]).logits[-1]
        expected = (logits[TARGET] - logits[AGAINST]) - found.said.logit
        assert abs(removed.change - float(expected)) < 1e-3
        assert abs(removed.probability - float(logits.softmax(-1)[TARGET])) < 1e-4
        assert removed.rank == int((logits > logits[TARGET]).sum()) + 1
    one = c.trace.effect(ablate("L1H0"), TARGET, against=AGAINST)
    if what == "neurons":
        direct = c.trace.contributions(TARGET, against=AGAINST)
        sums = {leaf.component: leaf.contribution for leaf in direct}
        assert all(abs(sums.get(r.component, 0.0) - (r.direct or 0)) < 1e-5 for r in found)
    if what == "heads":
        assert abs(one.change - found["L1H0"].change) < 1e-4
        direct = c.trace.contributions(TARGET, against=AGAINST)
        assert all(abs(direct[r.component] - (r.direct or 0)) < 1e-5 for r in found)
        assert len(found) == c.model.n_layers * c.model.n_heads


@pytest.mark.slow
def test_layers_add_up_directly() -> None:
    trace = demo()
    found = trace.effects("layers", " good")
    parts = [trace.effects(what, " good") for what in ("attention", "mlps")]
    for n, removed in enumerate(found):
        halves = [part[n].direct for part in parts]
        assert removed.direct == pytest.approx(sum(halves), abs=1e-4)


def test_one_change() -> None:
    trace = demo()
    found = trace.effect("ablate L2H1; scale L3.mlp by 0.5", " good", k=4)
    after = trace.model.trace(  # type: ignore[attr-defined]
        trace.ids, edits=["ablate L2H1", "scale L3.mlp by 0.5"]
    ).logits[-1]
    before = trace.logits[-1]
    token = trace.model.space.id(" good")
    assert found.change == pytest.approx(float(after[token] - before[token]), abs=1e-3)
    moved = after.softmax(-1) - before.softmax(-1)
    assert found.rose[0].token.id == int(moved.argmax())
    assert found.fell[0].token.id == int(moved.argmin())
    assert found.rose[0].change == pytest.approx(float(moved.max()), abs=1e-5)
    assert len(found.rose) == len(found.fell) == 4
    assert found.edits == ("ablate L2H1", "scale L3.mlp by 0.5")
    for shown in (str(found), found.to_html(), found.to_json(), found.to_csv()):
        assert "good" in shown or "before" in shown


def test_a_map_shows_itself() -> None:
    found = demo().effects("heads", " good")
    assert "·good" in str(found)
    assert len(found.to_csv().splitlines()) == len(found) + 1
    grid = found.grid
    assert grid is not None
    assert grid.shape == (demo().model.n_layers, demo().model.n_heads)
    assert grid[2, 1] == pytest.approx(found["L2H1"].change)
    assert found.to_dict()["removed"][0]["component"] == "L0H0"
    assert found.plot().panels[0].title == "change when removed"
    assert len(found.plot().panels) == len(demo().effects("positions", " good").plot().panels) == 2
    assert "L2H1" in found.plot().to_svg()
    with pytest.raises(LexrayError, match="not removed"):
        found["L99H0"]
    assert abs(found.by_change()[0].change) == max(abs(r.change) for r in found)


def test_the_mean_over_prompts() -> None:
    model = demo().model
    traces = [model.trace(text) for text in ("This movie was", "The film is")]  # type: ignore[attr-defined]
    each = [trace.effects("heads", " good") for trace in traces]
    both = Effects.mean(each)
    assert both.n_prompts == 2
    assert both["L2H1"].change == pytest.approx(sum(e["L2H1"].change for e in each) / 2)
    with pytest.raises(LexrayError, match="same components"):
        Effects.mean([each[0], traces[0].effects("layers", " good")])


def test_what_cannot_be_asked() -> None:
    trace = demo()
    with pytest.raises(LexrayError, match="effects are those of heads"):
        trace.effects("souls")
    with pytest.raises(LexrayError, match="nothing to change"):
        trace.effect([])
    with pytest.raises(LexrayError, match="no layer"):
        trace.effect("ablate L99H0")
    some = trace.model.trace("This movie was", positions=-1)  # type: ignore[attr-defined]
    with pytest.raises(LexrayError, match="at all positions"):
        some.effects("heads")
    with pytest.raises(LexrayError, match="to= has no use"):
        trace.effects("positions", to="mean")


def test_halves_are_warned_of() -> None:
    trace = Model.from_pretrained("demo").trace("This movie was")
    assert "rounding" in str(trace.effect("ablate L2H1"))


def test_generation_with_both_probabilities() -> None:
    model = demo().model
    prompt, edits = "This movie was", ["scale L2.mlp by 0", 'add 90*[" film"]@L3[-1]']
    found = model.generate(prompt, 4, edits)  # type: ignore[attr-defined]
    plain = model.trace(prompt, new_tokens=4)  # type: ignore[attr-defined]
    changed = model.trace(prompt, new_tokens=4, edits=edits)  # type: ignore[attr-defined]
    assert [g.token.id for g in found.plain] == plain.ids[plain.n_prompt :].tolist()
    assert [g.token.id for g in found.changed] == changed.ids[changed.n_prompt :].tolist()
    p = changed.logits.softmax(-1)
    for i, g in enumerate(found.changed):
        assert g.changed == pytest.approx(float(p[changed.n_prompt - 1 + i, g.token.id]), abs=1e-5)
    q = plain.logits.softmax(-1)
    assert found.plain[2].plain == pytest.approx(
        float(q[plain.n_prompt + 1, found.plain[2].token.id]), abs=1e-5
    )
    assert found.text != found.plain_text
    assert len(found.to_csv().splitlines()) == 9
    alone = model.generate(prompt, 2)  # type: ignore[attr-defined]
    assert alone.plain == alone.changed
    assert "changed" not in str(alone)
    with pytest.raises(LexrayError, match="at least 1"):
        model.generate(prompt, 0)  # type: ignore[attr-defined]
    with pytest.raises(LexrayError, match="one prompt"):
        model.generate([prompt, prompt], 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("edit", ["ablate L9H0", "ablate L2H1[7]", "add L9N1.value@L2"])
def test_nothing_is_generated_for_a_bad_edit(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lexray.trace.record import run as runs

    monkeypatch.setattr(runs.Runner, "_step", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(LexrayError, match=r"there is no|no position"):
        demo().model.generate("This movie was", 3, [edit])  # type: ignore[attr-defined]
