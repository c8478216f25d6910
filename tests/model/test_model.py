"""Opening models from everywhere, reading no more than needed, and seeing them in other ways."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import (
    GPT2ForSequenceClassification,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

import lexray as lx
from lexray.checkpoint.hub import remote
from lexray.model.model import Model
from tests.checkpoint.hub.server import FakeHub, serve
from tests.families.zoo import build
from tests.saved import save, weight, words, write_tokenizer


def header(folder: Path) -> int:
    """The length of a safetensors header, with the eight bytes that say it."""
    return 8 + int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")


# ---------------------------------------------------------------------- lazily


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_opening_reads_headers_only(saved: Path, name: str) -> None:
    model = Model.from_pretrained(saved / name).view("raw")
    assert model.n_layers == 2
    assert model.vocabulary.text(3) == "word3"
    assert repr(model["L1H2"])
    assert model.checkpoint.bytes_read <= header(saved / name)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_one_head_reads_exactly_its_slices(saved: Path, name: str) -> None:
    model = Model.from_pretrained(saved / name).view("raw")
    c, head = model.checkpoint, model["L1H2"]
    spec, kv = head.spec, head.index * model.n_kv_heads // model.n_heads
    costs = {
        "W_Q": spec.q.linear.cost(c, outputs=spec.q.outputs(2)),
        "W_K": spec.k.linear.cost(c, outputs=spec.k.outputs(kv)),
        "W_V": spec.v.linear.cost(c, outputs=spec.v.outputs(kv)),
        "W_O": spec.o.cost(c, inputs=slice(2 * model.d_head, 3 * model.d_head)),
    }
    for matrix, cost in costs.items():
        before = c.bytes_read
        tensor: Tensor = getattr(head, matrix)
        assert c.bytes_read - before == cost == 4 * tensor.numel()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_one_neuron_reads_its_vectors(saved: Path, name: str) -> None:
    model = Model.from_pretrained(saved / name).view("raw")
    before = model.checkpoint.bytes_read
    neuron = model["L0N5"]
    vectors = [v for v in (neuron.W_in, neuron.W_gate, neuron.W_out) if v is not None]
    assert model.checkpoint.bytes_read - before == 4 * model.d_model * len(vectors)


# ---------------------------------------------------------------------- what the parts are


def test_llama_parameters_are_slices_of_the_modules(llama: Model) -> None:
    """d_head = 6; queries 2 and 3 share the second key-value head."""
    module, head = build("llama"), llama["L1H2"]
    stem = "model.layers.1."
    assert head.W_Q.equal(weight(module, f"{stem}self_attn.q_proj.weight")[12:18].T)
    assert head.W_K.equal(weight(module, f"{stem}self_attn.k_proj.weight")[6:12].T)
    assert head.W_V.equal(weight(module, f"{stem}self_attn.v_proj.weight")[6:12].T)
    assert head.W_O.equal(weight(module, f"{stem}self_attn.o_proj.weight")[:, 12:18].T)
    neuron, ff = llama["L1N5"], llama.layers[1].ff
    assert neuron.W_in.equal(weight(module, f"{stem}mlp.up_proj.weight")[5])
    assert neuron.W_gate.equal(weight(module, f"{stem}mlp.gate_proj.weight")[5])
    assert neuron.W_out.equal(weight(module, f"{stem}mlp.down_proj.weight")[:, 5])
    assert neuron.W_in.equal(ff.W_in[:, 5])
    assert neuron.W_out.equal(ff.W_out[5])
    assert llama.W_E.equal(weight(module, "model.embed_tokens.weight"))
    assert llama.W_U.equal(weight(module, "lm_head.weight").T)


def test_gpt2_parameters_are_slices_of_the_modules(gpt2: Model) -> None:
    """d_head = 8; c_attn is 24 × 72: q | k | v."""
    module, head = build("gpt2"), gpt2["L1H2"]
    stem = "transformer.h.1."
    W, b = weight(module, f"{stem}attn.c_attn.weight"), weight(module, f"{stem}attn.c_attn.bias")
    for matrix, bias, start in (
        (head.W_Q, head.b_Q, 16),
        (head.W_K, head.b_K, 40),
        (head.W_V, head.b_V, 64),
    ):
        assert matrix.equal(W[:, start : start + 8])
        assert bias.equal(b[start : start + 8])
    assert head.W_O.equal(weight(module, f"{stem}attn.c_proj.weight")[16:24])
    assert head.b_O.equal(weight(module, f"{stem}attn.c_proj.bias"))
    neuron = gpt2["L1N95"]
    assert neuron.W_in.equal(weight(module, f"{stem}mlp.c_fc.weight")[:, 95])
    assert neuron.b_in.equal(weight(module, f"{stem}mlp.c_fc.bias")[95])
    assert neuron.W_out.equal(weight(module, f"{stem}mlp.c_proj.weight")[95])
    assert gpt2.W_U.equal(gpt2.W_E.T)
    assert gpt2.W_pos is not None
    assert gpt2.W_pos.equal(weight(module, "transformer.wpe.weight"))


def test_what_is_absent_is_none(llama: Model, gpt2: Model) -> None:
    head, ff, neuron = llama["L0H0"], llama.layers[0].ff, llama["L0N0"]
    assert [head.b_Q, head.b_K, head.b_V, head.b_O] == [None] * 4
    assert [ff.b_in, ff.b_gate, ff.b_out, neuron.b_in, neuron.b_gate, neuron.b_out] == [None] * 6
    assert llama.b_U is None
    assert llama.W_pos is None
    assert gpt2["L0N0"].W_gate is None
    assert gpt2["L0N0"].b_gate is None
    assert gpt2.layers[0].ff.W_gate is None
    assert head.rotation() is not None
    assert gpt2["L0H0"].rotation() is None


def test_a_groups_queries_share_keys_and_values(llama: Model) -> None:
    assert (llama.n_heads, llama.n_kv_heads) == (4, 2)
    heads = llama.layers[1].heads
    for a, b in ((0, 1), (2, 3)):
        assert heads[a].W_K.equal(heads[b].W_K)
        assert heads[a].W_V.equal(heads[b].W_V)
        assert not heads[a].W_Q.equal(heads[b].W_Q)
    assert not heads[1].W_K.equal(heads[2].W_K)
    assert not heads[1].W_V.equal(heads[2].W_V)


def test_sizes(llama: Model) -> None:
    found = (llama.d_model, llama.d_head, llama.d_mlp, llama.d_vocab, llama.n_layers)
    assert found == (24, 6, 20, 37, 2)
    assert "Llama, 2 layers × 4 heads, width 24, 37 tokens, raw" in repr(llama)


# ---------------------------------------------------------------------- dtypes


def every_parameter(model: Model) -> Iterator[Tensor]:
    head, ff, neuron = model["L1H1"], model.layers[1].ff, model["L0N3"]
    yield from (head.W_Q, head.W_K, head.W_V, head.W_O, neuron.W_in, neuron.W_out)
    yield from (ff.W_in, ff.W_out, model.W_E, model.W_U)
    yield from (bias for bias in (head.b_Q, head.b_O, ff.b_in, neuron.b_in) if bias is not None)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype_is_the_checkpoints_unless_asked(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    save(name, tmp_path, dtype=dtype)
    assert {p.dtype for p in every_parameter(Model.from_pretrained(tmp_path).view("raw"))} == {
        dtype
    }
    wide = Model.from_pretrained(tmp_path, dtype=torch.float64).view("raw")
    assert {p.dtype for p in every_parameter(wide)} == {torch.float64}
    narrow = Model.from_pretrained(tmp_path).view("raw")
    assert wide["L1H1"].W_O.equal(narrow["L1H1"].W_O.double())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_folding_half_precision_gives_float32(name: str, tmp_path: Path) -> None:
    save(name, tmp_path, dtype=torch.bfloat16)
    folded = Model.from_pretrained(tmp_path).view("raw").view(folded=True)
    head, neuron = folded["L1H1"], folded["L0N3"]
    matrices = (head.W_Q, head.W_K, head.W_V, neuron.W_in, folded.W_U)
    assert {matrix.dtype for matrix in matrices} == {torch.float32}
    asked = Model.from_pretrained(tmp_path, dtype=torch.bfloat16).view("raw").view(folded=True)
    assert asked["L1H1"].W_Q.dtype == torch.bfloat16


# ---------------------------------------------------------------------- views


def test_a_view_is_the_same_checkpoint_seen_otherwise(llama: Model) -> None:
    before, read = llama["L1H0"].W_Q, llama.checkpoint.bytes_read
    folded = llama.view(folded=True, offset=-2)
    assert llama.checkpoint.bytes_read == read, "a view reads nothing by itself"
    assert folded.checkpoint is llama.checkpoint
    assert folded.architecture is llama.architecture
    assert (str(folded.options), str(llama.options)) == ("folded, offset -2", "raw")
    gain = weight(build("llama"), "model.layers.1.input_layernorm.weight")
    torch.testing.assert_close(folded["L1H0"].W_Q, gain[:, None] * before)
    assert llama["L1H0"].W_Q.equal(before)
    assert folded.view(folded=False)["L1H0"].W_Q.equal(before)
    assert folded.view(centred=True).options.offset == -2


def test_folding_leaves_file_and_module_alone(saved: Path) -> None:
    """Reads alias the module's memory: nothing may be changed in place."""
    module = build("gpt2")
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    bytes_before = (saved / "gpt2" / "model.safetensors").read_bytes()
    for model in (
        Model.from_module(module).view("raw"),
        Model.from_pretrained(saved / "gpt2").view("raw"),
    ):
        folded = model.view(folded=True)
        list(every_parameter(folded))
        assert folded.b_U is not None
    for name, tensor in module.state_dict().items():
        assert tensor.equal(state[name]), name
    assert (saved / "gpt2" / "model.safetensors").read_bytes() == bytes_before


