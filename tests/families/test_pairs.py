"""Encoder–decoders against transformers' own modules: both stacks and what lies between them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.address import Address
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.diff import diff
from lexray.compare.stitch.stitch import stitch
from lexray.errors import LexrayError
from lexray.model.layer import Layer
from lexray.model.model import Model
from tests.families import forward
from tests.families.oracles import Calls, close, parameters, recorded
from tests.families.pairs import PAIRS, build_pair
from tests.vocabulary.vocabularies import vocabulary

SOURCE = torch.tensor([[5, 11, 3, 29, 36, 7, 20, 8]])
TARGET = torch.tensor([[2, 14, 9, 31, 6]])
every = pytest.mark.parametrize("name", [v.name for v in PAIRS])


def models(name: str, folder: Path) -> list[Model]:
    module = build_pair(name)
    module.save_pretrained(folder)
    return [Model.from_module(module).view("raw"), Model.from_pretrained(folder).view("raw")]


def run_pair(module: Any) -> Any:
    with torch.no_grad():
        return module(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True)


def scores(layer: Layer, x: Tensor, source: Tensor | None) -> Tensor:
    """(head, query, key) scores, of a stack's own attention or (`source`) of cross-attention."""
    heads = layer.heads if source is None else layer.cross_heads
    y, at = x if source is None else source, torch.arange(len(x))
    found = []
    for head in heads:
        q, k, turn = head.queries(x), head.keys(y), head.spec.rotary
        here = head.distance_scores(q, k, at) if source is None else 0
        if turn is not None:  # a source's keys are not turned
            q, k = (
                turn.turn(q[:, None], at)[:, 0],
                k if source is not None else turn.turn(k[:, None], at)[:, 0],
            )
        score, cap = q @ k.T * head.spec.scale + here, head.spec.cap
        found.append(score if cap is None else cap * (score / cap).tanh())
    return torch.stack(found)


