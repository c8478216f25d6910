"""A comparison as a page: heat map, ranked changes, search and sort.

Every token is escaped: vocabularies contain `<script`. The page works without its script too.
"""

from __future__ import annotations

from math import log10

from lexray.compare.diff.changes import RULE, Change, Changes, Size
from lexray.compare.diff.lexicon import Lexicon
from lexray.compare.diff.stacks import CIRCUITS, DiffGroup
from lexray.result import page as shell
from lexray.result.assets import read_asset
from lexray.result.format import show_number, show_percent
from lexray.result.page import escape
from lexray.result.pairs import Pair
from lexray.result.readings import Scored

DECADES = 3.0
"""The heat map's colours span so many powers of ten below the largest share."""
NUMBERED = 24
"""Up to so many layers the cells hold their numbers."""
TITLES: dict[DiffGroup, str] = {
    "keys": "FF keys",
    "gates": "FF gates",
    "values": "FF values",
    "Q": "W_Q subheads",
    "K": "W_K subheads",
    "V": "W_V subheads",
    "O": "W_O subheads",
    "VO": "heads, VO",
    "QK": "heads, QK",
    "embedding": "input embedding",
    "unembedding": "output embedding",
}


def page(diff: Changes) -> str:
    """The whole file."""
    body = f"{_header(diff)}\n{heat_map(diff)}\n{_sentiment(diff)}\n{_changes(diff)}"
    script = read_asset("lexray.compare.diff", "report.js")
    return shell.page(diff.title, f"<main>\n{body}\n</main>", scripts=[shell.Script(script)])


def fragment(diff: Changes) -> str:
    """The same for a notebook, without the search."""
    parts = (_header(diff), heat_map(diff), _sentiment(diff), _table(diff))
    return shell.fragment("\n".join(parts))


def _header(diff: Changes) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in diff.notes)
    source = escape(f"{diff.source}, in the {diff.through} model's embedding")
    return (
        f"<header><h1><span>{escape(diff.base)}</span> <i>→</i> "
        f"<span>{escape(diff.tuned)}</span></h1>"
        f'<p class="lead">{escape(diff.summary)}</p><p class="note">{source}</p>'
        + (f'<ul class="note">{notes}</ul>' if notes else "")
        + "</header>"
    )


def heat_map(diff: Changes) -> str:
    """Groups by layers, the colour by the share that moved, on a logarithmic scale."""
    layers, groups = diff.layers, diff.groups
    shares = [s.relative for s in diff.sizes if s.relative]
    largest = max(shares, default=1.0)
    names = "".join(f"<th>{'model' if x is None else x}</th>" for x in layers)
    numbered = len(layers) <= NUMBERED
    rows = "".join(
        f"<tr><th>{TITLES.get(group, group)}</th>"
        + "".join(_cell(diff.size(group, x), largest, numbered) for x in layers)
        + "</tr>"
        for group in groups
    )
    small = "" if numbered else " small"
    return (
        '<section class="card"><h2>How far each group moved</h2><div class="scroll">'
        f'<table class="heat{small}"><thead><tr><th>layer</th>{names}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        '<p class="note">the norm of the difference over the norm before; colours are logarithmic, '
        f"the darkest {show_percent(largest)}</p></section>"
    )


def _cell(size: Size | None, largest: float, numbered: bool) -> str:
    if size is None:
        return '<td class="none"></td>'
    where = "model" if size.layer is None else f"L{size.layer}"
    data = f'data-group="{size.group}" data-layer="{"" if size.layer is None else size.layer}"'
    label = f"{where} {size.group}: {size.moved:,} of {size.vectors:,} moved"
    if not size.moved:
        return f'<td {data} title="{label}">{"·" if numbered else ""}</td>'
    if size.relative is None:
        return f'<td {data} class="new" title="{label}">{"new" if numbered else ""}</td>'
    heat = max(0.04, 1 + log10(max(size.relative / largest, 1e-9)) / DECADES)
    text = show_percent(size.relative).replace(" ", "\u202f")
    label += f", by {show_number(size.absolute)} ({text})"
    deep = " deep" if heat > 0.7 else ""
    return (
        f'<td {data} class="moved{deep}" style="--heat:{100 * min(1.0, heat):.0f}%" '
        f'title="{label}">{text if numbered else ""}</td>'
    )