def test_an_unknown_option_of_reading(llama: Model) -> None:
    with pytest.raises(lx.LexrayError, match="no reading option sideways; there are folded, inv"):
        llama.view(sideways=True)


def test_folded_gpt2_reads_what_the_model_reads(gpt2: Model) -> None:
    """x → LayerNorm → q, by torch; and by the folded matrix on the standardised x, in float64."""
    module: Any = build("gpt2")
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        q = module.transformer.h[1].attn.c_attn(module.transformer.h[1].ln_1(x))[:, 16:24]
    head = gpt2.view(folded=True)["L1H2"]
    x = x.double()
    standard = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, correction=0, keepdim=True) + 1e-5
    ) ** 0.5
    ours = standard @ head.W_Q.double() + head.b_Q.double()
    torch.testing.assert_close(ours, q.double(), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- vocabularies


def test_a_model_without_tokenizer_has_numbered_tokens(tmp_path: Path) -> None:
    save("llama", tmp_path, n_tokens=None)
    model = Model.from_pretrained(tmp_path).view("raw")
    assert len(model.vocabulary) == 37
    assert model.vocabulary.shown(17) == "#17"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert Model.from_pretrained(tmp_path).view("raw").vocabulary.shown(17) == "#17"


def test_an_embedding_larger_than_the_vocabulary(tmp_path: Path) -> None:
    save("llama", tmp_path, n_tokens=31)
    model = Model.from_pretrained(tmp_path).view("raw")
    assert model.W_U.shape == (24, 37)
    assert len(model.vocabulary) == 31
    assert model.vocabulary.shown(33) == "#33"
    assert model.vocabulary.mask(model.d_vocab).tolist() == [True] * 31 + [False] * 6


# ---------------------------------------------------------------------- live modules


def test_a_live_module_is_not_copied() -> None:
    module = build("gpt2")
    model = Model.from_module(module).view("raw")
    c_attn = module.get_parameter("transformer.h.1.attn.c_attn.weight")
    start, size = c_attn.data_ptr(), c_attn.numel() * c_attn.element_size()
    head = model["L1H2"]
    for part in (head.W_Q, head.W_K, head.W_V):
        assert start <= part.data_ptr() < start + size
    assert head.W_V.data_ptr() == start + 4 * 64
    assert model.W_U.data_ptr() == module.get_parameter("transformer.wte.weight").data_ptr()
    assert not head.W_Q.requires_grad
    assert model.vocabulary.shown(5) == "#5"


def test_a_live_module_is_seen_as_it_is_now(saved: Path) -> None:
    module = deepcopy(build("llama"))
    model = Model.from_module(module).view("raw")
    before = model["L0H0"].W_Q.clone()
    with torch.no_grad():
        module.get_parameter("model.layers.0.self_attn.q_proj.weight").mul_(2)
    assert model["L0H0"].W_Q.equal(2 * before)


def test_a_module_with_its_tokenizer(saved: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    file = str(saved / "llama" / "tokenizer.json")
    model = Model.from_module(build("llama"), PreTrainedTokenizerFast(tokenizer_file=file)).view(
        "raw"
    )
    assert model.vocabulary.text(7) == "word7"


def test_a_module_without_config_is_refused() -> None:
    with pytest.raises(lx.LexrayError, match="Linear has no config to tell its family"):
        Model.from_module(torch.nn.Linear(2, 2)).view("raw")


# ---------------------------------------------------------------------- adapters


def adapted(base: Path, folder: Path, name: str, targets: list[str]) -> PeftModel:
    module = deepcopy(build(name))
    module.name_or_path = str(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(module, LoraConfig(r=3, lora_alpha=5, target_modules=targets))
        torch.manual_seed(1)
        for parameter in peft.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn_like(parameter) / 3
        peft.save_pretrained(folder)
    return peft


@pytest.mark.parametrize(
    ("name", "targets"), [("llama", ["q_proj", "down_proj"]), ("gpt2", ["c_attn"])]
)
def test_an_adapter_is_merged_as_it_is_read(
    saved: Path, tmp_path: Path, name: str, targets: list[str]
) -> None:
    peft = adapted(saved / name, tmp_path, name, targets)
    merged = Model.from_module(deepcopy(peft).merge_and_unload()).view("raw")
    base = Model.from_pretrained(saved / name).view("raw")
    for model in (
        Model.from_pretrained(saved / name, adapter=tmp_path).view("raw"),
        Model.from_pretrained(str(saved / name), adapter=str(tmp_path)).view("raw"),
        Model.from_module(peft).view("raw"),
    ):
        head, there, plain = model["L1H2"], merged["L1H2"], base["L1H2"]
        torch.testing.assert_close(head.W_Q, there.W_Q)
        assert not torch.allclose(head.W_Q, plain.W_Q, atol=1e-2)
        assert head.W_O.equal(plain.W_O), "not adapted"
        torch.testing.assert_close(head.W_V, there.W_V)
        torch.testing.assert_close(model["L1N7"].W_out, merged["L1N7"].W_out)
        torch.testing.assert_close(
            model.view(folded=True)["L1H2"].W_Q, merged.view(folded=True)["L1H2"].W_Q
        )
    with pytest.raises(lx.LexrayError, match="outside its own folder"):
        Model.from_pretrained(tmp_path).view("raw")
    adapted_model = Model.from_pretrained(saved / name, adapter=tmp_path).view("raw")
    assert adapted_model.vocabulary.text(7) == "word7", "the base's tokenizer"
    assert f"the model under it is {saved / name}" in adapted_model.checkpoint.notes[0]


def test_what_is_no_adapter(saved: Path) -> None:
    with pytest.raises(lx.LexrayError, match="is no adapter"):
        Model.from_pretrained(saved / "llama", adapter=saved / "gpt2").view("raw")


# ---------------------------------------------------------------------- the Hub


@pytest.fixture
def hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    (tmp_path / "repos" / "org").mkdir(parents=True)
    (tmp_path / "repos" / "org" / "name").symlink_to(saved / "llama")
    with serve(tmp_path / "repos") as hub:
        hub.use(monkeypatch, tmp_path)
        monkeypatch.setattr(remote, "HEADER_GUESS", 64)
        yield hub


def test_a_hub_id_is_downloaded(hub: FakeHub, llama: Model) -> None:
    model = Model.from_pretrained("org/name").view("raw")
    assert (model.name, model.checkpoint.revision) == ("org/name", hub.commit("org/name"))
    assert model["L1H2"].W_Q.equal(llama["L1H2"].W_Q)
    assert model.vocabulary.text(9) == "word9"


def test_remote_reads_touch_only_what_is_needed(hub: FakeHub, llama: Model, saved: Path) -> None:
    start = header(saved / "llama")
    tensors = json.loads((saved / "llama" / "model.safetensors").read_bytes()[8:start])
    model = Model.from_pretrained("org/name", remote=True).view("raw")
    assert hub.ranges() == [(0, 64), (64, start)], "the header and nothing else"
    hub.reset()
    assert model["L1H2"].W_Q.equal(llama["L1H2"].W_Q)
    first, _ = tensors["model.layers.1.self_attn.q_proj.weight"]["data_offsets"]
    assert hub.ranges() == [(start + first + 12 * 24 * 4, start + first + 18 * 24 * 4)]
    hub.reset()
    assert model["L1H3"].W_O.equal(llama["L1H3"].W_O)
    bounds = tensors["model.layers.1.self_attn.o_proj.weight"]["data_offsets"]
    for a, b in hub.ranges():
        assert start + bounds[0] <= a < b <= start + bounds[1]
    hub.reset()
    assert model["L1H2"].W_Q.equal(llama["L1H2"].W_Q)
    assert not hub.log, "read once, kept on disk"
    assert model.vocabulary.text(9) == "word9"


def test_an_adapter_on_a_remote_base(hub: FakeHub, saved: Path, tmp_path: Path) -> None:
    peft = adapted(saved / "llama", tmp_path / "adapter", "llama", ["q_proj"])
    merged = Model.from_module(peft.merge_and_unload()).view("raw")
    model = Model.from_pretrained("org/name", remote=True, adapter=tmp_path / "adapter").view("raw")
    torch.testing.assert_close(model["L1H2"].W_Q, merged["L1H2"].W_Q)


# ---------------------------------------------------------------------- models with other heads


def classifier(kind: Any, name: str, folder: Path) -> PreTrainedModel:
    config = deepcopy(build(name).config)
    config.num_labels = 3
    module: PreTrainedModel = kind(config)
    module.save_pretrained(folder)
    return module


def test_a_tied_classifier_reads_through_its_embedding(tmp_path: Path) -> None:
    module = classifier(GPT2ForSequenceClassification, "gpt2", tmp_path)
    model = Model.from_pretrained(tmp_path).view("raw")
    assert model.W_U.equal(weight(module, "transformer.wte.weight").T)


def test_without_an_output_embedding_the_error_says_what_to_try(tmp_path: Path) -> None:
    module = classifier(LlamaForSequenceClassification, "llama", tmp_path)
    write_tokenizer(tmp_path, words(37))
    model = Model.from_pretrained(tmp_path).view("raw")
    assert model["L0H0"].W_Q.shape == (24, 6)
    with pytest.raises(lx.LexrayError, match=r"no tensor 'lm_head.weight'.*tie_word_embeddings"):
        _ = model.W_U
    tied = Model.from_pretrained(tmp_path, config={"tie_word_embeddings": True}).view("raw")
    assert tied.W_U.equal(weight(module, "model.embed_tokens.weight").T)
