"""Traces of encoder–decoders: recorded parts rebuild transformers' own pass, source to logit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from lexray.errors import LexrayError
from lexray.families import Norm
from lexray.model.model import Model
from lexray.trace.trace import Trace
from tests.families import forward
from tests.families.oracles import close
from tests.families.pairs import PAIRS, build_pair
from tests.families.test_pairs import worded_pair

SOURCE, TARGET = [5, 11, 3, 29, 36, 7, 20, 8], [14, 9, 31, 6]
every = pytest.mark.parametrize("name", [v.name for v in PAIRS])


@cache
def case(name: str) -> tuple[Trace, Any]:
    module: Any = build_pair(name)
    trace = worded_pair(name).view("raw").trace(SOURCE, target=TARGET)
    with torch.no_grad():
        out = module(
            input_ids=torch.tensor([SOURCE]),
            decoder_input_ids=torch.tensor([[module.config.decoder_start_token_id, *TARGET]]),
            output_attentions=True,
            output_hidden_states=True,
        )
    return trace, out


def normed(norm: Norm | None, x: Tensor, model: Any) -> Tensor:
    return x if norm is None else norm(x, model.checkpoint)


@every
def test_it_is_the_models_own_pass(name: str) -> None:
    trace, out = case(name)
    close(trace.logits, out.logits[0])
    close(trace.model.logits(trace.final), out.logits[0])
    for ours, states, weights in (
        (trace, out.decoder_hidden_states, out.decoder_attentions),
        (trace.encoder, out.encoder_hidden_states, out.encoder_attentions),
    ):
        for n, theirs in enumerate(states[:-1]):
            close(ours[n].resid_pre, theirs[0])
            close(ours[n].pattern, weights[n][0])
        close(ours.normed, states[-1][0])
    for n, theirs in enumerate(out.cross_attentions):
        close(trace[n].cross.pattern, theirs[0])


@every
def test_blocks_add_up(name: str) -> None:
    trace, out = case(name)
    model: Model = trace.weights
    for layer in model.layers:
        x, spec = trace[layer.index], layer.spec
        cross = spec.cross
        assert cross is not None
        close(x.resid_self, normed(spec.attention.sum_norm, x.resid_pre + x.attn_out, model))
        before = x.resid_pre if spec.merged else x.resid_self
        close(x.cross.read, normed(cross.pre_norm, before, model))
        close(x.resid_mid, normed(cross.sum_norm, x.resid_self + x.cross.out, model))
        close(x.mlp_in, normed(spec.ff.pre_norm, x.resid_mid, model))
        close(x.resid_post, normed(spec.ff.sum_norm, x.resid_mid + x.mlp_out, model))
        total = torch.zeros_like(x.resid_pre)
        source = out.encoder_last_hidden_state[0]
        for head in layer.cross_heads:
            i, j = head.index, head.kv_index
            close(x.cross.k[:, j], head.keys(source))
            close(x.cross.v[:, j], head.values(source))
            close(x.cross.q[:, i], head.queries(x.cross.read))
            close(x.cross.z[:, i], x.cross.pattern[i] @ x.cross.v[:, j])
            total = total + x.cross.z[:, i] @ head.W_O
        b_O = None if spec.merged else layer.cross_heads[0].b_O  # which is the other's
        close(total if b_O is None else total + b_O, x.cross.write)
    for stack in (trace, trace.encoder):
        a = stack.weights.architecture
        parts = sum(stack.embed_parts.values())
        close(normed(a.embed_norm, parts, stack.weights), stack.embed)
        close(stack.embed_parts["token"], stack.weights.W_E[stack.ids] * a.embed_scale)


@every
@pytest.mark.parametrize("sources", [False, True])
def test_contributions_add_up_to_the_logit(name: str, sources: bool) -> None:
    trace, _ = case(name)
    for position in (-1, 1):
        found = trace.contributions(9, position, sources=sources)
        logit = float(trace.logits_uncapped[position, 9])
        assert found.logit == pytest.approx(logit, abs=1e-5)
        assert sum(leaf.contribution for leaf in found) == pytest.approx(logit, abs=5e-4)
        names = {leaf.component for leaf in found}
        assert {"L0H0", "L0X0", "L1X2"} <= names
    if sources:
        at = {leaf.source for leaf in found if leaf.component == "L1X2"}
        assert at == set(range(len(SOURCE)))


@every
def test_readings_of_the_pass(name: str) -> None:
    trace, out = case(name)
    lens = trace.lens(k=3)
    close(lens.top_probs[-1], out.logits[0].softmax(-1).topk(3).values)
    assert len(trace.encoder.lens(k=3).names) == len(trace.encoder.layers) + 1
    text = str(trace.contributions(9, -1))
    assert "X" in text
    assert repr(trace.source.tokens[0]) == repr(trace.encoder.tokens[0])


@every
def test_the_target_is_continued(name: str) -> None:
    trace = worded_pair(name).view("raw").trace(SOURCE, target=TARGET[:1], new_tokens=3)
    assert trace.n_prompt == 2
    picked = trace.logits[1:-1].argmax(-1).tolist()
    assert trace.ids[2:].tolist() == picked


@every
def test_restricted_is_a_slice(name: str) -> None:
    whole, _ = case(name)
    some = worded_pair(name).view("raw").trace(SOURCE, target=TARGET, positions=[-1, 1], layers=-1)
    assert (some.positions, some.layers) == ((1, 4), (whole.model.n_layers - 1,))
    close(some[-1].cross.pattern, whole[-1].cross.pattern[:, [1, 4]])
    close(some[-1].cross.k, whole[-1].cross.k)
    close(some[-1].cross.write, whole[-1].cross.write[[1, 4]])
    close(some.logits, whole.logits[[1, 4]])


@every
def test_attention_of_all_three(name: str) -> None:
    trace, out = case(name)
    looks = trace.attention(cross=True)
    assert looks.keys == trace.encoder.tokens
    close(looks["L1X2"].weights, out.cross_attentions[1][0, 2])
    close(trace.attention()["L1H2"].weights, out.decoder_attentions[1][0, 2])
    close(trace.encoder.attention()["enc.L1H2"].weights, out.encoder_attentions[1][0, 2])
    page = looks.to_html()
    assert "Cross-attention" in page
    assert '"keys"' in page
    assert "L1X2" in looks.plot().to_svg()
    words = trace.lens("cross_heads", layers=[1], positions=[-1], heads=[2], k=5)
    assert looks["L1X2"].words == tuple(
        trace.model.vocabulary.shown(i) for i in words.top_ids[0, 0].tolist()
    )
    with pytest.raises(LexrayError, match="no cross-attention"):
        trace.encoder.attention(cross=True)


@every
def test_vectors_of_cross_attention_are_read(name: str) -> None:
    trace, _ = case(name)
    kinds = ["self", "cross", "cross_in", "cross_heads"]
    lens = trace.lens(kinds, layers=[1], positions=[-1], k=3)
    model = trace.model
    vectors = [trace[1].resid_self, trace[1].cross.out, trace[1].cross.read]
    for line, vector in zip(lens.top_ids[:3, 0], vectors, strict=True):
        logits = model.logits(vector[-1:])[0]
        assert line.tolist() == logits.topk(3).indices.tolist()
    assert [line.name for line in lens.lines[3:]] == [
        f"L1X{h} cross_heads" for h in range(model.n_heads)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flan-t5", "bart"])
def test_batches_have_means(name: str) -> None:
    model = worded_pair(name)
    batch = model.trace([(SOURCE, TARGET), (SOURCE[:4], TARGET[:2]), (SOURCE[1:], [])])
    assert [len(trace) for trace in batch] == [5, 3, 1]
    means = batch.contributions([9, 9, 9])
    alone = [trace.contributions(9)["L1X2"] for trace in batch]
    assert means["L1X2"].mean == pytest.approx(sum(alone) / 3, abs=1e-5)
    assert "cross-attention: added to the logit" in means.plot().to_svg()
    assert len(batch.lens([9, 9, 9]).lines) == model.n_layers + 1
    with pytest.raises(LexrayError, match="one target"):
        model.trace(SOURCE, target=[[1, 2], [3]])


@every
def test_the_encoder_alone(name: str) -> None:
    model = worded_pair(name).view("raw")
    whole, _ = case(name)
    alone = model.encoder.trace(SOURCE)
    close(alone.final, whole.encoder.final)
    edited = model.encoder.trace([SOURCE, SOURCE[:3]], edits="ablate enc.L1H1")
    both = model.trace(SOURCE, target=TARGET, edits="ablate enc.L1H1")
    close(edited[0].final, both.encoder.final)


@pytest.mark.parametrize("name", ["bart", "pegasus"])
def test_texts_that_are_too_long_are_refused(name: str) -> None:
    model = worded_pair(name)
    for source, target in (([5] * 33, [3]), ([5], [3] * 32)):
        with pytest.raises(LexrayError, match="at most 32"):
            model.trace(source, target=target)


@pytest.mark.parametrize("name", [v.name for v in PAIRS if v.model_type.startswith("t5gemma")])
def test_a_token_alone_has_no_source(name: str) -> None:
    """What the first block makes of it is what its own attention and feed-forward do."""
    model = worded_pair(name).view("raw")
    layer, checkpoint = model.layers[0], model.checkpoint
    x = model.W_E * model.architecture.embed_scale
    if model.architecture.blocks[0].merged:
        special = "model.decoder.embed_tokens.eoi_embedding"
        x = x.index_copy(0, torch.tensor([35]), checkpoint.read(special)[None])
    close(model.lone_states(entering=True), x)
    for part, written in (
        (layer.spec.attention, lambda y: sum(h.values(y) @ h.W_O for h in layer.heads)),
        (layer.spec.ff, lambda y: forward.written(layer.ff, y)),
    ):
        assert part.pre_norm is not None
        assert part.post_norm is not None
        out = written(part.pre_norm(x, checkpoint))
        bias = layer.heads[0].b_O if part is layer.spec.attention else None
        x = x + part.post_norm(out if bias is None else out + bias, checkpoint)
    close(model.lone_states(entering=False), x)


@every
def test_a_file_runs_as_transformers_runs_it(name: str, tmp_path: Path) -> None:
    build_pair(name).save_pretrained(tmp_path)
    trace = Model.from_pretrained(tmp_path).view("raw").trace(SOURCE, target=TARGET)
    module = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        out = module(input_ids=torch.tensor([SOURCE]), decoder_input_ids=trace.ids[None])
    close(trace.logits, out.logits[0])