def _sentiment(diff: Changes) -> str:
    if diff.sentiment is None:
        return ""
    s = diff.sentiment
    scale = max([share.share for share in s.shares] + [s.chance, 1e-9])
    rows = "".join(
        f'<tr class="{"yes" if x.reads else "no"}"><th>{escape(x.letter)}</th>'
        f'<td><span class="bar" style="width:{92 * x.share / scale:.1f}%"></span>'
        f"<b>{show_percent(x.share, 1)}</b></td><td>{show_percent(x.rotated, 1)}</td>"
        f"<td>{show_percent(x.before, 1)}</td><td>{x.p:.3f}</td>"
        f"<td>{'sentiment' if x.reads else '–'}</td></tr>"
        for x in s.shares
    )
    return (
        '<section class="card">'
        "<h2>Words of praise and blame</h2>"
        f'<p class="lead">{escape(s.verdict)}</p><div class="scroll"><table class="count"><thead>'
        "<tr><th>group</th><th>share of top tokens</th><th>rotated</th><th>before</th><th>p</th>"
        "<th></th></tr>"
        f'</thead><tbody>{rows}</tbody></table></div><p class="note">the {s.k} words at each end '
        f"of the most moved vectors; by chance {show_percent(s.chance, 1)}; “rotated”: the same "
        f"differences turned at random; “before”: the base’s own vectors. "
        f"{escape(s.lexicon.made)}</p></section>"
    )


def _changes(diff: Changes) -> str:
    groups = [g for g in diff.groups if any(c.group == g for c in diff.changes)]
    options = "".join(f'<option value="{g}">{TITLES.get(g, g)}</option>' for g in groups)
    return (
        '<section class="card">'
        "<h2>The most telling changes</h2>"
        '<div class="tools"><input id="search" type="search" placeholder="search tokens and '
        'addresses" aria-label="search"><select id="group" aria-label="group"><option value="">'
        f'all groups</option>{options}</select><button id="clear" type="button" hidden></button>'
        f'<span id="count" class="note"></span></div>{_table(diff)}'
        f'<p class="note">{escape(RULE)}</p></section>'
    )


def _table(diff: Changes) -> str:
    if not diff.changes:
        return '<p class="lead">Nothing moved.</p>'
    heads = (
        ("#", "rank"),
        ("address", "address"),
        ("telling", "telling"),
        ("moved", "relative"),
        ("towards", ""),
        ("away from", ""),
    )
    head = "".join(
        f'<th data-sort="{key}"><button type="button">{name}</button></th>' if key
        else f"<th>{name}</th>"
        for name, key in heads
    )  # fmt: skip
    lexicon = diff.sentiment.lexicon if diff.sentiment else None
    largest = max(c.telling for c in diff.changes) or 1.0
    rows = "\n".join(_row(i, c, lexicon, largest) for i, c in enumerate(diff.changes, 1))
    return f'<table class="changes"><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>'


def _row(rank: int, change: Change, lexicon: Lexicon | None, largest: float) -> str:
    circuit = change.group in CIRCUITS
    ends = (
        [_pairs(pairs, lexicon) for pairs in (change.pairs, change.bottom_pairs)]
        if circuit
        else [_tokens(tokens, lexicon) for tokens in (change.top, change.bottom)]
    )
    relative = "new" if change.relative is None else show_percent(change.relative)
    layer = "" if change.layer is None else change.layer
    said = change.token.shown if change.token else change.label
    extra = f' <span class="tok">{escape(said)}</span>' if said else ""
    return (
        f'<tr data-rank="{rank}" data-address="{escape(change.address)}" '
        f'data-group="{change.group}" data-layer="{layer}" data-telling="{change.telling:.6g}" '
        f'data-relative="{-1 if change.relative is None else change.relative:.6g}">'
        f"<td>{rank}</td><th><code>{escape(change.address)}</code>{extra}</th>"
        f'<td><span class="bar" style="width:{100 * change.telling / largest:.1f}%"></span>'
        f"{show_number(change.telling)}</td>"
        f'<td title="by {show_number(change.absolute)}">{relative}</td>'
        f"<td>{ends[0]}</td><td>{ends[1]}</td></tr>"
    )


def _tokens(tokens: tuple[Scored, ...], lexicon: Lexicon | None) -> str:
    return " ".join(
        f'<span class="tok {lexicon.side(s.token) if lexicon else ""}" '
        f'title="{show_number(s.score)}">{escape(s.token.shown)}</span>'
        for s in tokens
    )


def _pairs(pairs: tuple[Pair, ...], lexicon: Lexicon | None) -> str:
    return " ".join(
        f'<span class="pair" title="{show_number(p.score)}">'
        + "<i>→</i>".join(
            f'<span class="tok {lexicon.side(x) if lexicon else ""}">{escape(x.shown)}</span>'
            for x in (p.row, p.col)
        )
        + "</span>"
        for p in pairs
    )
