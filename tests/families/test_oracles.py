"""Every family against transformers' own modules, from the saved file and from the live module."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from lexray.families import families
from lexray.model.model import Model
from tests.families.oracles import check_all
from tests.families.pairs import PAIRS
from tests.families.test_multimodal import CASES
from tests.families.zoo import VARIANTS, Variant, build


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture(scope="module")
def module(variant: Variant) -> PreTrainedModel:
    return build(variant.name)


@pytest.fixture(scope="module")
def models(module: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("model")
    module.save_pretrained(folder)
    return {
        "live": Model.from_module(module).view("raw"),
        "disk": Model.from_pretrained(folder).view("raw"),
    }


@pytest.mark.slow
def test_oracles(
    variant: Variant,
    module: PreTrainedModel,
    models: dict[str, Model],
    oracle_log: dict[str, list[str]],
    subtests: pytest.Subtests,
) -> None:
    log = oracle_log.setdefault(variant.name, [])
    for source, model in models.items():
        check_all(subtests, log, module, models["live"], model, source=source)


def test_every_family_has_oracles() -> None:
    """A family that nobody built a tiny model of is a family nobody has checked."""
    covered = {v.model_type for v in (*VARIANTS, *PAIRS)}
    inside = {case[1] for case in CASES.values()}
    unchecked = [
        f.name
        for f in families().values()
        if not covered & set(f.model_types) and f.title not in inside
    ]
    assert not unchecked
