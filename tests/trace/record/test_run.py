"""Prompts, choices, errors, other sources, and that nothing stays behind when a run breaks off."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2ForSequenceClassification,
    GPT2Model,
)
from transformers.integrations.moe import ExpertsInterface

from lexray.choice import choose
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.record import plan as plans
from lexray.trace.record import run as runs
from lexray.trace.record.attention import NAME
from lexray.trace.record.experts import run_experts
from tests.families.oracles import close, run
from tests.families.zoo import GPT2, LLAMA, build
from tests.trace.test_proof import IDS, same, state_of

INTERFACES = (AttentionInterface, AttentionMaskInterface, ExpertsInterface)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_module(build("llama")).view("raw")


@pytest.fixture(scope="module")
def demo() -> Model:
    return Model.from_pretrained("demo").view("raw")


def test_text_is_tokenised(demo: Model) -> None:
    trace = demo.trace("The capital of Japan", what="logits", positions=-1)
    assert trace.ids.tolist() == demo.vocabulary.encode("The capital of Japan", special=True)
    assert "".join(token.text for token in trace.tokens) == "The capital of Japan"
    batch = demo.trace(["The capital of Japan", "He was"], what="logits")
    close(batch[0].logits[-1:].float(), trace.logits.float())
    assert [len(t) for t in batch] == [len(trace), 2]


def test_special_tokens_can_be_left_out(demo: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def encode(text: str, *, special: bool = False) -> list[int]:
        asked.append(special)
        return [0, 5] if special else [5]

    monkeypatch.setattr(demo.vocabulary, "encode", encode)
    assert demo.trace("x", what="logits").ids.tolist() == [0, 5]
    assert demo.trace("x", what="logits", special=False).ids.tolist() == [5]
    assert asked == [True, False]


@pytest.mark.parametrize("prompt", [torch.tensor(IDS), tuple(IDS), range(3, 10), np.array(IDS)])
def test_ids_in_many_forms(prompt: Any, model: Model) -> None:
    trace = model.trace(prompt, what="logits")
    assert trace.ids.tolist() == [int(i) for i in prompt]
    assert trace.n_prompt == len(trace) == 7


def test_rows_of_a_tensor_are_a_batch(model: Model) -> None:
    first, second = model.trace(torch.tensor([IDS, IDS[::-1]]), what="logits")
    assert second.ids.tolist() == IDS[::-1]
    close(first.logits, model.trace(IDS).logits)


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([IDS, []], {}, "prompt 1 is empty"),
        ([5, 37], {}, "token 37.*0–36"),
        ([-1], {}, "token -1"),
        ([1.5], {}, "token ids"),
        ([IDS, 3], {}, "prompt 1 should be"),
        (7, {}, "of type int"),
        ({5: 1}, {}, "of type dict"),
        (b"text", {}, "of type bytes"),
        ("text", {}, "give the token ids"),
        ([1] * 65, {}, "65 tokens.*at most 64"),
        ([1] * 60, {"new_tokens": 9}, "60 tokens and 9 new ones"),
        (IDS, {"new_tokens": -1}, "negative"),
        (IDS, {"layers": 2}, "no layer 2: the layers are 0–1"),
        (IDS, {"layers": []}, "none of the 2 layers"),
        (IDS, {"positions": [0, 7]}, "no position 7"),
        (IDS, {"positions": slice(9, 12)}, "none of the 7 positions"),
        (IDS, {"what": ["residual", "soul"]}, "soul.*residual, attention, heads, mlp, logits"),
    ],
)
def test_bad_input(prompt: Any, options: dict[str, Any], said: str, model: Model) -> None:
    with pytest.raises(LexrayError, match=said):
        model.trace(prompt, **options)


def test_what_was_not_kept_says_how_to_keep_it(model: Model) -> None:
    trace = model.trace(IDS, what="residual", layers=[1], positions=[2, -1])
    for name, group in (("pattern", "attention"), ("z", "heads"), ("pre", "mlp")):
        with pytest.raises(LexrayError, match=f"{name} was not kept.*'{group}'"):
            getattr(trace[1], name)
    with pytest.raises(LexrayError, match="logits was not kept"):
        _ = trace.logits
    with pytest.raises(LexrayError, match=r"layer 0 was not kept, only 1.*layers=\[0, 1\]"):
        trace[0]
    with pytest.raises(LexrayError, match="no layer 5"):
        trace[5]
    with pytest.raises(LexrayError, match=r"position -2 was not kept.*positions=\[2, 5, 6\]"):
        trace.row(-2)
    with pytest.raises(LexrayError, match="no position 7"):
        trace.row(7)
    assert (trace.row(2), trace.row(-1), trace.row(6)) == (0, 1, 1)
    assert trace[-1].index == 1
    with pytest.raises(LexrayError, match="resid_pre was not kept"):
        _ = model.trace(IDS, what="heads")[0].resid_pre


@given(st.lists(st.integers(-9, 8), min_size=1), st.integers(1, 9))
@settings(max_examples=60)
def test_chosen_is_what_indexing_gives(some: list[int], n: int) -> None:
    if all(-n <= i < n for i in some):
        assert choose(some, n, "layer") == tuple(sorted({range(n)[i] for i in some}))
    else:
        with pytest.raises(LexrayError, match="there is no layer"):
            choose(some, n, "layer")


def test_too_large_is_refused_before_it_runs(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "available_bytes", lambda device: 20_000)
    monkeypatch.setattr(runs.Runner, "run", lambda *_: pytest.fail("it ran"))
    with pytest.raises(LexrayError, match=r"would not fit: it keeps [\d.]+ kB.*20 kB are free"):
        model.trace(IDS)
    monkeypatch.undo()
    monkeypatch.setattr(plans, "available_bytes", lambda device: 20_000)
    assert len(model.trace(IDS, what="residual", layers=0, positions=-1)) == 7


def test_free_memory_is_known() -> None:
    free = plans.available_bytes(torch.device("cpu"))
    assert free is None or free > 2**20


def test_roberta_has_fewer_positions_than_its_config_says() -> None:
    model = Model.from_module(build("roberta")).view("raw")
    assert len(model.trace([5] * 30, what="logits")) == 30
    with pytest.raises(LexrayError, match=r"31 tokens.*at most 30"):
        model.trace([5] * 31)


@pytest.mark.parametrize("name", ["llama", "qwen2-moe", "gptj", "bert"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_stays_after_an_error(name: str, error: type[BaseException]) -> None:
    module = copy.deepcopy(build(name)).train()
    before, model = state_of(module), Model.from_module(module).view("raw")
    registered = [dict(interface._global_mapping) for interface in INTERFACES]
    last = model.architecture.blocks[-1].attention.o.module

    def stop(*_: Any) -> None:
        assert any(NAME in i._global_mapping for i in INTERFACES) or name == "gptj"
        raise error

    handle = module.get_submodule(last).register_forward_hook(stop)
    with pytest.raises(error):
        model.trace(IDS)
    handle.remove()
    assert state_of(module) == before
    assert [dict(interface._global_mapping) for interface in INTERFACES] == registered
    module.eval()
    close(model.trace(IDS).logits, run(build(name), torch.tensor([IDS])).logits[0])


def test_dropout_is_off_while_recording() -> None:
    module = copy.deepcopy(build("gpt2")).train()
    close(
        Model.from_module(module).view("raw").trace(IDS).logits,
        run(build("gpt2"), torch.tensor([IDS])).logits[0],
    )
    assert module.training


DISK = [
    *("gpt2", "mixtral", "qwen2-moe", "neox", "gemma3", "bert", "modernbert", "opt-350m"),
    *("falcon-7b", "falcon-new", "falcon-rw", "gptj"),
]


@pytest.mark.parametrize("name", DISK)
def test_from_disk_is_live(name: str, tmp_path: Path) -> None:
    """Files name and fuse tensors otherwise, and transformers then picks another attention."""
    module = build(name)
    module.save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path).view("raw")
    same(model.trace(IDS), Model.from_module(module).view("raw").trace(IDS))


def test_adapter_in_memory() -> None:
    config = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(copy.deepcopy(build("llama")), config).eval()
    model = Model.from_module(peft).view("raw")
    trace = model.trace(IDS)
    close(trace.logits, run(peft, torch.tensor([IDS])).logits[0])
    for layer in model.layers:
        x = trace[layer.index]
        close(x.q[:, 1], x.attn_in @ layer.heads[1].W_Q)
        close(x.coefficients @ layer.ff.W_out, x.mlp_write)


def test_language_model_inside_a_multimodal_one() -> None:
    text = LLAMA | {"head_dim": 6, "sliding_window": 3}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 14, "patch_size": 7}
    ids = {"image_token_index": 33, "boi_token_index": 34, "eoi_token_index": 35}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **ids)
    module = Gemma3ForConditionalGeneration(config).eval()
    model = Model.from_module(module).view("raw")
    trace = model.trace(IDS)
    close(trace.logits, run(module, torch.tensor([IDS])).logits[0])
    close(model.logits(trace.final), trace.logits)
    assert (trace[0].pattern[:, -1, :4] == 0).all()


@pytest.mark.parametrize("cls", [GPT2Model, GPT2ForSequenceClassification])
def test_without_a_language_model_head(cls: type[Any]) -> None:
    module = cls(GPT2Model.config_class(**GPT2)).eval()
    model = Model.from_module(module).view("raw")
    short, _ = model.trace([IDS[:3], IDS])  # no padding token is needed
    hidden = module.base_model(input_ids=torch.tensor([IDS[:3]])).last_hidden_state[0]
    close(short.normed, hidden.detach())
    for ask in (lambda: short.logits, lambda: model.trace(IDS, what="logits")):
        with pytest.raises(LexrayError, match="no language-model head"):
            ask()
    with pytest.raises(LexrayError, match="cannot continue"):
        model.trace(IDS, new_tokens=1)


def test_sentiment_model_runs_without_its_final_norm() -> None:
    trace = (
        Model.from_pretrained("demo-sentiment").view("raw").trace("A good film", what="residual")
    )
    assert torch.equal(trace.normed, trace.final)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gptj", "falcon-rw", "olmo2", "qwen2-moe"])
def test_dtype_passes_through(name: str, dtype: torch.dtype) -> None:
    trace = Model.from_module(copy.deepcopy(build(name)).to(dtype)).view("raw").trace(IDS)
    odd = {key for key, x in trace.parts.items() if x.is_floating_point() and x.dtype != dtype}
    assert {part for _, part in odd} <= {"weights"}  # routers decide in float32
    exact = Model.from_module(build(name)).view("raw").trace(IDS)
    at = trace[0]
    rough = 1e-5 if dtype == torch.float64 else 0.05
    for name in ("q", "q_rotated", "k_rotated", "pattern", "z", "attn_write", "mlp_write"):
        ours, theirs = getattr(at, name).float(), getattr(exact[0], name)
        assert (ours - theirs).abs().max() < rough * (1 + theirs.abs().max()), name


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
@pytest.mark.parametrize("built_in", ["eager", "batched_mm", "grouped_mm"])
def test_experts_are_transformers_own(name: str, built_in: str) -> None:
    """The one computation that is done here is what transformers' functions compute."""
    module = copy.deepcopy(build(name))
    experts: Any = next(m for m in module.modules() if hasattr(m, "gate_up_proj"))
    torch.manual_seed(0)
    x, weights = torch.randn(6, 24), torch.rand(6, 2)
    picked = torch.stack([torch.randperm(5)[:2] for _ in range(6)])
    experts.config._experts_implementation_internal = built_in
    with torch.no_grad():
        theirs = experts(x, picked, weights)
        ours, coefficients = run_experts(experts, x, picked, weights)
    close(ours, theirs)
    down = experts.down_proj.detach()[picked]
    close(torch.einsum("tk,tkf,tkdf->td", weights, coefficients, down), theirs)


def test_kept_tensors_are_copies(model: Model) -> None:
    trace = model.trace(IDS, device="cpu")
    assert all(x.device.type == "cpu" and not x.requires_grad for x in trace.parts.values())
    trace[0].resid_pre.zero_()
    assert trace.embed.abs().sum() == 0  # one tensor under two names
    assert model.trace(IDS).embed.abs().sum() > 0
