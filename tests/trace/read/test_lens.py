"""The lens against transformers' own hidden states, and queries and keys against its attention."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from transformers import AutoModel

from lexray.choice import numbers
from lexray.errors import LexrayError
from lexray.families import Experts
from lexray.model.model import Model
from lexray.trace.read.grid import Grid, GridCell, clip
from lexray.trace.read.lens import Lens
from lexray.trace.read.score import token_ids
from lexray.trace.read.targets import token_id
from lexray.trace.read.vectors import KINDS, key_readers, query_readers, what_for
from lexray.trace.trace import Trace
from tests.families.apart import decode
from tests.families.span import spanning
from tests.families.test_pairs import worded_pair
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

IDS = [5, 11, 3, 29, 36, 7, 20]
TARGET = 9


@cache
def traced(name: str) -> Trace:
    return worded(name).trace(IDS)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-4) -> None:
    theirs = theirs.detach()
    scale = float(theirs.abs().max()) + 1
    torch.testing.assert_close(ours.to(theirs), theirs, rtol=tolerance, atol=tolerance * scale)


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
            probs = own_probabilities(name, h[0])
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


# ---------------------------------------------------------------------- queries and keys


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


# ---------------------------------------------------------------------- how it is shown


def test_cells_and_lines() -> None:
    found = traced("gpt2").lens(target="law", layers=[1], positions=[2, -1])
    assert found.names == ["L1"]
    assert found.positions == (2, 6)
    (token, p), *_ = found.top("L1", -1)
    assert (token.id, p) == (int(found.top_ids[0, 1, 0]), float(found.top_probs[0, 1, 0]))
    with pytest.raises(LexrayError, match="no line 'L7'; it has 1, from L1 to L1"):
        found.top("L7")
    with pytest.raises(LexrayError, match="no position 3; it has 2, 6"):
        found.top(0, 3)


def test_every_form() -> None:
    found = traced("gpt2").lens(target="<script>", k=3)
    data = json.loads(found.to_json())
    assert data["target"] == {"id": 8, "text": "<script>"}
    assert [line["name"] for line in data["lines"]] == ["embed", "L0", "L1"]
    cell = data["lines"][2]["cells"][4]
    assert found.target_ranks is not None
    assert cell["target"]["rank"] == int(found.target_ranks[2, 4]) + 1
    assert cell["top"][0]["probability"] == float(found.top_probs[2, 4, 0])
    frame = found.to_pandas()
    assert len(frame) == 3 * len(IDS) * 3
    assert set(frame.columns) > {"line", "position", "probability", "entropy", "target_rank"}
    page = found.to_html()
    assert "<script>" not in page
    assert page.count("rgba(") == 2 * 3 * len(IDS)
    chart = found.plot()
    strengths = [[cell.strength for cell in line] for line in found.grids()[1].cells]
    assert [[square.strength for square in line] for line in chart.squares] == strengths
    assert list(chart.names) == ["embed", "L0", "L1"], "the order of the table"
    assert "<script>" not in chart.to_svg()
    (heat,) = chart.to_plotly().data
    assert [list(line) for line in heat.z] == strengths
    assert "<script>" not in str(heat.text)


def test_long_prompts_show_the_last_positions_that_fit() -> None:
    trace = traced("llama").model.trace([i % 30 + 3 for i in range(40)])
    text = str(trace.lens())
    assert max(map(len, text.splitlines())) <= 100
    assert "earlier positions left out for lack of width" in text
    assert " 39 " in text
    assert " 3 " not in text.splitlines()[2]
    wide = Console(width=2000, record=True, force_terminal=True, color_system="truecolor")
    with wide.capture() as captured:
        wide.print(trace.lens())
    assert "left out" not in captured.get()
    assert "\x1b[" in captured.get()


def test_one_position_needs_no_grid() -> None:
    found = traced("llama").lens(positions=-1)
    assert len(found.tables()) == 1
    assert found.grids() == []


def test_grids() -> None:
    cells = tuple(GridCell("x" * 10, p) for p in (0.0, 0.5, 1.0))
    grid = Grid("title", "", ("a", "b", "c"), ("L0",), (cells,), "a note")
    assert grid.fitting(100) is grid
    narrow = grid.fitting(34)
    assert narrow.columns == ("b", "c")
    assert narrow.note == "a note · 1 earlier position left out for lack of width"
    assert grid.fitting(1).columns == ("c",)
    assert clip("日本日本日本日本日本") == "日本日本日本 …"


# ---------------------------------------------------------------------- whole words


def test_the_score_of_a_word_of_several_tokens() -> None:
    trace = traced("gpt2")
    found = trace.score("abc")
    word = trace.model.vocabulary.encode("abc")
    assert len(word) == 3
    with torch.no_grad():
        logits = build("gpt2")(torch.tensor([[*IDS, *word]])).logits[0].log_softmax(-1)
    expected = [float(logits[len(IDS) - 1 + i, token]) for i, token in enumerate(word)]
    assert [scored.score for scored in found.tokens] == pytest.approx(expected, abs=1e-4)
    assert found.log_probability == pytest.approx(sum(expected), abs=1e-4)
    assert trace.score([9]).probability == pytest.approx(
        float(trace.logits[-1].softmax(-1)[9]), abs=1e-5
    )
    assert trace.score(9) == trace.score([9]) == trace.score(trace.model.space.token(9))
    assert "the whole word" in str(found)
    assert len(json.loads(found.to_json())["tokens"]) == 3
    with pytest.raises(LexrayError, match="has no tokens"):
        trace.score("")
    with pytest.raises(LexrayError, match="predicts masked tokens"):
        traced("bert").score("a")


# ---------------------------------------------------------------------- mistakes


def refused(message: str, trace: Trace, *arguments: Any, **options: Any) -> None:
    with pytest.raises(LexrayError, match=message):
        trace.lens(*arguments, **options)


@pytest.mark.parametrize("wrong", ["01", 1.5, [1.5], ["f"], None])
def test_what_is_no_number(wrong: Any) -> None:
    with pytest.raises(LexrayError, match="heads are given as a number, a list of numbers or a sl"):
        numbers(wrong, "head")
    with pytest.raises(LexrayError, match="a target is a token's text or its id, not "):
        token_id(wrong)
    with pytest.raises(LexrayError, match="a word is a text, a token or token ids, not "):
        token_ids(wrong)


def test_mistakes() -> None:
    trace = traced("gpt2")
    refused(f"cannot read 'head'; of= takes some of {', '.join(KINDS)}", trace, "head")
    refused("a lens cannot read", trace, [])
    refused("no layer 7: the layers are 0–1", trace, layers=[0, 7])
    refused("no position 9", trace, positions=[9])
    refused("no head 3", trace, "heads", heads=3)
    refused("neurons are listed at one position, not at 2", trace, "neurons", positions=[1, 2])
    refused("there is no position 7", trace, "keys", query=7)
    refused("looks at no later keys", trace, "keys", query=1, positions=[3])
    refused("k must be at least 1", trace, k=0)
    refused("asked for the 0 strongest neurons", trace, "neurons", neurons=0)
    refused("asked for the -1 strongest neurons", trace, "neurons", neurons=-1)
    refused("'fg' is 2 tokens", trace, target="fg")
    assert "f is the first of f + g" in trace.lens(target="fg", first=True).note
    refused("no transform in its LM head", trace, transform=True)
    model = trace.model
    refused("layer 0 was not kept", model.trace(IDS, layers=[1]), layers=[0])
    refused("what=", model.trace(IDS, what="residual"), "heads")
    with pytest.raises(LexrayError, match="the prompt is empty"):
        model.trace("").lens()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_trace_has_to_keep(kind: str) -> None:
    what = what_for([kind])
    if kind.startswith(("self", "cross")):
        trace = worded_pair("bart").trace(IDS, target=IDS[:3], what=what, layers=[1])
    else:
        name = "falcon-h1" if kind.startswith("mixer") else "gemma2"
        trace = worded(name).trace(IDS, what=what, layers=[1])
    positions = -1 if kind == "neurons" else None
    assert len(trace.lens(kind, positions=positions).lines) >= 1


def test_what_a_model_does_not_have() -> None:
    with pytest.raises(LexrayError, match=r"has no mixer in layers 0, 1"):
        traced("gemma2").lens("mixer")


def test_a_body_without_a_head() -> None:
    """Tied embeddings read it all the same; without an unembedding there is nothing to read by."""
    tied = Model.from_module(AutoModel.from_config(build("gpt2").config).eval())
    assert len(tied.trace(IDS).lens().lines) == 3
    untied = Model.from_module(AutoModel.from_config(build("llama").config).eval())
    refused("the output embedding", untied.trace(IDS))


def test_a_target_is_coloured_by_the_log_of_its_rank() -> None:
    """Cells of rank 1 are darkest, ranks in the lower half of the vocabulary have no colour."""
    model = worded("gpt2")
    found = model.trace(IDS).lens(target=9)
    assert found.target_ranks is not None
    size = model.space.n_rows
    cells = found.grids()[1].cells
    for line, ranks in zip(cells, found.target_ranks.tolist(), strict=True):
        for cell, above in zip(line, ranks, strict=True):
            expected = max(0.0, 1 - math.log1p(above) / math.log1p(size / 2))
            assert cell.strength == pytest.approx(expected if above <= size - 1 - above else 0.0)
            assert cell.text.endswith(f"#{above + 1}")
    colours = [[square.strength for square in line] for line in found.plot().squares]
    assert colours == [[cell.strength for cell in line] for line in cells]
