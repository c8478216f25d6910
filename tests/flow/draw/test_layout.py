"""Where things stand: nothing overlaps, everything flows to the right, the stream is straight."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from lexray.errors import LexrayError
from lexray.flow import Flow, NodeKind
from lexray.flow.draw import arrange
from lexray.flow.draw.layout import TOP, Layout, layout
from lexray.flow.draw.shapes import SIZES, Label, NodeBox, fit, text_width
from lexray.flow.graph import STREAM
from tests.flow import synthetic

SHAPES = ("sequential", "gated", "parallel", "post-norm", "sandwich")
Rectangle = tuple[float, float, float, float]


@pytest.fixture(scope="module", params=SHAPES)
def graph(request: pytest.FixtureRequest) -> Flow:
    return synthetic.graph(
        (14, 15, 20), request.param, embed=True, heads=5, neurons=(7, 4), listed=7
    )


@pytest.fixture(scope="module")
def picture(graph: Flow) -> Layout:
    return layout(graph)


def boxes(picture: Layout, layers: tuple[int, ...]) -> Iterator[tuple[float, NodeBox]]:
    for piece in picture.place(layers):
        for box in piece.form.boxes:
            yield piece.x, box


def labels(picture: Layout, layers: tuple[int, ...]) -> Iterator[Rectangle]:
    for piece in picture.place(layers):
        for label in (
            *piece.form.labels,
            *(label for box in piece.form.boxes for label in box.labels),
        ):
            if label.text:
                yield around(label, piece.x)


def around(label: Label, x: float) -> Rectangle:
    start = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor]
    left = x + label.x - start * label.width
    return (
        left,
        label.y - 0.75 * SIZES[label.role],
        left + label.width,
        label.y + 0.2 * SIZES[label.role],
    )


def overlapping(rectangles: list[Rectangle]) -> list[tuple[Rectangle, Rectangle]]:
    found = []
    active: list[Rectangle] = []
    for one in sorted(rectangles):
        active = [other for other in active if other[2] > one[0]]
        found += [(one, other) for other in active if one[1] < other[3] and other[1] < one[3]]
        active.append(one)
    return found


@pytest.mark.parametrize("layers", [(), (15,), (14, 15, 20)])
def test_no_nodes_overlap(picture: Layout, layers: tuple[int, ...]) -> None:
    found = [
        (x + box.x, box.y, x + box.right, box.y + box.height) for x, box in boxes(picture, layers)
    ]
    assert len(found) > 10
    assert not overlapping(found)


@pytest.mark.parametrize("layers", [(), (15,), (14, 15, 20)])
def test_no_labels_overlap(picture: Layout, layers: tuple[int, ...]) -> None:
    assert not overlapping(list(labels(picture, layers)))


def test_labels_stay_inside_their_nodes(picture: Layout) -> None:
    for _, box in boxes(picture, picture.openable):
        for label in box.labels:
            left, top, right, bottom = around(label, 0.0)
            assert box.x <= left <= right <= box.right + 1e-9
            assert box.y <= top < bottom <= box.y + box.height


def test_the_stream_is_straight(graph: Flow, picture: Layout) -> None:
    heights = {
        box.middle
        for _, box in boxes(picture, picture.openable)
        if graph.nodes[box.node].kind in STREAM
    }
    assert heights == {0.0}


def test_everything_flows_to_the_right(graph: Flow, picture: Layout) -> None:
    place = {
        graph.nodes[box.node].id: (x + box.x, x + box.right)
        for x, box in boxes(picture, picture.openable)
    }
    assert len(place) == len(graph.nodes)
    for edge in graph.edges:
        assert place[edge.source][1] < place[edge.target][0]


def test_wires_begin_and_end_at_their_nodes(graph: Flow, picture: Layout) -> None:
    place = {graph.nodes[box.node].id: (x, box) for x, box in boxes(picture, picture.openable)}
    drawn = []
    for piece in picture.place(picture.openable):
        for wire in piece.form.wires:
            edge = graph.edges[wire.edge]
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", wire.path)]
            level = re.fullmatch(r"M[-\d.]+ [-\d.]+H[-\d.]+", wire.path)
            x2, y2 = (
                (numbers[2], numbers[1])
                if level
                else (
                    (numbers[-1], numbers[-2])
                    if re.search(r"H[-\d.]+$", wire.path)
                    else numbers[-2:]
                )
            )
            for (x, y), id, side in (
                ((numbers[0], numbers[1]), edge.source, "right"),
                ((x2, y2), edge.target, "x"),
            ):
                at, box = place[id]
                assert piece.x + x == pytest.approx(at + getattr(box, side), abs=0.11)
                assert box.y <= y <= box.y + box.height
            drawn.append(wire.edge)
    assert sorted([*drawn, *picture.free]) == list(range(len(graph.edges)))


def test_opening_a_block_only_shifts_what_is_right_of_it(picture: Layout) -> None:
    closed, opened = picture.place(()), picture.place((15,))
    for before, after in zip(closed, opened, strict=True):
        if before.segment.layer < 15 or (
            before.segment.layer == 15 and before.segment.kind != "block"
        ):
            assert after == before
        elif before.segment.layer > 15:
            assert after.form == before.form
            assert after.x - before.x == pytest.approx(opened[-1].x - closed[-1].x)


@pytest.mark.parametrize("wide", [300.0, 1700.0, 4000.0])
def test_rows_wrap_and_go_on_where_they_ended(picture: Layout, wide: float) -> None:
    """Rows are as wide as they may be or as one block is; each begins with the station that ended
    the one above, and they do not touch."""
    whole, pieces = picture.place(picture.openable), picture.place(picture.openable, wide)
    assert [(p.form, p.segment) for p in pieces if not p.again] == [
        (p.form, p.segment) for p in whole
    ]
    rows = [list(own) for _, own in itertools.groupby(pieces, key=lambda piece: piece.y)]
    assert len(rows) > 1 or wide > 3000
    for row in rows:
        blocks = [piece for piece in row if piece.segment.kind == "block"]
        assert row[-1].x + row[-1].form.width <= wide or len(blocks) == 1
        for before, after in itertools.pairwise(row):
            assert after.x == pytest.approx(before.x + before.form.width)
    for above, below in itertools.pairwise(rows):
        assert below[0].again
        assert (below[0].segment, below[0].x) == (above[-1].segment, 0.0)
        assert below[0].y + TOP >= max(p.y + p.form.bottom for p in above)


def test_all_blocks_open_are_no_ribbon() -> None:
    """A still picture of all blocks, open: words stay readable when it is as wide as a page."""
    svg = synthetic.graph(range(12), heads=6, neurons=(8, 4)).to_svg(open_layers=range(12))
    width, height = (float(n) for n in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    assert width < 2600
    assert height > width


@pytest.mark.slow
def test_the_same_graph_gives_the_same_picture(graph: Flow, picture: Layout) -> None:
    assert layout(Flow.from_json(graph.to_json())) == picture


def test_a_whole_model_fits_a_screen() -> None:
    picture = layout(synthetic.graph(range(24), detail=False, embed=True))
    assert picture.openable == ()
    last = picture.place(())[-1]
    assert last.x + last.form.width < 3000


def test_few_blocks_are_open_at_first() -> None:
    assert layout(synthetic.graph((3,))).at_first == (3,)
    many = layout(synthetic.graph((3, 4, 5), heads=1, neurons=(1, 0)))
    assert many.at_first == ()
    assert many.choose_open([4]) == (4,)
    with pytest.raises(LexrayError, match="block 9"):
        many.choose_open([9])


def test_positive_neurons_stand_above_negative_ones_and_others_last() -> None:
    graph = synthetic.graph()
    place = {graph.nodes[box.node].id: box.y for _, box in boxes(layout(graph), (14,))}
    signs = {edge.target: edge.sign for edge in graph.edges if edge.target.startswith("L14.O")}
    order = sorted(signs, key=lambda id: place[id])
    assert [signs[id] for id in order] == [1] * 18 + [-1] * 7
    assert place["L14.attn.others"] > max(place[id] for id in order)


def test_heads_stand_beside_their_values() -> None:
    graph = synthetic.graph()
    place = {graph.nodes[box.node].id: box.middle for _, box in boxes(layout(graph), (14,))}
    for head in graph.of_kind(NodeKind.HEAD):
        values = [place[edge.source] for edge in graph.into(head.id)]
        assert place[head.id] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("heads", [0, 1])
@pytest.mark.parametrize("neurons", [(0, 0), (1, 0), (0, 1)])
def test_small_blocks(heads: int, neurons: tuple[int, int]) -> None:
    graph = synthetic.graph(heads=heads, neurons=neurons)
    assert graph.to_svg().count('class="node"') == len(graph.nodes)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 50)), min_size=1, max_size=20))
def test_spacing_is_the_best_there_is(wishes: list[tuple[float, float]]) -> None:
    """Against scipy's isotonic regression."""
    wanted, gaps = [wish for wish, _ in wishes], [gap for _, gap in wishes[1:]]
    offsets = np.concatenate([[0.0], np.cumsum(gaps)])
    best = isotonic_regression(np.array(wanted) - offsets).x + offsets
    np.testing.assert_allclose(arrange.space_out(wanted, gaps), best, atol=1e-6)


