"""Which family a model is taken for, and configs and tensors that do not fit each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lexray as lx
from lexray.families import Architecture, Block, Config, Names, registry
from lexray.families.parts import attention, gated, projections, sizes, unembedding
from lexray.families.rotary import rotary
from lexray.model.model import Model
from tests.families import forward
from tests.families.zoo import build
from tests.saved import save, weight


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def llama_by_another_name(saved: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    for file in (saved / "llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    edit_config(folder, **changes)
    return folder


def test_by_the_rules_of_another_family(saved: Path, llama: Model, tmp_path: Path) -> None:
    folder = llama_by_another_name(saved, tmp_path / "m", model_type="my_llama")
    with pytest.raises(lx.LexrayError, match=r"unknown model type 'my_llama'.*; known: .*family="):
        Model.from_pretrained(folder).view("raw")
    model = Model.from_pretrained(folder, family="llama").view("raw")
    assert model["L1H3"].W_K.equal(llama["L1H3"].W_K)
    with pytest.raises(lx.LexrayError, match=r"unknown family 'lama'; known: .*bert, .*llama"):
        Model.from_pretrained(folder, family="lama").view("raw")


def test_a_family_of_ones_own(
    saved: Path, llama: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented way: tensors with other names, described in a few lines from parts."""
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))

    @lx.family("house", title="House", defaults={"tie_word_embeddings": False})
    def describe(c: Config, t: Names) -> Architecture:
        s = sizes(c)
        blocks = []
        for n in range(c["num_hidden_layers"]):
            before = t.norm("rms", f"floor.{n}.n1", 1e-6)
            heads = projections(t, f"floor.{n}.", s, ("wq", "wk", "wv", "wo"))
            after = t.norm("rms", f"floor.{n}.n2", 1e-6)
            blocks.append(
                Block(
                    attention(heads, s, rotary(c, s["d_head"]), pre_norm=before),
                    gated(t, f"floor.{n}.", s["d_mlp"], "silu", pre_norm=after),
                )
            )
        return Architecture(
            **s,
            blocks=tuple(blocks),
            final_norm=t.norm("rms", "roof", 1e-6),
            **unembedding(c, t, "cellar.weight", "sky.weight"),
        )

    new = {
        "model.embed_tokens": "cellar",
        "model.norm.": "roof.",
        "lm_head": "sky",
        "model.layers": "floor",
        "self_attn.q_proj": "wq",
        "self_attn.k_proj": "wk",
        "self_attn.v_proj": "wv",
        "self_attn.o_proj": "wo",
        "mlp.": "",
        "input_layernorm": "n1",
        "post_attention_layernorm": "n2",
    }
    folder = llama_by_another_name(saved, tmp_path / "house", model_type="house")
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for old, other in new.items():
            name = name.replace(old, other)
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")

    model = Model.from_pretrained(folder).view("raw")
    assert model.family.title == "House"
    module, x = build("llama"), torch.randn(3, 24)
    mlp: Any = module.get_submodule("model.layers.1.mlp")
    with torch.no_grad():
        torch.testing.assert_close(forward.written(model.layers[1].ff, x), mlp(x))
    assert model["L1H2"].W_O.equal(llama["L1H2"].W_O)
    assert model.view(folded=True)["L1H2"].W_Q.equal(llama.view(folded=True)["L1H2"].W_Q)
    assert model.W_U.equal(weight(module, "lm_head.weight").T)


