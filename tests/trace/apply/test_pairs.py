"""Edits of encoder–decoders do what they say in both stacks and between them: held against
transformers' own model with the same change in its weights or its mask, or by another run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lexray.edits import Edit, ablate, add, clamp, cut, parse_all, patch, scale
from lexray.errors import LexrayError
from lexray.families import Linear
from lexray.model.model import Model
from lexray.trace.apply.editor import EDITING
from lexray.trace.record.pair import PairRunner
from lexray.trace.record.run import Runner
from lexray.trace.trace import Trace
from tests.families.oracles import close
from tests.families.pairs import PAIRS, build_pair
from tests.families.test_pairs import worded_pair
from tests.trace.test_pairs import SOURCE, TARGET, case
from tests.trace.test_proof import same, state_of

OTHER_SOURCE, OTHER_TARGET = [8, 30, 14, 2, 21, 33, 9, 12], [3, 22, 17, 28]
AT = 2
every = pytest.mark.parametrize("name", [v.name for v in PAIRS])


@cache
def model_of(name: str) -> Model:
    return worded_pair(name).view("raw")


def trace(name: str, *edits: Edit | str, **options: Any) -> Trace:
    return model_of(name).trace(SOURCE, target=TARGET, edits=list(edits), **options)


@cache
def other(name: str) -> Trace:
    return model_of(name).trace(OTHER_SOURCE, target=OTHER_TARGET)


def run(module: Any, **options: Any) -> Tensor:
    ids = torch.tensor([[module.config.decoder_start_token_id, *TARGET]])
    with torch.no_grad():
        out = module(input_ids=torch.tensor([SOURCE]), decoder_input_ids=ids, **options)
    logits: Tensor = out.logits[0]
    return logits


def changed(name: str, change: Callable[[nn.Module, Model], None]) -> Tensor:
    """transformers' logits after a change of a copy's weights."""
    module = copy.deepcopy(build_pair(name))
    with torch.no_grad():
        change(module, Model.from_module(module).view("raw"))
    return run(module)


def zero(module: nn.Module, linear: Linear, inputs: slice) -> None:
    module.get_parameter(linear.weight).T[inputs] = 0


@every
def test_no_edit_changes_no_bit(name: str) -> None:
    plain, none = trace(name), trace(name)
    for one, two in ((plain, none), (plain.encoder, none.encoder)):
        assert one.parts.keys() == two.parts.keys()
        assert all(torch.equal(x, two.parts[key]) for key, x in one.parts.items())
    assert plain.edits == plain.encoder.edits == ()


def twins(name: str, head: str) -> list[str]:
    """The heads that have the same rows: of merged attention both."""
    merged = not head.startswith("enc.") and model_of(name).architecture.blocks[0].merged
    return [head.replace("X", "H"), head.replace("H", "X")] if merged else [head]


@every
@pytest.mark.parametrize("head", ["enc.L0H1", "enc.L1H2", "L0H1", "L1H2", "L0X1", "L1X2"])
def test_a_head_is_its_rows_of_the_output_matrix(name: str, head: str) -> None:
    def without(module: nn.Module, model: Model) -> None:
        part = model.head(head)
        width = part.spec.v.d_head
        zero(module, part.spec.o, slice(part.index * width, (part.index + 1) * width))

    edited = trace(name, *(ablate(one) for one in twins(name, head)))
    close(edited.logits, changed(name, without))
    assert (edited.logits - case(name)[0].logits).abs().max() > 1e-5


@every
@pytest.mark.parametrize("neuron", ["enc.L1N5", "L1N7"])
def test_a_neuron_is_its_value(name: str, neuron: str) -> None:
    def without(module: nn.Module, model: Model) -> None:
        part = model.neuron(neuron)
        zero(module, part.ff.spec.w_out, slice(part.index, part.index + 1))

    close(trace(name, ablate(neuron)).logits, changed(name, without))
    was, now = case(name)[0], trace(name, scale(neuron, 3), clamp("L0N2", 8.0, positions=AT))
    side = (lambda t: t.encoder) if neuron.startswith("enc.") else (lambda t: t)
    i = int(neuron.rpartition("N")[2])
    if side(now) is not now:
        close(side(now)[1].coefficients[:, i], 3 * side(was)[1].coefficients[:, i])
    assert now[0].coefficients[AT, 2] == 8


@every
def test_sub_blocks_and_layers(name: str) -> None:
    for stem in ("enc.L1", "L1"):
        parts = ["attn", "mlp"] if stem.startswith("enc") else ["attn", "cross", "mlp"]
        both = trace(name, *(ablate(f"{stem}.{part}") for part in parts))
        assert torch.equal(both.logits, trace(name, ablate(stem)).logits)
    assert not trace(name, ablate("L1.cross"))[1].cross.write.any()
    assert not trace(name, ablate("enc.L0.attn")).encoder[0].attn_write.any()
    with pytest.raises(LexrayError, match=r"has enc\.L0\.attn, enc\.L0\.mlp"):
        trace(name, ablate("enc.L0.cross"))


@every
def test_everything_from_another_run_is_that_run(name: str) -> None:
    there, encoder = other(name), len(case(name)[0].encoder.layers)
    whole = trace(name, patch(f"enc.L{encoder - 1}", there), patch("L0.pre", there))
    close(whole.logits, there.logits)
    close(whole[0].cross.k, there[0].cross.k)
    entering = trace(name, patch("enc.L0.pre", there), patch("L0.pre", there))
    close(entering.encoder.final, there.encoder.final)
    close(entering.logits, there.logits)
    mean = trace(name, ablate("L1X1", to=there))[1].cross.z[:, 1]
    close(mean, there[1].cross.z[:, 1].mean(0).expand_as(mean))
    mean = trace(name, ablate("enc.L1H1", to=there)).encoder[1].z[:, 1]
    close(mean, there.encoder[1].z[:, 1].mean(0).expand_as(mean))


@every
def test_cross_attention_from_another_run(name: str) -> None:
    """Queries and keys bring its weights; weights and values bring what it wrote."""
    there, heads, head = other(name), range(model_of(name).n_heads), model_of(name).head("L1X1")
    asking = ("H{}.q", "H{}.k", "X{}.k") if twins(name, "L1X1")[1:] else ("X{}.q", "X{}.k")
    looks = trace(name, *(patch(f"L1{part.format(h)}", there) for h in heads for part in asking))[1]
    close(looks.cross.pattern, there[1].cross.pattern)
    close(looks.cross.k, there[1].cross.k)
    takes = trace(name, *(patch(f"L1X{h}.{p}", there) for h in heads for p in ("pattern", "v")))
    close(takes[1].cross.z, there[1].cross.z)
    one = trace(name, patch("L1X1.v", there, positions=[-1]))[1].cross.v
    close(one[-1, head.kv_index], there[1].cross.v[-1, head.kv_index])
    close(one[:-1], case(name)[0][1].cross.v[:-1])
    short = model_of(name).trace(OTHER_SOURCE[:5], target=OTHER_TARGET)
    with pytest.raises(LexrayError, match="has 5 tokens, and no position 7"):
        trace(name, patch("L1X1.v", short))
    with pytest.raises(LexrayError, match="same length"):
        trace(name, patch("L1X1.pattern", short))
    close(trace(name, patch("L1X1", short))[1].cross.z[:, 1], short[1].cross.z[:, 1])


@pytest.mark.parametrize("name", ["t5gemma2"])
def test_queries_of_merged_attention_are_those_of_the_other_head(name: str) -> None:
    with pytest.raises(LexrayError, match=r"L1X0 asks with the queries of L1H0: change L1H0\.q"):
        trace(name, patch("L1X0.q", other(name)))
    both = trace(name, patch("L1H0.q", other(name)))[1]
    was = case(name)[0][1]
    assert (both.pattern[0] - was.pattern[0]).abs().max() > 1e-3
    assert (both.cross.pattern[0] - was.cross.pattern[0]).abs().max() > 1e-3
    close(both.pattern[0].sum(-1) + both.cross.pattern[0].sum(-1), torch.ones(len(both.z)))
    close(both.cross.pattern[1], was.cross.pattern[1])


@every
def test_cutting_all_attention_to_a_source_position_is_masking_it(name: str) -> None:
    model = model_of(name)
    mask = torch.ones(1, len(SOURCE), dtype=torch.long)
    mask[0, AT] = 0
    seen = [f"enc.L{n}" for n in range(model.encoder.n_layers)]
    seen += [f"L{n}.cross" for n in range(model.n_layers)]
    edited = trace(name, cut(AT, heads=seen, renormalise=True))
    close(edited.logits, run(build_pair(name), attention_mask=mask))
    assert not edited[0].cross.pattern[:, :, AT].any()
    bare = trace(name, cut([5, 6], -1, heads="L1X1"))[1].cross
    was = case(name)[0][1].cross
    assert not bare.pattern[1, -1, 5:7].any()
    close(bare.pattern[1, -1, :5], was.pattern[1, -1, :5])
    close(bare.pattern[0], was.pattern[0])
    close(bare.z[-1, 1], bare.pattern[1, -1] @ was.v[:, model.head("L1X1").kv_index])


@every
def test_steering_adds_exactly_the_vector(name: str) -> None:
    was, model = case(name)[0], model_of(name)
    vector, own = (torch.linspace(-1, 1, x.d_model) for x in (model.encoder, model))
    edited = trace(name, add("enc.L0", vector, 2.5, positions=[AT]), add("L0", own))
    more = torch.zeros_like(was.encoder.embed)
    more[AT] = 2.5 * vector
    assert torch.equal(edited.encoder[0].resid_post, was.encoder[0].resid_post + more)
    apart = other(name).encoder[0].resid_post[-1] - was.encoder[0].resid_post[-1]
    two = trace(name, add("enc.L0", (other(name), was)))
    close(two.encoder[0].resid_post, was.encoder[0].resid_post + apart)


EDITS: list[Edit] = [
    ablate("enc.L0H1", to="mean"),
    ablate("L0X1"),
    cut(0, -1, heads=["L0", "L1.cross", "enc.L1H0"], renormalise=True),
    ablate("enc.L1.mlp", positions=[-1]),
    scale("L1.cross", 0.5),
    scale("L0.mlp", 0.5),
]


@pytest.mark.slow
@every
def test_padding_changes_nothing(name: str) -> None:
    model = model_of(name)
    sources, targets = [SOURCE[:5], SOURCE, SOURCE[2:]], [TARGET, TARGET[:1], []]
    for edits in ((), EDITS):
        batch = model.trace(sources, target=targets, edits=edits)
        pairs = model.trace([*zip(sources, targets, strict=True)], edits=edits)
        for one, two, source, target in zip(batch, pairs, sources, targets, strict=True):
            alone = model.trace(source, target=target, edits=edits)
            for each in (one, two):
                same(each, alone)
                same(each.encoder, alone.encoder)


@every
def test_contributions_still_add_up(name: str) -> None:
    vector, source = (
        torch.linspace(-1, 1, x.d_model) for x in (model_of(name), model_of(name).encoder)
    )
    found = trace(name, *EDITS, add("L0", vector), add("enc.L0", source)).contributions(7)
    assert abs(found.total - found.logit) < 2e-4 * (1 + abs(found.logit))
    assert found["L1.cross.edited"] != 0
    assert found["L0X1"] == 0


@every
def test_nothing_stays_behind(name: str) -> None:
    module = build_pair(name)
    before = state_of(module)
    trace(name, *EDITS)
    assert state_of(module) == before
    assert EDITING.get() is None
    assert torch.equal(trace(name).logits, case(name)[0].logits)


@pytest.mark.slow
@every
def test_generation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, it is transformers' own; under edits each token is the changed run's most probable
    one, out of a cache or not."""
    monkeypatch.setattr(Runner, "_ends", lambda _: set())
    model, module = model_of(name), build_pair(name)
    plain: Any = module
    ids = plain.generate(
        torch.tensor([SOURCE]),
        decoder_input_ids=torch.tensor([[plain.config.decoder_start_token_id, *TARGET]]),
        max_new_tokens=5,
        do_sample=False,
        num_beams=1,
        forced_eos_token_id=None,
        eos_token_id=[-1],
        use_cache=False,
    )
    ours = model.trace(SOURCE, target=TARGET, new_tokens=5)
    assert ours.ids.tolist() == ids[0].tolist()
    seen, step = [], PairRunner._step

    def watch(self: PairRunner, ids: list[int], cache: Any, *, keep: bool = True) -> Any:
        seen.append(cache is None)
        return step(self, ids, cache, keep=keep)

    monkeypatch.setattr(PairRunner, "_step", watch)
    lasting: list[Edit] = [scale("L0.mlp", 3), scale("enc.L1.mlp", 2), ablate("L1X1")]
    for edits, cached in ((lasting, [True, False, False]), ([*lasting, *EDITS], [True] * 3)):
        del seen[:]
        changed = model.trace(SOURCE, target=TARGET[:2], new_tokens=3, edits=edits)
        assert seen == cached
        assert changed.n_prompt == 3
        close(
            changed.logits[:3],
            model.trace(SOURCE, target=TARGET[:2], edits=edits).logits,
        ) if edits is lasting else None
        assert changed.logits[2:-1].argmax(-1).tolist() == changed.ids[3:].tolist()
    said = model.generate(SOURCE, 3, lasting, target=TARGET[:2])
    assert [g.token.id for g in said.changed] == model.trace(
        SOURCE, target=TARGET[:2], new_tokens=3, edits=lasting
    ).ids[3:].tolist()
    assert [token.id for token in said.prompt] == TARGET[:2]
    assert said.plain[0].plain == pytest.approx(
        float(model.trace(SOURCE, target=TARGET[:2]).logits[-1].softmax(-1).max()), abs=1e-6
    )


