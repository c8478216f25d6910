"""GGUF files of encoders, which hold their body alone, and of encoder–decoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.gguf.names import hf_named
from lexray.model.model import Model
from tests.families import zoo
from tests.families.gguf.writer import convert
from tests.families.oracles import close
from tests.families.pairs import PAIRS, make_pair

BODIES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "distilbert": "DistilBertModel",
    "eurobert": "EuroBertModel",
    "modernbert": "ModernBertModel",
    "nomic-bert": "NomicBertModel",
    "gemma3": "Gemma3TextModel",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "gemma3": {  # EmbeddingGemma
        "use_bidirectional_attention": True,
        "query_pre_attn_scalar": 10,
        "num_hidden_layers": 7,
        "layer_types": None,
    }
}
IDS = [5, 11, 3, 29, 36, 7]
SOURCE, TARGET = [5, 11, 3, 29, 36, 7, 20, 8], [14, 9, 31, 6]


def body(name: str) -> PreTrainedModel:
    """The zoo's variant without a head, as it is converted."""
    variant = zoo.find(name)
    options = variant.options | OPTIONS.get(name, {})
    return zoo.make(replace(variant, unlisted=BODIES[name], options=options))


def open_file(module: PreTrainedModel, folder: Path) -> Model:
    file = convert(module).save(folder / "model.gguf")
    return Model(hf_named(GGUFCheckpoint(file))).view("raw")


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_encoders(name: str, tmp_path: Path) -> None:
    """Every tensor of the saved folder but the pooler's, and the same stream after every layer; a
    RoBERTa's as a BERT's, whose positions begin with the first that a token has."""
    module: Any = body(name)
    module.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    model = open_file(module, tmp_path)
    kept = {name: x for name, x in saved.items() if not name.startswith("pooler.")}
    assert set(model.checkpoint.names()) == set(kept)
    offset = module.config.pad_token_id + 1 if name == "roberta" else 0
    for key, tensor in kept.items():
        whole = tensor[offset:] if "position_embeddings" in key else tensor
        torch.testing.assert_close(model.checkpoint.read(key), whole, atol=1e-6, rtol=0)
    with torch.no_grad():
        out = module(input_ids=torch.tensor([IDS]), output_hidden_states=True)
    trace = model.trace(IDS)
    for layer, theirs in enumerate(out.hidden_states):
        ours = trace.normed if layer == model.n_layers else trace[layer].resid_pre
        close(ours, theirs[0])


def pair(name: str, **options: Any) -> PreTrainedModel:
    """llama.cpp takes the distance from which on all are alike, and the gates' activation, for
    those that T5 has."""
    variant = next(v for v in PAIRS if v.name == name)
    own = {"relative_attention_max_distance": 128, **options}
    return make_pair(replace(variant, options=variant.options | own))


@pytest.mark.parametrize("name", ["t5", "flan-t5", "mt5", "umt5"])
def test_encoder_decoders(name: str, tmp_path: Path) -> None:
    """Every tensor, and transformers' own logits."""
    module: Any = pair(name, **{"feed_forward_proj": "gated-gelu"} if name == "umt5" else {})
    if name in ("flan-t5", "mt5"):  # which have an output embedding of their own
        module.lm_head.weight = nn.Parameter(torch.randn_like(module.lm_head.weight))
    module.save_pretrained(tmp_path)
    model = open_file(module, tmp_path)
    saved = {
        name: x
        for name, x in load_file(tmp_path / "model.safetensors").items()
        if name not in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    }
    assert set(model.checkpoint.names()) == set(saved)
    for key, tensor in saved.items():
        assert torch.equal(model.checkpoint.read(key), tensor), key
    trace = model.trace(SOURCE, target=TARGET)
    with torch.no_grad():
        out = module(input_ids=torch.tensor([SOURCE]), decoder_input_ids=trace.ids[None])
    close(trace.logits, out.logits[0])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("block_count", 4000, "do not fit together"),
        ("attention.head_count", 5, "should have the shape"),
        ("attention.relative_buckets_count", None, "lacks the metadata"),
        ("decoder_block_count", 4, "dec.|decoder"),
    ],
)
def test_sizes_of_pairs_that_do_not_fit_are_refused(
    key: str, value: int | None, words: str, tmp_path: Path
) -> None:
    whole = convert(pair("t5"))
    whole.metadata.pop(whole.key(key), None)
    if value is not None:
        whole.metadata[whole.key(key)] = value
    with pytest.raises(LexrayError, match=words):
        Model(hf_named(GGUFCheckpoint(whole.save(tmp_path / "model.gguf"))))


def test_unknown_tensors_of_a_stack_are_refused(tmp_path: Path) -> None:
    whole = convert(pair("t5"))
    whole.tensors["dec.blk.0.cross_attn_rel_b.weight"] = torch.zeros(6, 3)  # of the first T5
    hf_named(GGUFCheckpoint(whole.save(tmp_path / "old.gguf")))
    whole.tensors["enc.blk.0.attn_gate.weight"] = torch.zeros(3, 3)
    with pytest.raises(LexrayError, match=r"enc\.blk\.0\.attn_gate\.weight"):
        hf_named(GGUFCheckpoint(whole.save(tmp_path / "model.gguf")))
