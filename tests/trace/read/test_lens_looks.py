"""Queries and keys in the lens against the attention of transformers' own pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.trace.read.vectors import key_readers, query_readers
from lexray.trace.trace import Trace
from tests.families.span import spanning
from tests.trace.read.traced import IDS, close, traced
from tests.vocabulary.vocabularies import worded


def attention_score(head: Any, q: Tensor, k: Tensor, offset: int) -> Tensor:
    R = head.rotation(offset)
    return (q if R is None else q @ R.to(q)) @ k * head.spec.scale


@spanning
def test_queries_and_keys_give_the_attention_scores(name: str) -> None:
    """The right side: q R W_Kᵀ times what a key is made of is the score that the model computes
    from its turned queries and keys, and so is k Rᵀ W_Qᵀ times what a query is made of."""
    trace = traced(name)
    for index in range(trace.model.n_layers):
        layer, spec = trace[index], trace[index].spec.attention
        if spec.q_norm is not None or spec.clip is not None or spec.absent:
            continue
        x = layer.attn_in
        for head in trace.weights.layers[index].heads:
            q, k = layer.q[:, head.index], layer.k[:, head.kv_index]
            turned = layer.q_rotated[:, head.index], layer.k_rotated[:, head.kv_index]
            scores = turned[0] @ turned[1].T * spec.scale
            if spec.temperature is not None:
                scores = scores / spec.temperature(torch.arange(len(IDS)))[:, None]
            for j in (2, 6):
                offsets = torch.arange(len(IDS)) - j
                shift = torch.stack(
                    [
                        attention_score(head, q[j], k[i] - x[i] @ head.W_K, i - j)
                        for i in range(len(IDS))
                    ]
                )
                readers = query_readers(head, q[[j]].expand(len(IDS), -1), offsets, norm=False)
                close((readers * x).sum(-1) + shift, scores[j])
                from_keys = key_readers(head, k, offsets, norm=False)
                rest = q[j] - x[j] @ head.W_Q
                shift = torch.stack(
                    [attention_score(head, rest, k[i], i - j) for i in range(len(IDS))]
                )
                close(from_keys @ x[j] + shift, scores[j])


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "phi-qk-norm", "stablelm-parallel", "gemma3"])
def test_behind_a_norm_of_queries_and_keys(name: str) -> None:
    """With the norm's scale held, readers are the gradients of the score, up to that scale."""
    trace, i, j = traced(name), 3, 5
    layer, offset = trace[1], torch.tensor([i - j])
    for head in trace.weights.layers[1].heads:
        spec = head.spec
        q, k = layer.q[j, head.index].double(), layer.k[i, head.kv_index].double()

        x = layer.attn_in[i].double().requires_grad_()
        unscaled = before_scaling(trace, spec.k_norm, spec.k, head.kv_index, x @ head.W_K.double())
        (grad,) = torch.autograd.grad(attention_score(head, q, unscaled, i - j), x)
        close(query_readers(head, q[None], offset, norm=False)[0], grad, 1e-5)

        x = layer.attn_in[j].double().requires_grad_()
        unscaled = before_scaling(trace, spec.q_norm, spec.q, head.index, x @ head.W_Q.double())
        (grad,) = torch.autograd.grad(attention_score(head, unscaled, k, i - j), x)
        close(key_readers(head, k[None], offset, norm=False)[0], grad, 1e-5)


def before_scaling(trace: Trace, norm: Any, heads: Any, index: int, x: Tensor) -> Tensor:
    """A query or key behind its norm, but for the division by its size and for biases."""
    if norm.joint is not None:
        gain = norm.joint.read_gain(trace.model.checkpoint)[heads.outputs(index)]
    else:
        own = norm.heads[index]
        gain, x = own.read_gain(trace.model.checkpoint), x - x.mean() if own.centres else x
    return x if gain is None else x * gain.double()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma", "neox"])
def test_the_norm_before_the_attention_is_folded_in(name: str) -> None:
    """So that the bare residual stream can be multiplied: C(γ ⊙ reader)."""
    trace = traced(name)
    layer, head = trace[1], trace.weights.layers[1].heads[1]
    norm, zeros = head.spec.pre_norm, torch.zeros(len(IDS), dtype=torch.long)
    assert norm is not None
    plain, folded = (
        query_readers(head, layer.q[:, 1], zeros, norm=folded) for folded in (False, True)
    )
    bias = norm.read_bias(trace.model.checkpoint)
    x = layer.attn_in - (0 if bias is None else bias)
    close(folded @ norm.bare(layer.resid_pre).T, plain @ x.T)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_lens_turns_queries_and_keys_by_their_distance(name: str) -> None:
    trace = traced(name)
    layer, head = trace[1], trace.weights.layers[1].heads[2]
    best = layer.pattern[2].argmax(-1) - torch.arange(len(IDS))
    for offset, offsets in ((None, best), (-2, torch.full_like(best, -2))):
        found = trace.lens("queries", layers=1, heads=2, offset=offset, k=2)
        readers = query_readers(head, layer.q[:, 2], offsets)
        close(found.top_probs[0], (readers @ trace.model.W_U).softmax(-1).topk(2).values)
    found = trace.lens("keys", layers=1, heads=2, query=4, k=2)
    assert found.positions == (0, 1, 2, 3, 4)
    readers = key_readers(head, layer.k[:5, head.kv_index], torch.arange(5) - 4)
    close(found.top_probs[0], (readers @ trace.model.W_U).softmax(-1).topk(2).values)
    assert "keys as seen from position 4" in found.note
    assert ("at the actual distance" in found.note) == (name == "llama")


def test_readers_use_the_reading_embedding_of_the_view() -> None:
    model = worded("gpt2-untied-wide").view(reading="input")
    trace = model.trace(IDS)
    found = trace.lens("queries", layers=1, heads=0, k=2)
    head = trace.weights.layers[1].heads[0]
    best = trace[1].pattern[0].argmax(-1) - torch.arange(len(IDS))
    readers = query_readers(head, trace[1].q[:, 0], best)
    close(found.top_probs[0], (readers @ model.W_E.T).softmax(-1).topk(2).values)
    assert "input embedding" in found.note
