"""Passes that begin where the last ones had come to, against passes of the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.model.model import Model
from lexray.trace.evidence.onward import REACHED, run_onward
from lexray.trace.record.pair import record_text
from tests.families.zoo import VARIANTS, build

PIECES = [list(range(2, 13)), list(range(20, 29))]


@pytest.mark.parametrize("name", [v.name for v in VARIANTS])
def test_each_layer_is_what_a_whole_pass_gives(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path)
    what = ("attention", "residual", "heads", "mlp")
    last = model.n_layers - 1
    for layer in (0, 0, last, last):
        for ids, onward in zip(PIECES, run_onward(model, PIECES, layer, what), strict=True):
            whole = record_text(model, ids, layers=[layer], what=what)
            own = {key for key in whole.parts if key[0] == layer}
            assert own
            for key in own:
                assert torch.equal(onward.parts[key], whole.parts[key]), key
        reached = REACHED.peek(model.cache, None)
        assert reached is not None
        assert reached.layer == layer


def test_passes_really_begin_there(tmp_path: Path) -> None:
    """The layer is given what was kept, not what the layers before it would give."""
    build("llama").save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path)
    list(run_onward(model, PIECES, 1, ("residual",)))
    reached = REACHED.peek(model.cache, None)
    assert reached is not None
    for states in reached.states:
        states.zero_()
    for recording in run_onward(model, PIECES, 1, ("residual",)):
        assert (recording[1].resid_pre == 0).all()


def test_another_text_and_an_earlier_layer_begin_anew(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path)
    list(run_onward(model, PIECES, 1, ("residual",)))
    for pieces, layer in (([[5, 6, 7]], 1), (PIECES, 0)):
        (first, *_) = run_onward(model, pieces, layer, ("residual",))
        whole = record_text(model, pieces[0], layers=[layer], what=("residual",))
        torch.testing.assert_close(first[layer].resid_post, whole[layer].resid_post)
