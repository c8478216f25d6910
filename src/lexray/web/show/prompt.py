"""The sections of a prompt: what comes next, the lens, contributions, and what modules draw."""

from __future__ import annotations

from typing import Any

from lexray.effects.effect import Effect, MovedToken
from lexray.result.format import show_number, show_percent
from lexray.result.readings import Token
from lexray.trace.attribute.leaves import Leaf, Leaves
from lexray.trace.read.grid import Grid, GridCell
from lexray.web.markup import Markup, el, join
from lexray.web.packed import Drawing, PackedLens
from lexray.web.sheet import Content, Viewpoint
from lexray.web.show.results import figure, show
from lexray.web.show.words import address_link, is_address, level, token_chip


def show_of_prompt(
    section: str, content: Content, place: Viewpoint, query: dict[str, str]
) -> Markup:
    """A section's content; `query` is the page's, for links to the same run with a change."""
    if isinstance(content, PackedLens):
        if section == "lens" and content.grids:
            return join(*(_grid(grid, content, place, query) for grid in content.grids))
        return _next(content, place, query)
    if isinstance(content, Leaves):
        return _leaves(content, place, query)
    if isinstance(content, Drawing):
        return _draw(section, content, place, query)
    if isinstance(content, Effect):
        return _effect(content, place)
    return show(content, place)


def _with(place: Viewpoint, query: dict[str, str], **changes: Any) -> str:
    return place.link("prompt", **{**query, **changes})


def _next(lens: PackedLens, place: Viewpoint, query: dict[str, str]) -> Markup:
    """The most probable tokens, each a target to choose."""
    rows = [
        el(
            "li",
            el(
                "a",
                token.shown,
                class_="tok",
                href=_with(place, query, target=_spell(token)),
                title="make it the target",
            ),
            el("span", el("i", class_=f"fill {level(p)}"), class_="meter long"),
            el("span", show_percent(p), class_="figure"),
        )
        for token, p in lens.columns[-1]
    ]
    return el("ol", *rows, class_="next")


def _spell(token: Token) -> str:
    """A token as it can be typed: by its sign for a space, or by its id."""
    plain = token.text.replace(" ", "·")
    return plain if plain.isprintable() and plain.strip("·") and "," not in plain else str(token.id)


def _grid(grid: Grid, lens: PackedLens, place: Viewpoint, query: dict[str, str]) -> Markup:
    last = max(lens.positions, default=0)
    chosen = int(query.get("position") or -1) % (last + 1)
    heads = [
        el(
            "th",
            el("a", name.partition(" ")[2], href=_with(place, query, position=at)),
            scope="col",
            title=f"position {at}",
            class_="here" if at == chosen else None,
        )
        for name, at in zip(grid.columns, lens.positions, strict=True)
    ]
    rows = [
        el("tr", el("th", name, scope="row"), *map(_cell, cells))
        for name, cells in zip(grid.names, grid.cells, strict=True)
    ]
    table = el(
        "table",
        el("thead", el("tr", el("th", el("span", "layer", class_="quiet")), *heads)),
        el("tbody", *rows),
        class_="lens",
    )
    return el(
        "div",
        el("div", table, class_="scroll", tabindex="0", role="region", aria_label=grid.title),
        el("p", grid.note, class_="note") if grid.note else None,
    )


def _cell(cell: GridCell) -> Markup:
    sign = " against" if cell.against else ""
    return el("td", cell.text, class_=f"{level(cell.strength**0.5)}{sign}", title=cell.more or None)


def _leaves(leaves: Leaves, place: Viewpoint, query: dict[str, str]) -> Markup:
    largest = max((abs(leaf.contribution) for leaf in leaves), default=0.0) or 1.0
    items = [
        el(
            "li",
            el("span", _component(leaf, place), class_="who"),
            el("div", _wrote(leaf, place), ways(leaf.component, place, query)),
            figure(f"{leaf.contribution:+.2f}", leaf.contribution / largest),
        )
        for leaf in leaves
    ]
    return join(
        el("ol", *items, class_="found leaves"),
        el("p", leaves.note, class_="note") if leaves.note else None,
    )


def _component(leaf: Leaf, place: Viewpoint) -> Markup:
    name = leaf.component
    return address_link(name, place) if is_address(name) else el("b", name)


def _wrote(leaf: Leaf, place: Viewpoint) -> Markup:
    looked = None
    if leaf.looked_at is not None:
        looked = el("li", token_chip(leaf.looked_at, place), el("span", "→", class_="arrow"))
    words = (el("li", token_chip(word, place)) for word in leaf.words)
    return el("ol", looked, *words, class_="words")


def ways(component: str, place: Viewpoint, query: dict[str, str]) -> Markup | None:
    """Ways to change a head or neuron in this run, as links to the run so changed."""
    if not is_address(component) or not any(letter in component for letter in "HXN"):
        return None
    given = query.get("edits", "").strip().rstrip(";")
    edits = [("remove", f"ablate {component}"), ("× 2", f"scale {component} by 2")]
    edits += [("× −1", f"scale {component} by -1")]
    edits += [("clamp", f"clamp {component} to 8")] if "N" in component else []
    links = []
    for text, edit in edits:
        both = f"{given}; {edit}" if given else edit
        links.append(el("a", text, href=_with(place, query, edits=both), title=edit))
    return el("span", *links, class_="ways")


def _draw(section: str, content: Drawing, place: Viewpoint, query: dict[str, str]) -> Markup:
    """What a module draws; where there is none, a word."""
    here = place.link("prompt", section, **query)
    path, mark, tail = here.partition("?")
    return join(
        el("p", id=f"{section}-chosen", class_="chosen note"),
        el(
            "div",
            el("noscript", el("p", "This is drawn by a script.")),
            class_=f"drawn {content.module}-drawn",
            data_draw=content.module,
            data_from=f"{path}.draw{mark}{tail}",
        ),
    )


def _effect(effect: Effect, place: Viewpoint) -> Markup:
    target = effect.aim.target
    before, after = effect.before, effect.after
    facts = [
        (show_percent(before.probability), "unchanged"),
        (show_percent(after.probability), "changed"),
        (f"{effect.change:+.2f}", "logit"),
        (f"{before.rank:,} → {after.rank:,}", "rank"),
    ]
    return join(
        el("p", "The probability of ", el("span", target.shown, class_="tok"), class_="sides"),
        el(
            "div",
            *(el("div", el("b", value), el("span", said), class_="fact") for value, said in facts),
            class_="facts",
        ),
        el(
            "div",
            el("div", el("h3", "Rose"), _show_moved(effect.rose[:8], place)),
            el("div", el("h3", "Fell"), _show_moved(effect.fell[:8], place)),
            class_="moves",
        ),
        el("p", effect.note, class_="note") if effect.note else None,
    )


def _show_moved(moved: tuple[MovedToken, ...], place: Viewpoint) -> Markup:
    rows = [
        el(
            "li",
            token_chip(each.token, place),
            el(
                "span", f"{show_percent(each.before)} → {show_percent(each.after)}", class_="figure"
            ),
        )
        for each in moved
        if abs(each.change) > 0
    ]
    return el("ol", *rows, class_="moved") if rows else el("p", show_number(0.0), class_="note")
