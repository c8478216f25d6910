"""What places usually carry, against transformers' own hidden states, and words by it against
dense float64; probabilities and ranks stay the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.flow.flow import Flow
from lexray.model.model import Model
from lexray.trace.read import usual as making
from lexray.trace.read.lens import Lens
from lexray.trace.read.usual import PLACES, cut, spread, usual_of
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

IDS = [5, 11, 3, 29, 36, 7, 20]
FAMILIES = ("gpt2", "llama", "gemma2", "gptj", "opt-350m", "bert", "qwen2-moe", "olmo2")
families = pytest.mark.parametrize("name", FAMILIES)


def standard(name: str) -> Model:
    return Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(37))


def bare(model: Model, X: Tensor) -> Tensor:
    """As the final norm sees it, without gain and size, in float64."""
    norm, X = model.architecture.final_norm, X.double()
    X = X - X.mean(-1, keepdim=True) if norm is not None and norm.centres else X
    return X / X.square().mean(-1, keepdim=True).sqrt()


def hidden(name: str, ids: list[int], layer: int) -> Tensor:
    found = build(name)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    state: Tensor = found[layer][0].detach()
    return state


@families
def test_means_are_those_of_transformers_own_hidden_states(name: str) -> None:
    model = standard(name)
    pieces = cut(model)
    moments = usual_of(model).moments
    assert tuple(moments) == tuple(
        place for place in PLACES if not place.startswith(("mixer", "cross", "self", "laurel"))
    )
    for layer in range(model.n_layers):
        X = torch.cat([bare(model, hidden(name, ids, layer)[1:]) for ids in pieces])
        found = moments["pre"].means[layer].double()
        torch.testing.assert_close(found, X.mean(0), rtol=1e-3, atol=1e-3)
    for own in moments.values():
        assert float(own.rest) > 0
        assert all(bool(x.isfinite().all()) for x in own)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_is_added_is_measured_from_nothing(name: str) -> None:
    """So that its lists hold its mean too, which goes when it is removed: against x̂ · c in float64,
    over its spread around zero."""
    model = standard(name).view(trained=False)
    own = usual_of(model).moments["mlp"]
    assert not own.means.any()
    C, layer = model.view("raw", folded=True).W_U.double().T, 1
    sigma = own.directions.double() @ own.directions.double().T
    sigma = sigma + own.rest.double() * torch.eye(len(sigma))
    trace = model.trace(IDS)
    z = bare(model, trace[layer].mlp_out) @ C.T / ((C @ sigma) * C).sum(1).sqrt()
    lens = trace.lens("mlp", layers=[layer], k=4)
    found = lens.top_scores[0].double()
    torch.testing.assert_close(found, z.sort(descending=True)[0][:, :4], rtol=2e-3, atol=2e-3)


def test_the_covariance_is_kept_as_directions_and_an_even_rest() -> None:
    D = torch.randn(400, 24, generator=torch.Generator().manual_seed(0)) * torch.arange(24)
    F, rest = spread(D)
    exact = D.double().T @ D.double() / len(D)
    even = making.SHRUNK * exact.trace() / 24
    assert float(rest) == pytest.approx(float(even), rel=1e-3)
    torch.testing.assert_close((F @ F.T).double(), exact, rtol=1e-3, atol=1e-2)
    F, rest = spread(D[:3])
    assert F.shape == (24, 3), "a short text has few directions"
    assert float(rest) > 0
    F, rest = spread(torch.zeros(5, 24))
    assert float(rest) > 0, "a place that never changes"


@families
def test_words_are_the_largest_differences_and_probabilities_the_models_own(name: str) -> None:
    model = standard(name).view(trained=False)
    folded = model.view("raw", folded=True)
    own = usual_of(model).moments["pre"]
    C, layer = folded.W_U.double().T, 1
    sigma = own.directions.double() @ own.directions.double().T
    sigma = sigma + own.rest.double() * torch.eye(len(sigma))
    x = bare(model, hidden(name, IDS, layer)) - own.means[layer].double()
    z = x @ C.T / ((C @ sigma) * C).sum(1).sqrt()
    lens, raw = model.trace(IDS).lens(k=4, target=9), model.view("raw").trace(IDS).lens(target=9)
    line = lens.lines[layer]  # the embedding is the first line
    assert line.how == "standardised"
    scores = lens.top_scores[layer].double()
    torch.testing.assert_close(scores, z.sort(descending=True)[0][:, :4], rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(z.gather(1, lens.top_ids[layer]), scores, rtol=2e-3, atol=2e-3)
    for part in ("entropy", "target_probs", "target_ranks"):
        assert torch.equal(getattr(lens, part), getattr(raw, part))
    whole = model.view("raw").trace(IDS).lens(k=37)
    for i, ids in enumerate(whole.top_ids[layer]):
        places = [ids.tolist().index(t) for t in lens.top_ids[layer, i].tolist()]
        torch.testing.assert_close(lens.top_probs[layer, i], whole.top_probs[layer, i][places])


@families
def test_what_leaves_the_last_block_is_the_prediction(name: str) -> None:
    model = standard(name)
    lens, raw = (m.trace(IDS).lens(k=4) for m in (model, model.view("raw")))
    assert [line.how for line in lens.lines] == ["standardised"] * model.n_layers + ["as it is"]
    assert {line.how for line in raw.lines} == {"as it is"}
    assert torch.equal(lens.top_ids[-1], raw.top_ids[-1])
    assert lens.to_dict()["lines"][0]["how"] == "standardised"
    assert "score" in lens.to_dict()["lines"][0]["cells"][0]["top"][0]
    assert "score" not in lens.to_dict()["lines"][-1]["cells"][0]["top"][0]
    assert "usually carries" in str(lens)
    assert "usually carries" not in str(raw)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_neurons_are_read_as_their_values_with_their_sign(name: str) -> None:
    model = standard(name)
    trace = model.trace(IDS)
    lens = trace.lens("neurons", neurons=12, k=4)
    for i, line in enumerate(lens.lines):
        assert line.coefficient is not None
        reading = model[line.name].value.top(4)
        end = reading.top if line.coefficient > 0 else reading.bottom
        assert lens.top_ids[i, 0].tolist() == [scored.token.id for scored in end]
    assert name == "gpt2" or any((line.coefficient or 0) < 0 for line in lens.lines)
    leaf = trace.contributions(9).top(1, kind="neuron")[0]
    assert leaf.words
    assert trace.contributions(9).top(3).to_dict()["how"] == "standardised"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, "mixtral", "falcon-new", "modernbert"])
def test_flow_graphs_say_how_each_node_was_read(name: str) -> None:
    trace = standard(name).trace(IDS)
    graph = trace.flow(heads=2, neurons=(3, 2), k=4, static=True)
    plain = trace.model.view("raw").trace(IDS).flow(heads=2, neurons=(3, 2), k=4)  # type: ignore[attr-defined]
    hows = {node.id: node.projection.how for node in graph.nodes if node.projection}
    last = f"L{trace.model.n_layers}.in"
    as_is = {id for id, how in hows.items() if how != "standardised"}
    assert as_is <= {last, f"L{trace.model.n_layers - 1}.ff_sum"}
    assert last in as_is
    assert Flow.from_json(graph.to_json()) == graph
    assert {n.projection.how for n in plain.nodes if n.projection} == {"as it is"}
    for node, other in zip(graph.nodes, plain.nodes, strict=True):
        assert node.projection is not None
        assert other.projection is not None
        if node.kind not in ("query", "key", "ff_key", "ff_gate"):
            ours, theirs = node.projection.places, other.projection.places
            assert [place.rank for place in ours] == [place.rank for place in theirs]
            chances = [place.probability for place in theirs]
            assert [place.probability for place in ours] == pytest.approx(chances, rel=1e-4)
        if node.static is not None and node.kind in ("ff_value", "o_neuron", "ff_key", "ff_gate"):
            ends = [[w.id for w in end] for end in (node.static.top, node.static.bottom)]
            assert [w.id for w in node.projection.top] in ends


@pytest.mark.slow
def test_what_is_usual_is_measured_once_for_each_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "cache"))
    text = "The film was great, and the actors were good. I liked it a lot, but not the end."

    def words(**given: str) -> Lens:
        trace = lx.Model.from_pretrained("demo").trace("This movie was", what="residual")
        return trace.lens(k=3, positions=-1, **given)  # type: ignore[arg-type]

    made, other = words(), words(text=text)
    assert not torch.equal(made.top_scores[:-1], other.top_scores[:-1])
    assert "the text that was given" in other.note
    assert torch.equal(made.entropy, other.entropy)

    def refuse(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(making, "_measure", refuse)
    assert torch.equal(words().top_ids, made.top_ids)
    assert torch.equal(words(text=text).top_ids, other.top_ids)


def test_where_nothing_can_be_measured_vectors_are_read_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise LexrayError("this trace would not fit")

    monkeypatch.setattr(making, "_measure", refuse)
    model = standard("llama")
    lens, raw = (m.trace(IDS).lens(k=3) for m in (model, model.view("raw")))
    assert torch.equal(lens.top_ids, raw.top_ids)
    assert "not standardised: this trace would not fit" in lens.note


def test_a_text_is_run_in_pieces_of_lines() -> None:
    model = lx.Model.from_pretrained("demo")
    pieces = cut(model)
    assert all(1 < len(piece) <= model.architecture.n_ctx for piece in pieces)
    assert 600 < sum(map(len, pieces)) <= making.TOKENS
    long = cut(model, "one two three four " * 5000)
    assert sum(map(len, long)) < 1.2 * making.TOKENS, "about as many, however long the text is"
    with pytest.raises(LexrayError, match="no two tokens"):
        cut(model, " ")
    assert "".join(making._pieces("ab cd\nef")) == "ab cd\nef"