def looks(layer: Layer, x: Tensor, source: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights of own and of cross-attention: of one softmax, where both are one."""
    causal, spec = layer.weights.architecture.causal, layer.spec.attention
    back = torch.arange(len(x))[:, None] - torch.arange(len(x))
    hidden = back < 0 if causal else torch.zeros_like(back, dtype=torch.bool)
    if spec.window is not None:
        hidden = hidden | (back >= spec.window) | (-back >= (spec.ahead or spec.window))
    own = scores(layer, x, None).masked_fill(hidden, -torch.inf)
    if source is None or not layer.spec.merged:
        return own.softmax(-1), torch.zeros(0)
    both = torch.cat([own, scores(layer, x, source)], -1).softmax(-1)
    return both[..., : len(x)], both[..., len(x) :]


def output(heads: Any, y: Tensor, weights: Tensor, *, bias: bool = True) -> Tensor:
    total = sum(w @ head.values(y) @ head.W_O for head, w in zip(heads, weights, strict=True))
    b_O = heads[0].b_O if bias else None
    return total if b_O is None else total + b_O


def check_stack(
    seen: Calls, live: Model, model: Model, theirs: Any, source: Tensor | None = None
) -> None:
    """Attention and feed-forward of one stack."""
    for layer, there in zip(model.layers, live.layers, strict=True):
        spec = there.spec
        x = seen[spec.attention.q.linear.module][0]
        ours, crossing = looks(layer, x, source)
        close(ours, theirs[layer.index][0])
        written = output(layer.heads, x, ours)
        if spec.merged:
            assert source is not None
            written = written + output(layer.cross_heads, source, crossing, bias=False)
        close(written, seen[spec.attention.o.module][1])
        close(
            forward.written(layer.ff, seen[spec.ff.w_in.module][0]), seen[spec.ff.w_out.module][1]
        )


@every
def test_both_stacks_and_cross_attention(name: str, tmp_path: Path) -> None:
    module = build_pair(name)
    for model in (found := models(name, tmp_path)):
        live = found[0]
        blocks = [*live.architecture.blocks, *live.encoder.architecture.blocks]
        parts = [p for b in blocks for p in (b.attention, b.cross) if p is not None]
        names = [n for p in parts for n in (p.q.linear.module, p.k.linear.module, p.o.module)]
        names += [n for b in blocks for n in (b.ff.w_in.module, b.ff.w_out.module)]
        with recorded(module, *names) as seen:
            out = run_pair(module)
        source = out.encoder_last_hidden_state[0]
        check_stack(seen, live.encoder, model.encoder, out.encoder_attentions)
        check_stack(seen, live, model, out.decoder_attentions, source)
        for layer, there in zip(model.layers, live.layers, strict=True):
            cross = there.spec.cross
            assert cross is not None
            x = seen[cross.q.linear.module][0]
            close(source, seen.at(cross.k.linear.module, -1)[0])
            if there.spec.merged:
                weights = looks(layer, x, source)[1]
            else:
                weights = scores(layer, x, source).softmax(-1)
                close(output(layer.cross_heads, source, weights), seen[cross.o.module][1])
            close(weights, out.cross_attentions[layer.index][0])


@every
def test_logits_and_ends(name: str, tmp_path: Path) -> None:
    module = build_pair(name)
    for model in models(name, tmp_path):
        with torch.no_grad():
            out = module(input_ids=SOURCE, decoder_input_ids=TARGET, output_hidden_states=True)
            body = module.base_model if hasattr(module.base_model, "decoder") else module
            last = body.get_decoder()(
                input_ids=TARGET, encoder_hidden_states=out.encoder_last_hidden_state
            ).last_hidden_state
        bare, cap = model.view("raw"), model.architecture.logit_cap
        x = last[0] @ bare.W_U * model.architecture.logit_scale
        x = x if bare.b_U is None else x + bare.b_U
        close(x if cap is None else cap * (x / cap).tanh(), out.logits[0])
        norm = model.encoder.architecture.final_norm
        assert (norm is None) == (name in ("bart", "marian", "plbart"))


@every
def test_disk_is_memory(name: str, tmp_path: Path) -> None:
    live, disk = models(name, tmp_path)
    for ours, theirs in ((disk, live), (disk.encoder, live.encoder)):
        for (label, a), (_, b) in zip(parameters(ours), parameters(theirs), strict=True):
            assert (a is None) == (b is None), label
            assert a is None or torch.equal(a, b), label
    for a, b in zip(disk.layers, live.layers, strict=True):
        for one, other in zip(a.cross_heads, b.cross_heads, strict=True):
            for matrix in ("W_Q", "W_K", "W_V", "W_O"):
                assert torch.equal(getattr(one, matrix), getattr(other, matrix))


@every
def test_folded_cross_attention_reads_the_bare_source(name: str) -> None:
    """Keys and values stand behind the encoder's final norm, queries behind the decoder's own."""
    raw = Model.from_module(build_pair(name)).view("raw")
    folded = raw.view(folded=True)
    own, source = torch.randn(5, raw.d_model), torch.randn(5, raw.encoder.d_model)
    cross = raw.architecture.blocks[1].cross
    assert cross is not None
    for a, b in zip(raw.layers[1].cross_heads, folded.layers[1].cross_heads, strict=True):
        for kind, read in (("Q", "queries"), ("K", "keys"), ("V", "values")):
            norm, x = cross.norm_of(kind), own if kind == "Q" else source
            whole = x if norm is None else norm(x, raw.checkpoint)
            bare = x if norm is None else norm.bare(x)
            close(getattr(b, read)(bare), getattr(a, read)(whole))


def test_addresses() -> None:
    model = Model.from_module(build_pair("t5")).view("raw")
    assert str(model["enc.L1H2"].address) == "enc.L1H2"
    assert str(model["enc.l1n3.value"].address) == "enc.L1N3.value"
    assert str(model["L2X1"].address) == "L2X1"
    assert str(model["L2X1.V3"].address) == "L2X1.V3"
    assert str(model["L2X1.QK"].address) == "L2X1.QK"
    assert str(model["enc.L0"].address) == "enc.L0"
    assert torch.equal(model["enc.L1H2"].W_Q, model.encoder["L1H2"].W_Q)
    assert not torch.equal(model["enc.L1H2"].W_Q, model["L1H2"].W_Q)
    assert not torch.equal(model["L1X2"].W_Q, model["L1H2"].W_Q)
    for text in ("enc.L1X2", "L1X2N3"):
        with pytest.raises(LexrayError, match="address"):
            Address.parse(text) if text != "enc.L1X2" else model[text]
    with pytest.raises(LexrayError, match="no encoder beside it"):
        _ = model.encoder.encoder


def worded_pair(name: str) -> Model:
    return Model(ModuleCheckpoint(build_pair(name)), vocabulary=vocabulary())


@every
def test_cross_attention_is_read_in_both_spaces(name: str) -> None:
    """Pairs of VO are a source token and a written one: the dense product, with each side's E."""
    model = worded_pair(name).view("raw")
    head = model.head("L1X2")
    E_dec, E_enc = model.W_U.double(), model.encoder.W_U.double()
    VO = E_enc.T @ head.W_V.double() @ head.W_O.double() @ E_dec
    best = head.vo.top(1)[0]
    assert best.score == pytest.approx(float(VO.max()), rel=1e-4)
    assert VO[best.row.id, best.col.id] == pytest.approx(float(VO.max()), rel=1e-6)
    sides = (
        (E_dec.T @ head.W_Q.double(), head.spec.q_norm),
        (E_enc.T @ head.W_K.double(), head.spec.k_norm),
    )
    q, k = (x if norm is None else norm.heads[0](x, model.checkpoint) for x, norm in sides)
    QK = q @ k.T
    assert head.qk.top(1)[0].score == pytest.approx(float(QK.max()), rel=1e-4)
    line = head.qk.attended_by(5, 3).top
    assert [s.token.id for s in line] == QK[:, 5].topk(3).indices.tolist()


@pytest.mark.slow
@every
def test_standard_readings_of_every_part(name: str) -> None:
    """Each side by what its own stack makes of a token alone."""
    model = worded_pair(name)
    for address in ("L1H0.VO", "L1X2.VO", "L1X2.QK", "enc.L1H1.QK"):
        found = model[address].top(3)
        assert len(found) == 3
        assert "no effective embedding" not in str(found)
    for address in ("L0N3.value", "L1X2.K3", "L1X1.V0", "L0X1.Q2", "enc.L1N2.key", "enc.L0H1.O1"):
        found = model[address].top(3)
        assert found.source.address == address
        assert len(found.top) == 3
    heads = {hit.address for hit in model.heads.top(100, cols=["law"])}
    assert {"L0H0", "L0X0", "L1X2"} <= heads
    writers = {hit.address.partition(".")[0] for hit in model.lookup("law", among="O").top(500)}
    assert writers >= {"L0H0", "L1H1"}
    assert ("L1X1" in writers) != model.architecture.blocks[1].merged  # the same vectors, once
    among = {hit.address.partition("L")[0] for hit in model.encoder.lookup("law").top(50)}
    assert among == {"enc."}
    reads = {hit.address[:3] for hit in model.encoder.lookup("law", among="K").top(500)}
    assert {"enc", "L0X", "L1X"} <= reads
    assert model.nearest("L1X2.O1", 3)[0].address != "L1X2.O1"
    assert "cross-attention" in str(model.info())


@every
def test_what_runs_one_stack_is_refused_with_words(name: str) -> None:
    model = worded_pair(name)
    for ask in (
        lambda: stitch(model, model, after=1, last=1),
        lambda: model.evidence("L0X1"),
    ):
        with pytest.raises(LexrayError, match="encoder–decoder"):
            ask()
    with pytest.raises(LexrayError, match="a list of 2 targets"):
        model.trace([[5, 11], [3, 4]], target=[3])


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_what_moved_in_either_stack_is_told(name: str, tmp_path: Path) -> None:
    """By address in the decoder and in cross-attention; the encoder by itself, or by tensor."""
    base = worded_pair(name)
    module = copy.deepcopy(build_pair(name))
    live = Model.from_module(module)
    cross, first = live.architecture.blocks[1].cross, live.encoder.architecture.blocks[0]
    assert cross is not None
    with torch.no_grad():
        module.get_parameter(cross.k.linear.weight)[cross.k.starts[2]] += 1
        module.get_parameter(first.ff.w_in.weight)[3] += 1
    tuned = Model(ModuleCheckpoint(module), vocabulary=vocabulary())
    moved = {change.address for change in diff(base, tuned).changes}
    assert "L1X2.K0" in moved
    assert any(first.ff.w_in.weight in address for address in moved)
    assert {change.address for change in diff(base.encoder, tuned.encoder).changes} >= {
        "enc.L0N3.key"
    }


@pytest.mark.parametrize("name", ["t5gemma", "t5gemma2"])
@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        ({"decoder": {"num_hidden_layers": 10**9}}, "1000000000 layers"),
        ({"encoder": {"text_config": {"num_attention_heads": 10**9}}}, "1000000000 heads"),
        ({"encoder": "a text"}, "encoder"),
        ({"decoder": {"hidden_size": "wide"}}, "hidden_size"),
        ({"decoder": {"intermediate_size": 19}}, "where the config makes it"),
    ],
)
def test_nonsense_in_the_config_of_a_stack_is_refused(
    name: str, spoiled: dict[str, Any], words: str, tmp_path: Path
) -> None:
    module = build_pair(name)
    module.save_pretrained(tmp_path)
    config = module.config.to_dict()
    for side, entries in spoiled.items():
        given = config[side] | entries if isinstance(entries, dict) else entries
        with pytest.raises(LexrayError, match=words):
            Model.from_pretrained(tmp_path, config={side: given})
