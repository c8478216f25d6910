"""Effects in encoder–decoders are those of whole runs with the same edits."""

from __future__ import annotations

import pytest
import torch

from lexray.edits import Edit, ablate, add, cut, patch, scale
from lexray.effects.aim import Aim, own_actions
from lexray.effects.knockout import knockout
from lexray.effects.patching import patching
from lexray.effects.removals import rerun_each
from lexray.errors import LexrayError
from lexray.trace.apply.gradients import gradients
from lexray.trace.trace import Trace
from tests.families.oracles import close
from tests.families.pairs import build_pair
from tests.trace.apply.test_pairs import EDITS, SOURCE, TARGET, every, model_of, other, trace
from tests.trace.test_pairs import case
from tests.trace.test_proof import state_of

TOKEN, AGAINST = 7, 11
some = pytest.mark.parametrize("name", ["t5", "flan-t5", "umt5", "bart", "marian"])


@pytest.mark.slow
@every
def test_part_of_a_run_is_the_whole_run(name: str) -> None:
    """In one batch and alone, from a plain run and from one that was changed itself."""
    n = model_of(name).n_layers - 1
    edits: list[Edit] = [
        ablate(f"L{n}H1"),
        ablate(f"L{n}X1"),
        ablate("enc.L1H1"),
        ablate("enc.L1H0", to="mean"),
        scale(f"L{n}.cross", 0.5, positions=[2, -1]),
        cut(0, -1, heads=f"L{n}.cross", renormalise=True),
        add("enc.L0.pre", torch.ones(model_of(name).encoder.d_model)),
        patch(f"L{n}X0", other(name), positions=[1]),
        patch("L1X0.v", other(name), positions=[1]),
        patch("enc.L0", other(name), positions=[1]),
        cut(3, heads=["enc.L1", "L0.cross"]),
    ]
    own = [ablate("enc.L0H1"), ablate("L0X1"), scale(f"L{n}.mlp", 2)]
    before = state_of(build_pair(name))
    for base in ([], own):
        run = trace(name, *base)
        aim = Aim.of(run, TOKEN, -1)
        for edit, logits in rerun_each(run, edits, aim, "testing"):
            close(logits, trace(name, *base, edit).logits[-1])
    assert state_of(build_pair(name)) == before


@some
@pytest.mark.parametrize("what", ["heads", "layers", "attention", "mlps", "positions", "neurons"])
def test_each_removal_is_a_whole_run(name: str, what: str) -> None:
    run, model = case(name)[0], model_of(name)
    found = run.effects(what, TOKEN, against=AGAINST, layers=[1] if what == "neurons" else None)
    sees = [f"enc.L{n}" for n in range(model.encoder.n_layers)]
    sees += [f"L{n}.cross" for n in range(model.n_layers)]
    for removed in list(found)[::4]:
        edit: Edit
        if what == "positions":
            of_source = removed.component.startswith("enc.")
            at = int(removed.component.removeprefix("enc."))
            edit = cut(at, heads=sees if of_source else None, renormalise=True)
        else:
            edit = ablate(removed.component)
        logits = trace(name, edit).logits[-1]
        expected = (logits[TOKEN] - logits[AGAINST]) - found.said.logit
        assert abs(removed.change - float(expected)) < 1e-3
        assert removed.rank == int((logits > logits[TOKEN]).sum()) + 1
    groups = {"positions": 2, "neurons": 2, "layers": 2, "mlps": 2}.get(what, 3)
    names = {removed.component for removed in found}
    prefixes = {("enc." in c, "X" in c or ".cross" in c) for c in names}
    assert len(prefixes) == groups
    assert len(names) == len(found)


@pytest.mark.slow
@some
def test_what_parts_added_stands_beside(name: str) -> None:
    run, model = case(name)[0], model_of(name)
    heads = run.effects("heads", TOKEN, against=AGAINST)
    direct = run.contributions(TOKEN, against=AGAINST)
    for removed in heads:
        if removed.component.startswith("enc."):
            assert removed.direct is None  # it writes into another stream
        else:
            assert removed.direct == pytest.approx(direct[removed.component], abs=1e-5)
    assert {name: grid.shape for name, grid in heads.grids.items()} == {
        "encoder": (model.encoder.n_layers, model.encoder.n_heads),
        "": (model.n_layers, model.n_heads),
        "cross-attention": (model.n_layers, model.n_heads),
    }
    assert heads.grid is not None
    assert heads.grid[1, 2] == pytest.approx(heads["L1H2"].change)
    assert heads.grids["cross-attention"][1, 2] == pytest.approx(heads["L1X2"].change)
    layers, attention, mlps = (run.effects(what, TOKEN) for what in ("layers", "attention", "mlps"))
    total = [attention["L1.attn"], attention["L1.cross"], mlps["L1.mlp"]]
    assert layers["L1"].direct == pytest.approx(sum(r.direct or 0 for r in total), abs=1e-4)
    said = heads.plot().to_svg()
    assert "cross-attention: change when removed" in said
    for shown in (str(heads), heads.to_html(), heads.to_json(), heads.to_csv()):
        assert "enc.L" in shown
    positions = run.effects("positions", TOKEN)
    assert "enc.3 " in str(positions.tables()[0].rows)
    one = run.effect("ablate L1X2; ablate enc.L0H1", TOKEN)
    after = trace(name, ablate("L1X2"), ablate("enc.L0H1")).logits[-1]
    assert one.after.logit == pytest.approx(float(after[TOKEN]), abs=1e-4)
    only = run.effects("heads", TOKEN, layers=[0], positions=[-1])
    assert all(removed.component[:2] == "L0" for removed in only)


