"""The picture for print: what it tells, that its sums are honest, and that it can be read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pypdfium2
import pytest

from lexray.errors import LexrayError
from lexray.flow.draw.paper import WIDTH
from lexray.flow.flow import Flow
from lexray.flow.graph import NodeKind
from lexray.flow.story import FEWEST, MOST, tell
from tests.flow import synthetic
from tests.vocabulary.vocabularies import worded

SVG = "{http://www.w3.org/2000/svg}"
INCHES, POINTS = 6.5, 72


@cache
def graph() -> Flow:
    return worded("llama").trace([5, 9, 7, 9, 11]).flow(target=8, heads=3, neurons=(4, 3))


def test_what_is_told_and_the_rest_make_up_the_whole() -> None:
    """Against the contributions: everything that was added in these layers, to the last part."""
    story = tell(graph())
    assert FEWEST <= len(story.parts) <= MOST
    parts = worded("llama").trace([5, 9, 7, 9, 11]).contributions(8)
    whole = sum(leaf.contribution for leaf in parts if leaf.layer is not None)
    assert sum(part.weight for part in story.parts) + story.rest == pytest.approx(whole, abs=1e-3)
    known = sorted(
        (abs(leaf.contribution) for leaf in parts if leaf.layer is not None), reverse=True
    )
    told = [abs(part.weight) for part in story.parts]
    assert told == sorted(told, reverse=True)
    assert told[0] == pytest.approx(known[0], abs=1e-3)


def test_how_many_are_left_out() -> None:
    story = tell(graph())
    model = worded("llama")
    n_heads = sum(len(layer.heads) for layer in model.layers)
    n_neurons = sum(layer.ff.d_mlp for layer in model.layers)
    assert story.n_rest == n_heads + n_neurons - len(story.parts)


def test_heads_name_the_tokens_that_they_look_at() -> None:
    story = tell(graph(), n=20)
    heads = [part for part in story.parts if "head" in part.name]
    assert heads
    for part in heads:
        for source in part.sources:
            assert graph().run.tokens[source.position] == source.token


def test_words_stand_in_the_order_of_their_lists() -> None:
    """A word that comes again further down stands where it came first."""
    told = tell(graph())
    drawn = ET.fromstring(graph().to_svg(paper=True))
    texts = ["".join(node.itertext()) for node in drawn.iter(f"{SVG}text")]
    for part in told.parts:
        first = part.words[0]
        assert first in "\n".join(texts)
        below = texts[texts.index(part.name) :]
        assert next(text for text in below if text in part.words) == first


def test_it_fits_a_column_and_can_be_read() -> None:
    for drawn in (graph(), synthetic.graph((14, 15))):
        root = ET.fromstring(drawn.to_svg(paper=True))
        assert float(root.get("width", "")) == WIDTH <= 700
        sizes = [float(text.get("font-size", "")) for text in root.iter(f"{SVG}text")]
        assert min(sizes) * INCHES * POINTS / WIDTH >= 7


def test_pins_are_what_is_told_and_survive_json() -> None:
    heads = [node.id for node in graph().nodes if node.kind == NodeKind.HEAD][:2]
    pinned = graph().pin(heads[0], **{"two heads": heads})
    again = Flow.from_json(pinned.to_json())
    assert again == pinned
    first, both = tell(again).parts
    assert first.nodes == (heads[0],)
    assert both.name == "two heads"
    weights = [graph().contribution(graph()[id]) or 0.0 for id in heads]
    assert both.weight == pytest.approx(sum(weights), abs=1e-4)
    whole = tell(graph())
    everything = sum(part.weight for part in whole.parts) + whole.rest
    told = first.weight + both.weight + tell(again).rest
    assert told == pytest.approx(everything, abs=1e-3)
    assert "two heads" in again.to_svg(paper=True)
    assert not again.pin().pins


def test_pins_go_by_address_and_name_what_is_there() -> None:
    head = next(node for node in graph().nodes if node.kind == NodeKind.HEAD)
    assert head.address is not None
    assert graph().pin(head.address).pins[0].nodes == (head.id,)
    with pytest.raises(LexrayError, match="no node 'L99H0'"):
        graph().pin("L99H0")
    with pytest.raises(LexrayError, match="none is a head, a neuron or a bias"):
        tell(graph().pin("L0.in"))


def test_as_pdf(tmp_path: Path) -> None:
    document = pypdfium2.PdfDocument(graph().to_pdf(tmp_path / "x.pdf", paper=True))
    assert len(document) == 1
    assert document[0].get_size()[0] == pytest.approx(0.75 * WIDTH)
    text = "".join(document[0].get_textpage().get_text_range().split())
    assert graph().target.shown.strip("·") in text


def test_a_graph_without_shares_goes_by_length() -> None:
    story = tell(synthetic.graph((14,)))
    assert not story.by_logit
    assert all(part.weight > 0 for part in story.parts)
    assert "length" in synthetic.graph((14,)).to_svg(paper=True)
