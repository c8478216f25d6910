"""The shapes of a picture, and how wide text is: what both renderers draw, nothing they decide."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lexray.flow.graph import FlowGraph, Node, NodeKind, Projection
from lexray.result import letters
from lexray.result.format import show_percent
from lexray.result.theme import PRINT

FONT = PRINT
SIZES = {
    "token": 14.0,
    "word": 13.5,
    "tag": 11.5,
    "caption": 11.0,
    "share": 11.0,
    "line": 13.0,
    "heading": 12.0,
    "part": 14.0,
    "title": 16.0,
}
"""Font sizes by role: the word of a card, of a pill, the small text beside it, …"""
BOLD = frozenset({"token", "word", "title", "part"})

CARD_WIDTH, CARD_HEIGHT = 98.0, 46.0
PILL_WIDTH, PILL_HEIGHT = 116.0, 25.0
BOTH_WIDTH = 164.0
"""The width of a pill with the words of two runs."""
SHARE_ROOM = 31.0
"""What the longest probability takes of a card's first line."""
LINE = 19.0
"""The height of a line in a closed block's card."""
LINES = 7


@dataclass(frozen=True)
class Label:
    """A text; y is its baseline."""

    x: float
    y: float
    role: str
    text: str
    anchor: str = "start"

    @property
    def width(self) -> float:
        return text_width(self.text, self.role)


@dataclass(frozen=True)
class NodeBox:
    """A node as drawn: a rounded rectangle and its texts, x and y at the top left."""

    node: int
    x: float
    y: float
    width: float
    height: float
    labels: tuple[Label, ...]

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width

    def shift(self, x: float) -> NodeBox:
        """The box as a neighbour sees it whose coordinates begin elsewhere; its texts stay."""
        return replace(self, x=self.x + x)


@dataclass(frozen=True)
class Wire:
    """An edge as drawn: an SVG path from its source to its target."""

    edge: int
    path: str


@dataclass(frozen=True)
class Backdrop:
    """A tinted ground behind a part of a block."""

    x: float
    y: float
    width: float
    height: float
    part: str


@dataclass(frozen=True)
class Form:
    """One way of drawing a piece of the picture, in coordinates of its own from x = 0."""

    width: float
    bottom: float
    boxes: tuple[NodeBox, ...] = ()
    wires: tuple[Wire, ...] = ()
    panels: tuple[Backdrop, ...] = ()
    labels: tuple[Label, ...] = ()


def card(index: int, node: Node, graph: FlowGraph, x: float, middle: float) -> NodeBox:
    """A node on its own: what it is, its first word, and the target's probability."""
    y = middle - CARD_HEIGHT / 2
    word = first_words(node, "token", CARD_WIDTH - 18)
    labels = (*_head(node.label, node, graph, x, y), Label(x + 9, y + 35, "token", word))
    return NodeBox(index, x, y, CARD_WIDTH, CARD_HEIGHT, labels)


def _head(name: str, node: Node, graph: FlowGraph, x: float, y: float) -> tuple[Label, Label]:
    """The first line of a card: its name, and room for the probability of any target."""
    place = graph.place(node)
    share = show_share(place.probability) if place else ""
    caption = fit(name, "caption", CARD_WIDTH - 18 - SHARE_ROOM)
    return (
        Label(x + 9, y + 16, "caption", caption),
        Label(x + CARD_WIDTH - 9, y + 16, "share", share, "end"),
    )


def pill_width(graph: FlowGraph) -> float:
    return BOTH_WIDTH if graph.is_difference else PILL_WIDTH


def pill(index: int, node: Node, graph: FlowGraph, x: float, middle: float) -> NodeBox:
    """A node among many: its name small, its first word beside it."""
    width = pill_width(graph)
    y = middle - PILL_HEIGHT / 2
    others = node.kind == NodeKind.OTHERS and node.count is not None
    tag = fit(f"+{node.count}" if others else node.label, "tag", 44.0)
    start = x + 8 + (text_width(tag, "tag") + 6 if tag else 0)
    word = first_words(node, "word", x + width - 7 - start)
    baseline = y + 17.2
    labels = (Label(x + 8, baseline, "tag", tag), Label(start, baseline, "word", word))
    shown = tuple(label for label in labels if label.text)
    return NodeBox(index, x, y, width, PILL_HEIGHT, shown)


def summary(index: int, node: Node, graph: FlowGraph, name: str, x: float, y: float) -> NodeBox:
    """What a closed block's attention or feed-forward adds: its first words below one another."""
    labels = [*_head(name, node, graph, x, y)]
    for i, word in enumerate(_lines(node)):
        role = "token" if i == 0 else "line"
        text = fit(word, role, CARD_WIDTH - 18)
        labels.append(Label(x + 9, y + 35 + LINE * i, role, text))
    height = CARD_HEIGHT + LINE * (LINES - 1)
    return NodeBox(index, x, y, CARD_WIDTH, height, tuple(labels))


def _lines(node: Node) -> list[str]:
    """What a vector reads as; of two runs what the first has that the other has not, and what it
    has lost, then what both have."""
    seen = _shown_reading(node)
    if node.projection is None or node.other is None:
        return [word.shown for word in seen.top[:LINES]] if seen else []
    mine = [word.shown for word in node.projection.top]
    theirs = [word.shown for word in node.other.top]
    gained = [f"+ {word}" for word in mine if word not in theirs][: LINES - LINES // 2]
    lost = [f"− {word}" for word in theirs if word not in mine][: LINES // 2]
    both = [word for word in mine if word in theirs]
    return [*gained, *lost, *both][:LINES]


def first_words(node: Node, role: str, room: float) -> str:
    """A vector's first word; of two runs both, where they differ, each with room to be known by."""
    words = [seen.top[0].shown for seen in (node.projection, node.other) if seen and seen.top]
    one, *other = dict.fromkeys(words) if words else [""]
    if not other:
        return fit(one, role, room)
    between = " | "
    room -= text_width(between, role)
    one = fit(one, role, max(room / 2, room - text_width(other[0], role)))
    return one + between + fit(other[0], role, room - text_width(one, role))


def _shown_reading(node: Node) -> Projection | None:
    return node.projection or node.other


def show_share(probability: float) -> str:
    """A probability in few characters, nothing if it is next to nothing.

    >>> show_share(0.254), show_share(0.0123), show_share(0.00001)
    ('25 %', '1.2 %', '')
    """
    if not probability >= 0.001:
        return ""
    return show_percent(probability, 1 if probability < 0.0995 else 0)


def fit(text: str, role: str, room: float) -> str:
    """The text if there is room for it, else its beginning and an ellipsis."""
    return letters.fit(text, SIZES[role], room, bold=role in BOLD)


def text_width(text: str, role: str) -> float:
    """How wide a text is at most in the fonts of `FONT`, in pixels."""
    return letters.measure(text, SIZES[role], bold=role in BOLD)
