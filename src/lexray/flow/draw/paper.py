"""The graph for a paper: one column, the few parts that carry most, words fit to be printed.

From left to right: the tokens that heads look at, what the parts write, and the target, into which
each part flows as wide as it counts. All else is one row. 640 units are 6.5 inches of a page, so
that the smallest letters (10 units) are 7.3 points high.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lexray.flow.caption import caption, drop_repeats
from lexray.flow.draw.svg import show_prompt
from lexray.flow.graph import FlowGraph
from lexray.flow.story import Seen, Story, StoryPart, first_and_last, tell
from lexray.result.charts.pen import Colour, Mix, Pen, short
from lexray.result.format import show_model, show_percent
from lexray.result.letters import fit, measure, wrap
from lexray.result.theme import DARK, LIGHT

WIDTH = 640.0
MARGIN = 8.0
WORDS = 3
"""At most so many words of a part are written."""
SOURCE_WIDTH, PART_LEFT, PART_WIDTH = 96.0, 148.0, 252.0
TARGET_WIDTH = 122.0
ROW, CARD = 54.0, 44.0
NAME, WORD, SMALL = 11.0, 13.5, 10.5
PAPER = replace(LIGHT, paper="#ffffff")
"""Paper is white: a tint would be seen beside it."""
WIDEST = 18.0
"""How wide the strongest ribbon is."""


def paper_drawing(graph: FlowGraph, *, dark: bool = False, n: int | None = None) -> str:
    """The story of a graph as SVG."""
    return _Page(tell(graph, n)).text(dark)


@dataclass(frozen=True)
class _Page:
    story: Story

    @property
    def graph(self) -> FlowGraph:
        return self.story.graph

    @property
    def inner(self) -> float:
        return WIDTH - 2 * MARGIN

    @cached_property
    def rows(self) -> list[tuple[StoryPart, bool]]:
        """The parts, and what is left; the second says whether it is the rest."""
        rest = StoryPart(self.story.rest_name, (), self.story.rest)
        return [(part, False) for part in self.story.parts] + [(rest, True)]

    def text(self, dark: bool) -> str:
        pen = Pen(DARK if dark else PAPER)
        with pen.moved(MARGIN, MARGIN):
            top = self._prompt(pen)
            with pen.moved(0.0, top):
                self._flow(pen)
            bottom = top + ROW * len(self.rows)
            bottom = self._below(pen, bottom + 8)
        title = f"What makes {self.graph.target.shown} after {self.graph.run.prompt}"
        return pen.document(WIDTH, bottom + 2 * MARGIN, title, caption(self.graph))

    # ------------------------------------------------------------------ the prompt

    def _prompt(self, pen: Pen) -> float:
        """The prompt's tokens, those that are looked at in colour; says where the flow begins."""
        seen = {source.position: source.weight for source in self.story.sources}
        most = max(seen.values(), default=1.0)
        x, y = 0.0, 0.0
        tokens = self.graph.run.tokens[: self.graph.run.position + 1]
        if sum(measure(token, 13) + 12 for token in tokens) > 3 * self.inner:
            pen.text(0.0, 15.0, fit(show_prompt(self.graph.run), 13, self.inner), 13)
            return 34.0
        for at, token in enumerate(tokens):
            wide = measure(token, 13) + 9
            if at and at == self.graph.run.n_source:  # here the target begins
                pen.text(x + 7, y + 15, "→", 13, anchor="middle")
                x += 17
            if x + wide > self.inner:
                x, y = 0.0, y + 25
            colour: Colour = Mix("chip", "third", 0.75 * seen[at] / most) if at in seen else "chip"
            stroke = "accent" if at == len(tokens) - 1 else None
            pen.rect(x + 0.5, y + 0.5, wide - 3, 20, colour, radius=5, stroke=stroke)
            pen.text(x + wide / 2 - 1.5, y + 15, token, 13, anchor="middle")
            x += wide
        return y + 40.0

    # ------------------------------------------------------------------ the flow

    def _flow(self, pen: Pen) -> None:
        height = ROW * len(self.rows) - (ROW - CARD)
        places = self._source_places(height)
        for i, (part, _) in enumerate(self.rows):
            self._looks(pen, part, ROW * i + CARD / 2, places)
        self._ribbons(pen, height)
        for source in self.story.sources:
            self._source(pen, source, places[source.position])
        for i, (part, rest) in enumerate(self.rows):
            self._part(pen, part, ROW * i, rest)
        self._target(pen, height)

    def _source_places(self, height: float) -> dict[int, float]:
        """The middle of each source: near the parts that look at it, none on another."""
        wanted = []
        for source in self.story.sources:
            rows = [
                (ROW * i + CARD / 2, own.weight)
                for i, (part, _) in enumerate(self.rows)
                for own in part.sources
                if own.position == source.position
            ]
            total = sum(weight for _, weight in rows) or 1.0
            wanted.append((sum(y * w for y, w in rows) / total, source.position))
        places: dict[int, float] = {}
        last = -1e9
        for y, position in sorted(wanted):
            last = places[position] = max(y, last + 32)
        over = max(0.0, max(places.values(), default=0.0) + 13 - height)
        return {position: y - over for position, y in places.items()}

    def _source(self, pen: Pen, source: Seen, y: float) -> None:
        pen.rect(0.5, y - 12.5, SOURCE_WIDTH - 1, 25, "chip", radius=6, stroke="line")
        twice = self.graph.run.tokens.count(source.token) > 1
        number = str(source.position) if twice else ""
        room = SOURCE_WIDTH - 16 - measure(number, SMALL)
        pen.text(9, y + 4.7, fit(source.token, WORD, room, bold=True), WORD, bold=True)
        pen.text(SOURCE_WIDTH - 7, y + 4.2, number, SMALL, "faint", anchor="end")

    def _looks(self, pen: Pen, part: StoryPart, y: float, places: dict[int, float]) -> None:
        for source in part.sources:
            start = places[source.position]
            said = f"{part.name} looks at {source.token}: {show_percent(source.weight)}"
            pen.path(
                _curve(SOURCE_WIDTH, start, PART_LEFT, y),
                "third",
                max(1.0, 8 * source.weight),
                opacity=0.55,
                said=said,
            )

    def _part(self, pen: Pen, part: StoryPart, y: float, rest: bool) -> None:
        colour = "paper" if rest else "card"
        pen.rect(
            PART_LEFT + 0.5, y + 0.5, PART_WIDTH - 1, CARD - 1, colour, radius=8, stroke="line"
        )
        number = f"{part.weight:+.2f}" if self.story.by_logit else f"{part.weight:.2f}"
        room = PART_WIDTH - 30 - measure(number, 12, bold=True)
        level = y + (CARD / 2 + 4 if rest else 16)
        pen.text(PART_LEFT + PART_WIDTH - 11, level, number, 12, anchor="end", bold=True)
        if rest:
            name = fit(part.name, 12, room)
            pen.text(PART_LEFT + 11, y + CARD / 2 + 4, name, 12, "faint")
            return
        pen.text(PART_LEFT + 11, y + 15.5, fit(part.name, NAME, room), NAME, "faint")
        x, end = PART_LEFT + 11, PART_LEFT + PART_WIDTH - 10
        for i, word in enumerate(drop_repeats(part.words)[:WORDS]):
            shown = fit(word, WORD, end - x, bold=i == 0)
            if not shown or (i and shown != word):
                break
            ink = "ink" if i == 0 else Mix("ink", "faint", 0.6)
            pen.text(x, y + 34, shown, WORD, ink, bold=i == 0)
            x += measure(shown, WORD, bold=i == 0) + 11

    def _ribbons(self, pen: Pen, height: float) -> None:
        """From each part into the target, as wide as it counts."""
        most = max((abs(part.weight) for part, _ in self.rows), default=1.0) or 1.0
        widths = [max(1.2, WIDEST * abs(part.weight) / most) for part, _ in self.rows]
        start, stop = PART_LEFT + PART_WIDTH, self.inner - TARGET_WIDTH
        y = height / 2 - sum(widths) / 2
        for i, ((part, rest), wide) in enumerate(zip(self.rows, widths, strict=True)):
            middle = ROW * i + CARD / 2
            colour = "positive" if part.weight >= 0 else "negative"
            said = f"{part.name}: {part.weight:+.3g}"
            path = _curve(start, middle, stop, y + wide / 2)
            pen.path(path, colour, wide, opacity=0.35 if rest else 0.6, said=said)
            y += wide

    def _target(self, pen: Pen, height: float) -> None:
        x = self.inner - TARGET_WIDTH
        tall = min(height, 112.0)
        y = (height - tall) / 2
        pen.rect(
            x + 0.5, y + 0.5, TARGET_WIDTH - 1, tall - 1, "good_ground", radius=9, stroke="good"
        )
        middle = x + TARGET_WIDTH / 2
        word = fit(self.graph.target.shown, 19, TARGET_WIDTH - 16, bold=True)
        pen.text(middle, y + tall / 2 - 14, word, 19, anchor="middle", bold=True)
        ranks = self._ranks()
        if ranks:
            pen.text(middle, y + tall / 2 + 9, f"rank {ranks[0]:,}", 12, "faint", anchor="middle")
            pen.text(middle, y + tall / 2 + 27, f"→ {ranks[1]:,}", 14, anchor="middle", bold=True)

    def _ranks(self) -> tuple[int, int] | None:
        ends = first_and_last(self.graph)
        places = [self.graph.place(node) for node in ends] if ends else []
        known = [place.rank for place in places if place is not None]
        return (known[0], known[1]) if len(known) == 2 else None

    # ------------------------------------------------------------------ below it

    def _below(self, pen: Pen, y: float) -> float:
        """The sentence and the small print; says where they end."""
        for line in wrap(caption(self.graph), 12.5, self.inner):
            y += 17
            pen.text(0.0, y, line, 12.5)
        for line in wrap(self._small_print(), SMALL, self.inner):
            y += 15
            pen.text(0.0, y, line, SMALL, "faint")
        return y

    def _small_print(self) -> str:
        graph, run = self.graph, self.graph.run
        numbers = (
            f"numbers and ribbons: what each part adds to the logit of {graph.target.shown}"
            if self.story.by_logit
            else "numbers and ribbons: the length of what each part adds"
        )
        if graph.other is not None and self.story.by_logit:
            numbers += f", less what it adds after {show_prompt(graph.other)}"
        filtered = graph.options.get("filter") or ""
        said = f"says {run.prediction.shown} itself" if run.prediction else ""
        parts = [show_model(run.model), said, numbers, "green: attention", filtered]
        return " · ".join(filter(None, parts))


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    middle, start, stop = short((x1 + x2) / 2), short(y1), short(y2)
    return f"M{short(x1)} {start}C{middle} {start} {middle} {stop} {short(x2)} {stop}"
