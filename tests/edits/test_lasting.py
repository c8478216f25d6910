"""Edits of weights: the edited model is the run with the same edit, and files hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from lexray.edits import Edit, ablate, add, parse, rank_one, replace, scale
from lexray.errors import LexrayError
from lexray.families import Experts
from lexray.model.model import Model
from tests.families.oracles import close, run
from tests.families.span import spanning
from tests.families.zoo import build
from tests.saved import save
from tests.trace.test_proof import IDS


def some_edits(model: Model) -> list[Edit]:
    neuron = "L1E0N3" if isinstance(model.layers[1].spec.ff, Experts) else "L1N3"
    mixes = "L1.mixer" if model.layers[1].spec.attention.absent else "L1.attn"
    return [ablate("L0H1"), scale(neuron, 3), scale(mixes, 0.5), scale("L0.mlp", 2)]


@spanning
def test_the_edited_model_is_the_edited_run(name: str, tmp_path: Path) -> None:
    """From disk and from a live module."""
    live = Model.from_module(build(name)).view("raw")
    edits = some_edits(live)
    if live.architecture.unrolled:
        with pytest.raises(LexrayError, match="shares its weights with other layers"):
            live.edited(edits)
        return
    expected = live.trace(IDS, edits=edits)
    ours = live.edited(edits).trace(IDS)
    close(ours.logits, expected.logits)
    close(ours[1].attn_write, expected[1].attn_write)
    save(name, tmp_path)
    disk = Model.from_pretrained(tmp_path).view("raw")
    close(disk.edited(edits).trace(IDS).logits, expected.logits)
    assert disk.edited(edits).options == disk.options


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "phi3", "falcon-new", "mixtral"])
def test_vectors_are_replaced(name: str) -> None:
    model = Model.from_module(build(name)).view("raw")
    vector = torch.linspace(-1, 1, model.d_model)
    owner = "L1E2N3" if isinstance(model.layers[1].spec.ff, Experts) else "L1N3"
    names = [f"{owner}.key", f"{owner}.value", "L0H1.Q2", "L0H2.O3", "L0H1.K1", "L0H1.V0"]
    if model[owner].W_gate is not None:
        names.append(f"{owner}.gate")
    for address in names:
        edited = model.edited([replace(address, vector, 2)])
        assert torch.equal(edited.vector(address).tensor, 2 * vector)
        touched = [
            n
            for n in model.checkpoint.names()
            if not torch.equal(model.checkpoint.read(n), edited.checkpoint.read(n))
        ]
        assert len(touched) == 1
        here = edited.checkpoint.read(touched[0]) != model.checkpoint.read(touched[0])
        assert here.sum() <= model.d_model
    part = edited.checkpoint.read(touched[0], slice(1, 3))
    assert torch.equal(part, edited.checkpoint.read(touched[0])[1:3])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_outer_product_is_added(name: str) -> None:
    model = Model.from_module(build(name)).view("raw")
    key, value = torch.randn(model.d_mlp), torch.randn(model.d_model)
    edited = model.edited([rank_one("L1.mlp", key, value)])
    close(edited.layers[1].ff.W_out, model.layers[1].ff.W_out + torch.outer(key, value))
    with pytest.raises(LexrayError, match="inputs"):
        model.edited([rank_one("L1.mlp", value, key)])


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2-moe", "gemma2"])
def test_transformers_opens_what_is_saved(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "base")
    model = Model.from_pretrained(tmp_path / "base").view("raw")
    edited = model.edited(some_edits(model))
    folder = edited.save(tmp_path / "edited")
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    close(run(theirs, torch.tensor([IDS])).logits[0], edited.trace(IDS).logits)
    assert Model.from_pretrained(folder).vocabulary.text(3) == "word3"
    with pytest.raises(LexrayError, match="not empty"):
        edited.save(folder)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_peft_reads_the_adapter(name: str, tmp_path: Path) -> None:
    module = save(name, tmp_path / "base")
    model = Model.from_pretrained(tmp_path / "base").view("raw")
    vector = torch.linspace(-1, 1, model.d_model)
    edits: list[Edit] = [ablate("L0H1"), scale("L1N3", 3), replace("L1N4.value", vector)]
    edited = model.edited(edits)
    folder = edited.save_lora(tmp_path / "adapter")
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base, str(folder)).eval()
    logits = edited.trace(IDS).logits
    close(run(theirs, torch.tensor([IDS])).logits[0], logits)
    again = Model.from_pretrained(tmp_path / "base", adapter=folder).view("raw")
    close(again.trace(IDS).logits, logits)
    assert (run(module, torch.tensor([IDS])).logits[0] - logits).abs().max() > 1e-3
    whole = model.edited([scale("L1.mlp", 2)])
    with pytest.raises(LexrayError, match="no low-rank change"):
        whole.save_lora(tmp_path / "other")
    with pytest.raises(LexrayError, match="no edits to save"):
        model.save_lora(tmp_path / "other")


def test_the_tokenizer_of_a_gguf_file_is_written_along(tmp_path: Path) -> None:
    demo = Model.from_pretrained("demo")
    folder = demo.edited(["scale L3N17 by 0"]).save(tmp_path / "demo")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "This movie was great"
    assert tokenizer.encode(text) == demo.vocabulary.encode(text, special=True)


@pytest.mark.slow
def test_a_fact_is_written() -> None:
    model = Model.from_pretrained("demo", dtype=torch.float32)
    prompt, answer = "This movie was a very", " bad"
    edit = parse(f'rank_one L1.mlp from "{prompt}" to "{answer}"')
    text = "The film was good. A story of a man and his family in a small town. " * 3
    edited = model.edited([edit], text=text)
    token = model.space.id(answer)
    before = model.trace(prompt).logits[-1].softmax(-1)[token]
    after = edited.trace(prompt).logits[-1].softmax(-1)[token]
    assert after > 0.5 > before
    delta = (edited.layers[1].ff.W_out - model.layers[1].ff.W_out).double()
    sizes = torch.linalg.svdvals(delta)
    assert sizes[1] < 0.05 * sizes[0]  # rank one, but for the rounding of the stored halves
    other = "She went to the"
    moved = (edited.trace(other).logits[-1] - model.trace(other).logits[-1]).abs().max()
    here = (edited.trace(prompt).logits[-1] - model.trace(prompt).logits[-1]).abs().max()
    assert moved < 0.5 * here


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([], "nothing to change"),
        ([add("L0", torch.ones(24))], "changes a run"),
        ([ablate("L0H1", to="mean")], "no positions"),
        ([scale("L0H1", 2, positions=1)], "no positions"),
        ([replace("L0N1.value", torch.ones(5))], "24 entries|5 entries"),
        ([replace("L9N1.value", torch.ones(24))], "no layer 9"),
        ([rank_one("L0.attn", prompt="a", answer="b")], "dense feed-forwards"),
    ],
)
def test_what_cannot_last(edits: list[Edit], said: str) -> None:
    model = Model.from_module(build("llama")).view("raw")
    with pytest.raises(LexrayError, match=said):
        model.edited(edits)


def test_facts_are_whole() -> None:
    assert str(rank_one("L1.mlp", prompt="a b", answer=" c", subject="a")) == (
        'rank_one L1.mlp from "a b" to " c" about "a"'
    )
    for wrong in ({"prompt": "a"}, {}, {"prompt": "a", "answer": "b", "subject": "z"}):
        with pytest.raises(LexrayError):
            rank_one("L1.mlp", **wrong)
