"""The lens against transformers' own hidden states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.families import Experts
from lexray.model.model import Model
from lexray.trace.read.lens import Lens
from tests.families.apart import decode
from tests.families.forward import united
from tests.families.span import spanning
from tests.families.zoo import build
from tests.trace.read.traced import IDS, TARGET, close, traced

# ---------------------------------------------------------------------- the residual stream


def own_probabilities(name: str, h: Tensor) -> Tensor:
    """A hidden state through transformers' final norm and head."""
    module: Any = build(name)
    final = traced(name).model.architecture.final_norm
    if final is not None and final.module is not None:
        h = module.get_submodule(final.module)(h)
    elif final is not None:
        norms = torch.nn.functional
        norm = norms.layer_norm if final.centres else norms.rms_norm
        h = norm(h, h.shape[-1:], eps=final.eps)
    decoder = getattr(module.base_model, "decoder", None)
    if getattr(decoder, "project_out", None) is not None:
        h = decoder.project_out(h)
    logits = decode(module, h) * (getattr(module.config, "logit_scale", 1) or 1)
    logits = logits / getattr(module.config, "logits_scaling", 1)
    logits = logits * getattr(module.config, "lm_head_multiplier", 1)
    cap = getattr(module.config, "final_logit_softcapping", None)
    return (logits if cap is None else cap * (logits / cap).tanh()).softmax(-1)


@spanning
def test_every_layer_is_what_transformers_makes_of_its_hidden_states(name: str) -> None:
    module: Any = build(name)
    with torch.no_grad():
        out = module(input_ids=torch.tensor([IDS]), output_hidden_states=True)
        found = traced(name).lens(target=TARGET, k=4)
        layers = range(traced(name).model.n_layers)
        assert found.names == ["embed", *(f"L{n}" for n in layers)]
        for line, h in enumerate(out.hidden_states[:-1]):
            several = traced(name).model.architecture.streams is not None
            probs = own_probabilities(name, united(module, h[:, 0]) if several else h[0])
            compare(found, line, probs)
        if traced(name).model.architecture.head is None:
            compare(found, -1, out.logits[0].softmax(-1))


def compare(found: Lens, line: int, probs: Tensor) -> None:
    assert found.target_probs is not None
    assert found.target_ranks is not None
    close(found.top_probs[line], probs.topk(4).values)
    close(found.target_probs[line], probs[:, TARGET])
    close(found.entropy[line], -(probs * probs.log()).sum(-1))
    near = (probs - probs[:, [TARGET]]).abs() < 1e-6
    above = (probs > probs[:, [TARGET]]).sum(-1)
    assert ((found.target_ranks[line] - above).abs() < near.sum(-1)).all()


TRANSFORMED = ["bert", "roberta", "distilbert", "modernbert", "bert-untied", "electra", "albert"]


@pytest.mark.parametrize("name", [*TRANSFORMED, "mpnet", "deberta-v2", "deberta-v3"])
def test_encoders_through_their_transform(name: str) -> None:
    with torch.no_grad():
        logits = build(name)(input_ids=torch.tensor([IDS])).logits[0]
    found = traced(name).lens(k=3, transform=True)
    close(found.top_probs[-1], logits.softmax(-1).topk(3).values)
    assert "through the LM head's transform" in found.note
    assert "without the LM head's transform" in traced(name).lens(k=3).note


def test_without_the_final_norm() -> None:
    trace = traced("llama")
    found = trace.lens(norm=False, k=3)
    close(found.top_probs[-1], (trace.final @ trace.model.W_U).softmax(-1).topk(3).values)
    assert "without the final norm" in found.note


# ---------------------------------------------------------------------- all that can be read


def probabilities(model: Model, X: Tensor) -> Tensor:
    """What the model would predict from these residual streams, its LM head's transform aside."""
    a, x = model.architecture, X.double()
    x = x if a.final_norm is None else a.final_norm(x, model.checkpoint)
    logits = x @ model.W_U.double() * a.logit_scale
    logits = logits if model.b_U is None else logits + model.b_U.double()
    return (logits if a.logit_cap is None else a.logit_cap * (logits / a.logit_cap).tanh()).softmax(
        -1
    )


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "neox", "olmo2", "bert", "opt-350m"])
def test_all_parts_in_one_batch(name: str) -> None:
    """Lines of several kinds come out in order, whichever side they are projected on."""
    trace = traced(name)
    kinds = ["pre", "mid", "attention", "queries", "mlp", "attn_in", "mlp_in", "post"]
    found = trace.lens(kinds, k=2, heads=[1])
    per_layer = len(kinds)
    assert len(found.lines) == per_layer * trace.model.n_layers
    for n in range(trace.model.n_layers):
        layer, lines = trace[n], slice(n * per_layer, (n + 1) * per_layer)
        expected = {
            "pre": layer.resid_pre,
            "mid": layer.resid_mid,
            "post": layer.resid_post,
            "attention": layer.attn_out,
            "mlp": layer.mlp_out,
            "attn_in": layer.attn_in,
            "mlp_in": layer.mlp_in,
        }
        for label, probs in zip(found.lines[lines], found.top_probs[lines], strict=True):
            assert label.layer == n
            if label.of == "queries":
                assert label.name == f"L{n}H1 queries"
            else:
                wanted = probabilities(trace.model, expected[label.of])
                close(probs, wanted.topk(2).values)


@pytest.mark.parametrize("name", ["gpt2", "mistral", "falcon-7b", "bert"])
def test_heads_and_memory_values_through_the_output_matrix(name: str) -> None:
    trace = traced(name)
    outputs, values = (trace.lens(of, k=3, layers=1) for of in ("heads", "values"))
    for head in trace.weights.layers[1].heads:
        written = trace[1].z[:, head.index] @ head.W_O
        close(outputs.top_probs[head.index], probabilities(trace.model, written).topk(3).values)
        memory = trace[1].v[:, head.kv_index] @ head.W_O
        close(values.top_probs[head.index], probabilities(trace.model, memory).topk(3).values)


@pytest.mark.parametrize("name", ["gemma2", "olmo2"])
def test_heads_pass_the_norm_after_the_attention(name: str) -> None:
    """Heads and bias, each through the post-norm at its recorded scale, are what was added."""
    from lexray.trace.read.vectors import Selection

    trace = traced(name)
    lines = Selection(trace, (1,), trace.positions).lines(["heads"])
    close(torch.stack([line.vectors for line in lines]).sum(0), trace[1].attn_out)
    neurons = Selection(trace, (1,), (3,), neurons=1000).lines(["neurons"])
    close(torch.stack([line.vectors for line in neurons]).sum(0)[0], trace[1].mlp_out[3])


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2-moe"])
def test_neurons_carry_the_sign_of_their_coefficients(name: str) -> None:
    trace = traced(name)
    found = trace.lens("neurons", layers=0, neurons=40, positions=4, k=3)
    strengths, negative = [], 0
    for i, line in enumerate(found.lines):
        value = trace.weights[line.name].W_out
        assert line.coefficient is not None
        strengths.append(abs(line.coefficient) * float(value.norm()))
        probs = probabilities(trace.model, line.coefficient * value[None])
        close(found.top_probs[i], probs.topk(3).values)
        negative += line.coefficient < 0
        if isinstance(trace[0].spec.ff, Experts):
            continue
        assert trace[0].coefficients is not None
        at = trace.weights[line.name].index
        assert line.coefficient == pytest.approx(float(trace[0].coefficients[4, at]))
    assert negative > 0
    assert strengths == sorted(strengths, reverse=True)
    assert "coefficient" in found.detail().columns