@pytest.mark.parametrize("name", ["flan-t5", "bart"])
@pytest.mark.parametrize("place", ["enc.L1H2", "L1X2", "L1.cross", "enc.L1N5", "enc.L0", "L1"])
def test_edits_that_last(name: str, place: str, tmp_path: Path) -> None:
    """The model with other weights is the run that was changed."""
    build_pair(name).save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path).view("raw")
    lasting = model.edited([f"scale {place} by 0.5"])
    whole = lasting.trace(SOURCE, target=TARGET)
    close(whole.logits, trace(name, scale(place, 0.5)).logits)
    other = model.edited(["replace L1X2.V3 by 2*enc.L0N3.value"])
    close(other.vector("L1X2.V3").tensor, 2 * model.vector("enc.L0N3.value").tensor)
    close(other.vector("L1H2.V3").tensor, model.vector("L1H2.V3").tensor)


@pytest.mark.slow
def test_texts_and_what_they_name() -> None:
    text = (
        "ablate enc.L1H2[-1]; scale L2X1 by 0.5; clamp enc.L0N3 to 8; add 2*enc.L0N3.value@enc.L1; "
        "patch L1X2.k[2] from [[5, 11, 3], [2]]; cut [3]->[-1] in L1.cross,L2X0 renormalised"
    )
    assert "; ".join(map(str, parse_all(text))) == text
    model = model_of("t5")
    there = model.trace([5, 11, 3], target=[2])
    named = trace("t5", "patch L1X2.k[2] from [[5, 11, 3], [2]]")
    assert torch.equal(named.logits, trace("t5", patch("L1X2.k", there, positions=2)).logits)
    source = trace("t5", patch("enc.L1", tuple(OTHER_SOURCE)))
    assert torch.equal(source.encoder.final, model.encoder.trace(OTHER_SOURCE).final)
    same_target = model.trace(OTHER_SOURCE, target=TARGET)
    close(trace("t5", patch("L2", tuple(OTHER_SOURCE))).logits, same_target.logits)
    assert str(patch("L1", there)).startswith('patch L1 from ["')
    for wrong, said in (
        ("ablate L9X1", "layer"),
        ("ablate L1X9", "cross-attention head"),
        ("ablate enc.L1X1", "names no one place"),
        ("cut [8]->[0] in L1.cross", "the sequence has 8 tokens"),
        ("ablate enc.L0[8]", "the sequence has 8 tokens"),
        ("ablate L0[5]", "the sequence has 5 tokens"),
    ):
        with pytest.raises(LexrayError, match=said):
            trace("t5", wrong)
