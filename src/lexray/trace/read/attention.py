"""Where every head looks, over the whole prompt, and what it writes at one position."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.result import page as shell
from lexray.result.assets import read_asset
from lexray.result.charts.thumbs import Thumb, Thumbs
from lexray.result.format import show_percent, show_place
from lexray.result.readings import Source, Token
from lexray.result.table import Result, Table
from lexray.trace.read.look import lens
from lexray.trace.read.vectors import has_kind
from lexray.trace.recording import Recording
from lexray.vocabulary.filters import Filter

START = """
show(
  document.getElementById("attention"),
  JSON.parse(document.getElementById("data").textContent),
  { hash: true },
);
"""
LOOKS = 3
"""So many tokens that a head looks at are listed."""


@dataclass(frozen=True, eq=False)
class HeadPattern:
    """A head: where it looks from each position, and what it writes at one."""

    layer: int
    head: int
    weights: Float[Tensor, "p n"]
    words: tuple[str, ...]
    address: str

    def to_dict(self, weights: list[list[float]] | str) -> dict[str, Any]:
        """With the weights as they are to be written."""
        words = list(self.words)
        at = {"layer": self.layer, "head": self.head, "address": self.address}
        return {**at, "words": words, "weights": weights}


@dataclass(frozen=True, eq=False)
class AttentionPatterns(Result):
    """The attention of a pass: small for all heads, large for the one that is chosen."""

    source: Source
    tokens: tuple[Token, ...]
    positions: tuple[int, ...]
    """From which positions it was kept."""
    position: int
    """At which heads are read as words."""
    heads: tuple[HeadPattern, ...]
    keys: tuple[Token, ...] | None = None
    """Of cross-attention: the source's tokens, which are looked at; else those of the pass."""

    @property
    def seen(self) -> tuple[Token, ...]:
        """The tokens that are looked at."""
        return self.tokens if self.keys is None else self.keys

    def __getitem__(self, address: str) -> HeadPattern:
        for head in self.heads:
            if head.address == address:
                return head
        there = f"{self.heads[0].address} … {self.heads[-1].address}"
        raise LexrayError(f"there is no head {address!r} among these: {there}")

    @property
    def title(self) -> str:
        return f"{'Attention' if self.keys is None else 'Cross-attention'} of {self.source.called}"

    @property
    def note(self) -> str:
        shown = self.tokens[self.position].shown
        return f"words: what each head writes at {shown} (position {self.position}) · {self.source}"

    def looks_at(self, head: HeadPattern) -> list[tuple[int, float]]:
        """The positions that a head looks at most from the chosen one."""
        row = head.weights[self.positions.index(self.position)]
        best = row.topk(min(LOOKS, len(row)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def _looks(self, head: HeadPattern) -> str:
        tokens = [token.shown for token in self.seen]
        return "  ".join(
            f"{show_place(tokens, at)} {show_percent(weight, 0)}"
            for at, weight in self.looks_at(head)
            if weight >= 0.01
        )

    def tables(self) -> list[Table]:
        rows = tuple((h.address, self._looks(h), " ".join(h.words)) for h in self.heads)
        return [Table(("head", "looks at", "writes"), rows, self.title, self.note)]

    def csv_tables(self) -> list[Table]:
        columns = ("layer", "head", "from", "to", "weight")
        rows = tuple(
            (h.layer, h.head, at, to, weight)
            for h in self.heads
            for at, line in zip(self.positions, h.weights.tolist(), strict=True)
            for to, weight in enumerate(line)
            if weight > 0
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "tokens": [token.to_dict() for token in self.tokens],
            "keys": None if self.keys is None else [token.to_dict() for token in self.keys],
            "positions": list(self.positions),
            "position": self.position,
            "heads": [
                h.to_dict([[float(f"{x:.4g}") for x in row] for row in h.weights.tolist()])
                for h in self.heads
            ],
        }

    @cached_property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted({head.layer for head in self.heads}))

    def plot(self) -> Thumbs:
        """All heads small, a row for each layer."""
        rows = tuple(
            tuple(
                Thumb(h.weights.tolist(), f"{h.address}: {self._looks(h)} → {' '.join(h.words)}")
                for h in self.heads
                if h.layer == layer
            )
            for layer in self.layers
        )
        names = tuple(f"L{layer}" for layer in self.layers)
        return Thumbs(self.title, self.note, names, rows)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    def to_html(self) -> str:
        """A page that needs no network: all heads small, the chosen one large over the prompt."""
        data = shell.Script(shell.embed_json(self.page_data()), "application/json", "data")
        module = read_asset("lexray.trace.read", "static/attention.js")
        script = shell.Script(module + START, "module")
        head = f"<h1>{shell.escape(self.title)}</h1><p class='note'>{shell.escape(self.note)}</p>"
        still = f"<noscript>{self.plot().html()}</noscript>"
        body = f'<main>{head}<div id="attention"></div>{still}</main>'
        style = read_asset("lexray.trace.read", "static/attention.css")
        return shell.page(self.title, body, style=style, scripts=(data, script))

    def page_data(self) -> dict[str, Any]:
        """What `show` in attention.js takes."""
        return {
            "tokens": [token.shown for token in self.tokens],
            "keys": None if self.keys is None else [token.shown for token in self.keys],
            "positions": list(self.positions),
            "position": self.position,
            "heads": [h.to_dict(_pack(h.weights)) for h in self.heads],
        }


def _pack(weights: Float[Tensor, "p n"]) -> str:
    """A byte for each weight."""
    levels: list[int] = (255 * weights).round().clamp(0, 255).byte().flatten().tolist()
    return b64encode(bytes(levels)).decode()


def attention_patterns(
    recording: Recording,
    *,
    layers: Some = None,
    heads: Some = None,
    position: int = -1,
    k: int = 5,
    filter: Filter | None = None,
    cross: bool = False,
) -> AttentionPatterns:
    """Where heads look and what they write; see `lexray.trace.trace.Trace.attention`."""
    model = recording.model
    at = recording.positions[recording.row(position)]
    chosen = recording.layers if layers is None else choose(layers, model.n_layers, "layer")
    kind = "cross_heads" if cross else "heads"
    asked = [n for n in chosen if has_kind(model.architecture.blocks[n], kind)]
    if cross and recording.source is None:
        raise LexrayError(f"{model.name} has no cross-attention: it is one stack of layers")
    if not asked:
        raise LexrayError(
            f"no head looks anywhere in layers {', '.join(map(str, chosen))}: they have no heads"
        )
    read = lens(recording, kind, layers=asked, positions=[at], heads=heads, k=k, filter=filter)
    spell = model.vocabulary.shown
    words = {
        line.name: tuple(spell(token) for token in ids)
        for line, (ids,) in zip(read.lines, read.top_ids.tolist(), strict=True)
    }
    patterns = []
    for layer in asked:
        part = recording[layer]
        pattern = (part.cross.pattern if cross else part.pattern).float().cpu()
        for head in choose(heads, len(pattern), "head"):
            name = model.at(layer, head=head, cross=cross)
            own = words.get(f"L{layer}{'X' if cross else 'H'}{head}", ())
            patterns.append(HeadPattern(layer, head, pattern[head], own, str(name)))
    keys = recording.source.tokens if cross and recording.source is not None else None
    positions = tuple(recording.positions)
    source = model.space.source("attention", filter)
    return AttentionPatterns(source, recording.tokens, positions, at, tuple(patterns), keys)