def test_the_last_registered_family_wins(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))

    @lx.family("llama", name="mine", title="Mine")
    def describe(c: Config, t: Names) -> Architecture:
        return registry._FAMILIES["llama"].architecture(c, list(t._names))

    assert Model.from_pretrained(saved / "llama").view("raw").family.title == "Mine"
    assert (
        Model.from_pretrained(saved / "llama", family="llama").view("raw").family.title == "Llama"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' are recognised but not supported: a state-space model"),
        ({"model_type": "led"}, "'led' are recognised but not supported: an encoder–decoder"),
        ({"model_type": "hal9000"}, "unknown model type 'hal9000'.*; known: .*llama"),
        ({"model_type": None}, "no model_type; pass family="),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantised by aqlm, .*original"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            r"quantised by GPTQ, but none of its tensors is stored so .* end in \.qweight\)",
        ),
        ({"hidden_size": None}, "lacks 'hidden_size'.*pass config="),
        ({"num_hidden_layers": "two"}, "num_hidden_layers should be a whole number, not .two."),
        (
            {"num_attention_heads": 0, "head_dim": None},
            "rules of Llama cannot make sense of this config",
        ),
        ({"num_hidden_layers": 0}, "it speaks of 0 layers"),
        ({"num_hidden_layers": -3}, "it speaks of 0 layers"),
        ({"num_hidden_layers": 10**9}, "speaks of 1000000000 layers, .*which is no model"),
        ({"num_attention_heads": 10**9}, "1000000000 heads .*which is no model"),
        ({"num_attention_heads": 1000}, "speaks of 1000 heads in 24 dimensions"),
        ({"vocab_size": 10**12}, "it speaks of 1000000000000 tokens"),
        ({"intermediate_size": -1}, "it speaks of -1 neurons per layer"),
        ({"num_attention_heads": 3}, "3 heads cannot share 2 heads of keys and values"),
        ({"head_dim": 10**12}, "cannot turn 1000000000000 of 1000000000000 dimensions"),
        ({"head_dim": -6}, "cannot turn -6 of -6 dimensions"),
        ({"rope_scaling": {"type": "linear"}}, r"rules of Llama .*KeyError\('factor'\)"),
        ({"rope_scaling": {"rope_type": "odd"}}, "rotary embedding 'odd'"),
    ],
    ids=str,
)
def test_refused(saved: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    changes = {"rope_parameters": None} | changes
    folder = llama_by_another_name(saved, tmp_path / "m", **changes)
    with pytest.raises(lx.LexrayError, match=f"(?s){message}"):
        Model.from_pretrained(folder).view("raw")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 5}, r"q_proj\.weight has 24 × 24 .*config makes it 24 × 20 "),
        ({"num_key_value_heads": 1}, r"k_proj\.weight has 24 × 12 .*makes it 24 × 6 "),
        ({"hidden_size": 48}, r"embed_tokens\.weight has 37 × 24, .*makes it rows × 48"),
        ({"intermediate_size": 19}, r"up_proj\.weight has 24 × 20 .*makes it 24 × 19 "),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_the_tensors(
    saved: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Slices by its numbers would be read without complaint, and mean nothing."""
    folder = llama_by_another_name(saved, tmp_path / "m", **changes)
    with pytest.raises(lx.LexrayError, match=message):
        Model.from_pretrained(folder).view("raw")


def test_a_fused_matrix_that_does_not_fit(tmp_path: Path) -> None:
    save("gpt2", tmp_path)
    with pytest.raises(lx.LexrayError, match=r"c_attn\.weight has 24 × 72 .*makes it 24 × 63 "):
        Model.from_pretrained(tmp_path, config={"n_head": 7}).view("raw")


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_packed_weights_are_refused_by_their_tensors(
    tmp_path: Path, dtype: torch.dtype, scales: bool
) -> None:
    """The config says nothing of a quantisation; the numbers alone are not the weights."""
    save("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].to(dtype)
    if scales:
        weights[f"{name}_scale"] = torch.ones(24)
    save_file(weights, tmp_path / "model.safetensors")
    why = "its scales seem to be in .*down_proj.weight_scale" if scales else "without scales"
    with pytest.raises(lx.LexrayError, match=rf"down_proj.weight is stored as \w+, .*{why}"):
        Model.from_pretrained(tmp_path).view("raw")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": "6"}, "head_dim should be a whole number, not '6'"),
        ({"hidden_size": [24]}, "hidden_size should be a whole number, not a list of 1"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps should be a number"),
        ({"hidden_act": {"a": 1}}, "hidden_act should be a text"),
        ({"rope_scaling": "yarn", "rope_parameters": None}, "rope_scaling should be an object"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor should be a number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false"),
        ({"num_hidden_layers": 9_999}, r"speaks of 9999 layers, but .* has only \d+ tensors"),
        ({"num_hidden_layers": 3}, r"no tensor 'model\.layers\.2\..*config's 3 layers need it"),
    ],
    ids=str,
)
def test_configs_are_refused_field_by_field(
    saved: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = llama_by_another_name(saved, tmp_path / "m", **changes)
    with pytest.raises(lx.LexrayError, match=message):
        Model.from_pretrained(folder).view("raw")


def test_sizes_may_be_written_as_floats(saved: Path, tmp_path: Path) -> None:
    folder = llama_by_another_name(saved, tmp_path / "m", hidden_size=24.0, head_dim=6.0)
    assert Model.from_pretrained(folder).view("raw")["L0H0"].W_Q.shape == (24, 6)


def test_an_embedding_of_many_rows_without_width(saved: Path, tmp_path: Path) -> None:
    """It takes no byte of the file, and would fill the memory with names for its tokens."""
    folder = llama_by_another_name(saved, tmp_path / "m", vocab_size=9_000_000)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"] = torch.empty(10**9, 0)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(lx.LexrayError, match=r"embed_tokens\.weight has 1000000000 × 0"):
        Model.from_pretrained(folder).view("raw")


def test_entries_of_the_config_can_be_overridden(saved: Path, tmp_path: Path) -> None:
    folder = llama_by_another_name(saved, tmp_path / "m", hidden_size=None, num_hidden_layers=2)
    model = Model.from_pretrained(folder, config={"hidden_size": 24, "num_hidden_layers": 1}).view(
        "raw"
    )
    assert (model.d_model, model.n_layers) == (24, 1)
    with pytest.raises(lx.LexrayError, match=r"no layer 1: this model has layers 0–0"):
        model["L1H0"]
