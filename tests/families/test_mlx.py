"""Checkpoints as mlx-lm writes them, by a writer of our own (mlx does not install everywhere): what
its models' `sanitize` does to the tensors, plain and with experts in four and eight bits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families.mlx import MLXModel
from lexray.model.model import Model
from tests.families import zoo
from tests.families.gguf.variants import BY_NAME
from tests.families.oracles import IDS, ORACLES

State = dict[str, Tensor]


def stack(state: State, names: dict[str, str]) -> State:
    """Experts on a new first axis, called `switch_mlp`."""
    out: State = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name):
            stem = f"{found[1]}.switch_mlp.{names.get(found[3], found[3])}.weight"
            if stem not in out:
                count = sum(f"{found[1]}.experts.{e}.{found[3]}.weight" in state for e in range(64))
                every = (state[f"{found[1]}.experts.{e}.{found[3]}.weight"] for e in range(count))
                out[stem] = torch.stack([*every])
        else:
            out[name] = tensor
    return out


LETTERS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def granite(state: State) -> State:
    out: State = {}
    for name, tensor in state.items():
        stem = name.rpartition(".block_sparse_moe.")[0] + ".block_sparse_moe.switch_mlp."
        if name.endswith("block_sparse_moe.input_linear.weight"):
            out[f"{stem}gate_proj.weight"], out[f"{stem}up_proj.weight"] = tensor.chunk(2, 1)
        elif name.endswith("block_sparse_moe.output_linear.weight"):
            out[f"{stem}down_proj.weight"] = tensor
        else:
            out[name] = tensor
    return out


def gpt_oss(state: State) -> State:
    out: State = {}
    for name, tensor in state.items():
        ending = ".bias" if name.endswith("_bias") else ".weight"
        stem = name.removesuffix("_bias")
        turned = tensor.transpose(1, 2) if ".experts." in name and tensor.ndim == 3 else tensor
        if stem.endswith("gate_up_proj"):
            out[stem.replace("gate_up_proj", "gate_proj") + ending] = turned[:, ::2]
            out[stem.replace("gate_up_proj", "up_proj") + ending] = turned[:, 1::2]
        else:
            out[stem + ending if ".experts." in name else name] = turned
    return out


def llama4(state: State) -> State:
    out: State = {}
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=-1)
            out[name.replace("gate_up_proj", "gate_proj.weight")] = gate.transpose(1, 2)
            out[name.replace("gate_up_proj", "up_proj.weight")] = up.transpose(1, 2)
        elif name.endswith("experts.down_proj"):
            out[f"{name}.weight"] = tensor.transpose(1, 2)
        else:
            out[name] = tensor
    return out


def deepseek(state: State) -> State:
    out: State = {}
    for name, tensor in stack(state, {}).items():
        if name.endswith("kv_b_proj.weight"):
            heads = tensor.view(4, 11, -1)  # six dimensions of keys, five of values
            out[name.replace("kv_b_proj", "embed_q")] = heads[:, :6].transpose(1, 2)
            out[name.replace("kv_b_proj", "unembed_out")] = heads[:, 6:]
        else:
            out[name] = tensor
    return out


def delta_net(state: State) -> State:
    out = stack(state, {})
    for name, tensor in out.items():
        if name.endswith("conv1d.weight"):
            out[name] = tensor.movedim(2, 1)
        if re.search(r"(layernorm|[qk]_norm|model\.norm)\.weight$", name):
            out[name] = tensor + 1
    return out


def convolutions(state: State) -> State:
    out = stack(state, LETTERS)
    return {k: v.movedim(2, 1) if "conv.conv" in k else v for k, v in out.items()}


WRITERS: dict[str, Callable[[State], State]] = {
    "mixtral": lambda state: stack(state, LETTERS),
    "minimax-m2": lambda state: stack(state, LETTERS),
    "qwen2-moe": lambda state: stack(state, {}),
    "qwen3-moe": lambda state: stack(state, {}),
    "olmoe": lambda state: stack(state, {}),
    "glm4-moe": lambda state: stack(state, {}),
    "deepseek-v3": deepseek,
    "granite-moe": granite,
    "gpt-oss": gpt_oss,
    "llama4": llama4,
    "qwen3-next": delta_net,
    "qwen3.5": delta_net,
    "lfm2-moe": convolutions,
    "nemotron-h": lambda state: stack(state, {"up_proj": "fc1", "down_proj": "fc2"}),
}


def write(name: str, folder: Path, bits: int | None = None, **options: Any) -> tuple[Any, State]:
    """A tiny model as mlx-lm keeps it; gives the module, and what its plain files hold."""
    variant = BY_NAME.get(name) or zoo.find(name)
    module = (
        zoo.make(variant)
        if not options
        else zoo.make(
            variant.__class__(variant.name, variant.model_type, variant.options | options)
        )
    )
    module.save_pretrained(folder)
    file = folder / "model.safetensors"
    plain = load_file(file)
    changed = {k: v.contiguous() for k, v in WRITERS[name](plain).items()}
    if bits is not None:
        changed = pack(changed, bits)
        path = folder / "config.json"
        settings = {"quantization": {"group_size": 32, "bits": bits}}
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    save_file(changed, file)
    return module, plain


def pack(state: State, bits: int) -> State:
    """Experts as codes in words of 32 bits, with a scale and a bias for each 32 weights."""
    out: State = {}
    for name, tensor in state.items():
        if ".switch_mlp." not in name:
            out[name] = tensor
            continue
        groups = tensor.unflatten(-1, (-1, 32))
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale = (high - low) / (2**bits - 1)
        codes = ((groups - low) / scale).round().long().flatten(-2)
        each = 32 // bits
        shifts = torch.arange(each) * bits
        words = (codes.unflatten(-1, (-1, each)) << shifts).sum(-1)
        stem = name.removesuffix(".weight")
        out[name] = words.to(torch.uint32)
        out[f"{stem}.scales"], out[f"{stem}.biases"] = scale[..., 0], low[..., 0]
    return out


@pytest.mark.parametrize("name", WRITERS)
def test_tensors_and_runs_are_those_of_the_plain_files(name: str, tmp_path: Path) -> None:
    module, plain = write(name, tmp_path)
    model = Model.from_pretrained(tmp_path).view("raw")
    assert isinstance(model.checkpoint, MLXModel)
    assert set(model.checkpoint.names()) == set(plain)
    for key, tensor in plain.items():
        assert model.checkpoint.info(key).shape == tensor.shape, key
        torch.testing.assert_close(model.checkpoint.read(key), tensor, atol=1e-6, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(
            model.module()(IDS).logits, module(IDS).logits, atol=1e-5, rtol=1e-4
        )
    ORACLES["FF"](module, Model.from_module(module).view("raw"), model)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_quantised_experts_are_read_one_by_one(name: str, bits: int, tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 32}
    _, plain = write(name, tmp_path, bits, **wide)
    model = Model.from_pretrained(tmp_path).view("raw")
    expert = model.layers[1].ff.experts[3]
    key = expert.spec.w_in.weight
    expected = plain[key].unflatten(-1, (-1, 32))
    step = (expected.amax(-1) - expected.amin(-1)) / (2**bits - 1)
    error = (expert.W_in.T.unflatten(-1, (-1, 32)) - expected).abs()
    assert (error <= step[..., None] * 0.501).all()
    assert "MLX" in str(model.checkpoint.info(key).stored)
    groups = 32 * 64 // 32
    assert model.checkpoint.cost(key) == 32 * 64 * bits // 8 + groups * 2 * 4


def test_other_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    zoo.make(zoo.find("mixtral")).save_pretrained(tmp_path)
    assert not isinstance(Model.from_pretrained(tmp_path).checkpoint, MLXModel)


def test_a_stack_that_is_none_is_refused(tmp_path: Path) -> None:
    write("mixtral", tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    state["model.layers.1.block_sparse_moe.switch_mlp.up_proj.weight"] = torch.ones(5)
    save_file(state, file)
    with pytest.raises(LexrayError, match=r"up_proj.weight should be a stack of matrices.*\(5,\)"):
        Model.from_pretrained(tmp_path)


def test_a_stack_that_lacks_its_partner_is_named(tmp_path: Path) -> None:
    write("gpt-oss", tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.experts.up_proj.weight"]
    save_file(state, file)
    with pytest.raises(LexrayError, match=r"model.layers.1.mlp.experts.up_proj.weight"):
        Model.from_pretrained(tmp_path)
