"""The models of a comparison: the second is opened and read as the first one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.compare.open import open_both, open_other
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.saved import save


def test_the_second_model_is_opened_as_the_first_one_is(tmp_path: Path) -> None:
    save("llama", tmp_path)
    first = Model.from_pretrained(tmp_path, dtype=torch.float64).view(folded=True, centred=True)
    _, second = open_both(first, str(tmp_path))
    assert (second.dtype, second.device, second.options) == (
        first.dtype,
        first.device,
        first.options,
    )
    assert open_both(first, second)[1] is second, "a model is taken as it is"


def test_options_of_its_own(tmp_path: Path) -> None:
    save("llama", tmp_path)
    first = Model.from_pretrained(tmp_path, dtype=torch.float64)
    other = open_other(
        first, tmp_path, dtype=torch.bfloat16, family="mistral", config={"rope_theta": 5.0}
    )
    assert other.dtype == torch.bfloat16
    assert other.family.name == "mistral"
    assert other.config["rope_theta"] == 5.0
    assert first.config.get("rope_theta") != 5.0
    with pytest.raises(LexrayError, match="no-such-adapter"):
        open_other(first, tmp_path, adapter=tmp_path / "no-such-adapter")