@given(st.integers(0, 10**6))
def test_crossings_are_counted_right(seed: int) -> None:
    """Against the definition: two edges cross if their ends are in opposite order."""
    dice = random.Random(seed)
    left, right = list(range(dice.randint(1, 6))), list(range(10, 10 + dice.randint(1, 6)))
    pairs = [(a, b) for a in left for b in right if dice.random() < 0.5]
    before, after = arrange.neighbours([*left, *right], pairs)
    expected = sum((a - c) * (b - d) < 0 for (a, b), (c, d) in itertools.combinations(pairs, 2))
    assert arrange.crossings([left, right], after) == expected
    swept = arrange.order([left, right], before, after, {})
    assert arrange.crossings(swept, after) <= expected
    assert [sorted(stack) for stack in swept] == [left, right]


def test_tangled_edges_are_untangled() -> None:
    left, right = list(range(8)), list(range(10, 18))
    pairs = [(i, 10 + (5 * i) % 8) for i in left]
    before, after = arrange.neighbours([*left, *right], pairs)
    assert arrange.crossings([left, right], after) > 5
    assert arrange.crossings(arrange.order([left, right], before, after, {}), after) == 0


def test_what_is_left_over_stands_below_its_siblings() -> None:
    """Two heads with two values each, and the rest of each: 4 and 5 were added last."""
    pairs = [(0, 10), (1, 10), (2, 11), (3, 11), (4, 10), (5, 11)]
    before, after = arrange.neighbours([*range(6), 10, 11], pairs)
    stacks = [[5, 0, 2, 4, 1, 3], [11, 10]]
    left, right = arrange.order(stacks, before, after, {4: [0, 1], 5: [2, 3]})
    assert left == [0, 1, 4, 2, 3, 5]
    assert right == [10, 11]


def test_a_cycle_is_refused() -> None:
    before, after = arrange.neighbours([0, 1], [(0, 1), (1, 0)])
    with pytest.raises(LexrayError, match="cycle"):
        arrange.columns(before, after, lambda node: False)


@given(st.text(max_size=40), st.sampled_from(sorted(SIZES)), st.floats(0, 200))
def test_text_is_cut_to_its_room(text: str, role: str, room: float) -> None:
    cut = fit(text, role, room)
    assert text_width(cut, role) <= room
    assert cut == text or cut == "" or (cut.endswith("…") and text.startswith(cut[:-1]))
