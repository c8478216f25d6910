"""What is particular to encoders: shared layers, narrow embeddings, heads that are no decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ElectraConfig, ElectraForPreTraining

from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.oracles import close, run
from tests.families.zoo import BERT, DEBERTA, build
from tests.saved import save
from tests.vocabulary.vocabularies import worded

IDS = [5, 11, 3, 29, 36, 7, 20]


@pytest.mark.parametrize("embedding_size", [16, 24])
def test_a_discriminator_is_read_through_the_input_embedding(
    tmp_path: Path, embedding_size: int
) -> None:
    torch.manual_seed(0)
    module = ElectraForPreTraining(ElectraConfig(**BERT, embedding_size=embedding_size)).eval()
    module.save_pretrained(tmp_path)
    for model in (Model.from_module(module), Model.from_pretrained(tmp_path)):
        raw = model.view("raw")
        torch.testing.assert_close(raw.W_U, raw.W_E.T)
        with torch.no_grad():
            states = module(torch.tensor([IDS]), output_hidden_states=True).hidden_states
        trace = raw.trace(IDS)
        close(trace.final, states[-1][0])
        close(trace[1].resid_pre, states[1][0])
        with pytest.raises(LexrayError, match="no language-model head"):
            _ = trace.logits


def test_the_newer_head_of_deberta_needs_no_word_in_the_config(tmp_path: Path) -> None:
    save("deberta-v3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["legacy"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = run(build("deberta-v3"), torch.tensor([IDS])).logits[0]
    close(Model.from_pretrained(tmp_path).view("raw").trace(IDS).logits, theirs)


@pytest.mark.parametrize(
    ("entries", "said"),
    [({"conv_kernel_size": 3}, "a convolution"), ({"embedding_size": 16}, "another width")],
)
def test_what_deberta_has_and_is_not_read(entries: dict[str, Any], said: str) -> None:
    model = Model.from_module(build("deberta-v2"))
    with pytest.raises(LexrayError, match=said):
        model.family.architecture(
            {"model_type": "deberta-v2", **DEBERTA, **entries}, model.checkpoint.names()
        )


def test_layers_that_share_are_listed_once_and_traced_one_by_one() -> None:
    model = worded("albert").view("raw")
    assert model.n_layers == 3
    found = [hit.address for hit in model.lookup("law", among="values").top(200)]
    assert found
    assert {address.partition("N")[0] for address in found} == {"L0"}
    assert torch.equal(model["L2N3"].W_out, model["L0N3"].W_out)
    assert model.info().traits["layers"] == "3, which share the weights of 1"
    trace = model.trace(IDS, edits=["ablate L1N3"])
    plain = model.trace(IDS)
    assert torch.equal(trace[0].mlp_write, plain[0].mlp_write)
    assert not trace[1].coefficients[:, 3].any()
    assert trace[2].coefficients[:, 3].any()


def test_a_file_of_shared_layers_is_saved_as_it_was(tmp_path: Path) -> None:
    save("albert-groups", tmp_path / "one")
    model = Model.from_pretrained(tmp_path / "one")
    again = Model.from_pretrained(model.save(tmp_path / "two"))
    assert again.checkpoint.names() == model.checkpoint.names()
    assert not model.module().training