@some
@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize("of", ["residual", "attention", "mlp", "heads", "head positions"])
def test_patching_is_a_whole_run(name: str, of: str, encoder: bool) -> None:
    check_patching(name, of, encoder)


@some
@pytest.mark.parametrize("of", ["cross", "cross heads", "cross head positions"])
def test_patching_cross_attention_is_a_whole_run(name: str, of: str) -> None:
    check_patching(name, of, False)


def check_patching(name: str, of: str, encoder: bool) -> None:
    clean, corrupted = case(name)[0], other(name)
    found = patching(clean, corrupted, TOKEN, of=of, encoder=encoder, way="noising")
    span = corrupted.logits[-1, TOKEN] - clean.logits[-1, TOKEN]
    part = {"attention": ".attn", "mlp": ".mlp", "cross": ".cross"}.get(of, "")
    last = len(found.lines) - 1
    for i in (0, last):
        for j in (1, len(found.columns) - 1):
            site = f"{found.lines[i]}{part}"
            by_head = of in ("heads", "cross heads")
            edit = (
                patch(f"{site}{found.columns[j]}", corrupted)
                if by_head
                else patch(site, corrupted, positions=j)
            )
            changed = trace(name, edit).logits[-1, TOKEN]
            share = float((changed - clean.logits[-1, TOKEN]) / span)
            assert float(found.exact[i, j]) == pytest.approx(share, abs=1e-3)
    assert found.lines[0].startswith("enc.") == encoder
    assert found.approximate is not None
    assert found.approximate.shape == found.exact.shape
    assert found.to_json()
    assert found.plot().to_svg()


@every
def test_gradients_are_slopes(name: str) -> None:
    """Against differences of whole runs, for a head of each attention."""
    run = case(name)[0]
    found = gradients(run, lambda logits: logits[-1, TOKEN], ["z", "cross_z", "resid_post"])
    assert found.source is not None
    assert found.value == pytest.approx(float(run.logits[-1, TOKEN]), abs=1e-4)
    step = 5e-4
    for site, side, key, i in (
        ("enc.L1H1", found.source, (1, "z"), 1),
        ("L0H1", found, (0, "z"), 1),
        ("L1X2", found, (1, "cross_z"), 2),
    ):
        states, slopes = side.states[key], side.slopes[key]  # type: ignore[index]
        width = model_of(name).head(site).spec.v.d_head
        own = slice(i * width, (i + 1) * width)
        slope = float((states[:, own] * slopes[:, own]).sum())
        ends = [trace(name, scale(site, 1 + s)).logits[-1, TOKEN] for s in (step, -step)]
        assert slope == pytest.approx(float(ends[0] - ends[1]) / (2 * step), abs=4e-3, rel=5e-2)


@some
def test_gradients_of_a_changed_run(name: str) -> None:
    run = trace(name, *EDITS)
    found = gradients(run, lambda logits: logits[-1, TOKEN], ["z"], own_actions(run))
    assert found.value == pytest.approx(float(run.logits[-1, TOKEN]), abs=1e-4)
    back = run.backward(TOKEN, layers=[1])
    assert back.loss == pytest.approx(-float(run.logits[-1].log_softmax(-1)[TOKEN]), abs=1e-4)
    assert len(back.imprints) == len(run)


@some
def test_knocking_out_the_source(name: str) -> None:
    run = case(name)[0]
    found = knockout(run, TOKEN, window=2, cross=True)
    assert found.change.shape == (model_of(name).n_layers, len(SOURCE))
    assert found.tokens == run.encoder.tokens
    before = float(run.logits[-1].softmax(-1)[TOKEN])
    edited = trace(name, cut(3, -1, heads=["L0.cross", "L1.cross"]))
    after = float(edited.logits[-1].softmax(-1)[TOKEN])
    assert float(found.change[0, 3]) == pytest.approx(after / before - 1, abs=1e-3)
    assert "of the source" in str(found)
    assert knockout(run, TOKEN, window=1).change.shape[1] == 1 + len(TARGET)


@some
def test_readings_are_checked_against_effects(name: str) -> None:
    """Of a text that is its own target; each part where it was strongest."""
    model = model_of(name)
    found = model.check(["L1N3", "L1H1", "L1X2"], [" law court walk", "cat and the dog"], others=1)
    assert [checked.address for checked in found.checked] == ["L1N3", "L1H1", "L1X2"]
    with pytest.raises(LexrayError, match="promises nothing of the answer"):
        model.check("enc.L1N3", ["law court walk"])
    there = model.evidence("L1N3", "law court walk the cat and the dog " * 3)
    also = model.evidence("enc.L1H1", "law court walk the cat and the dog " * 3)
    assert len(there.snippets) > 0
    assert also.source.address == "enc.L1H1"


def test_what_cannot_be_asked() -> None:
    run = case("t5")[0]
    short = model_of("t5").trace(SOURCE[:5], target=TARGET)
    with pytest.raises(LexrayError, match="sources have 8 and 5 tokens"):
        patching(run, short, TOKEN, encoder=True)
    assert patching(run, short, TOKEN, approximate=False).exact.shape[1] == 1 + len(TARGET)
    with pytest.raises(LexrayError, match="no encoder beside it"):
        patching(run.encoder, run.encoder, TOKEN, encoder=True)
    assert isinstance(run.encoder, Trace)
