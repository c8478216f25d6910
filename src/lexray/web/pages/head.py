"""A head: what it moves, where it looks, what a typed token does to it, and its company."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.lookup import seeds
from lexray.model.anatomy import Anatomy
from lexray.model.head import Head
from lexray.web.expression import Expression, name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.pages.vector import LINKS, SNIPPETS, elsewhere, layer_link, stored_evidence
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, When

PAIRS, LINES, DIRECTIONS, WORDS = 24, 16, 5, 6
BUDGET = 20
"""Seconds after which a search for pairs shows what it has, and says so."""
CHOSEN = 12
"""At most so many tokens in the heat map."""
FAR = 64
"""How far the slider of offsets goes."""


def read_head(library: Library, place: Viewpoint, query: Query, at: Address) -> Sheet:
    """The page of a head; `of` is a token, `tokens` are those of the heat map."""
    model = place.model
    head = model.head(Address(at.layer, head=at.head, cross=at.cross, encoder=at.encoder))
    address, part = str(head.address), name("model").item(str(head.address))
    k = query.number("k", PAIRS, 1, 200)
    same = query.choice("same", ("other", "any"))
    sections = [
        *_lines(place, model, part, address, query),
        *_grids(place, model, part, address, query),
        _pairs(place, part, head, "vo", k, same),
        _pairs(place, part, head, "qk", k, same),
        _directions(place, part, head),
        *_describe(place, part, head),
        *_company(place, part, head),
        *(() if at.cross else elsewhere(library, place, address, BY_MATRICES)),
    ]
    asked = {key: query.text(key) for key in ("of", "tokens")}
    return Sheet(
        "head",
        address,
        place,
        (address,),
        tuple(sections),
        _siblings(place, model, head),
        _ask(place, address, asked),
        [layer_link(place, at)],
        *_neighbours(model, place, head.address),
        others=tuple(library),
        facts=(("address", address), *((key, value) for key, value in asked.items() if value)),
    )


def _pairs(
    place: Viewpoint, part: Expression, head: Head, matrix: str, k: int, same: str
) -> Section:
    other = same == "other"
    exclude = {"exclude_same": True} if other else {}
    call = part.get(matrix).call("top", k, **exclude, budget=BUDGET)
    flags = ["--exclude-same"] * other + ["--qk"] * (matrix == "qk")
    command = place.command(
        "head", str(head.address), "-k", k, *flags, "--budget", BUDGET, offset=True
    )
    if _is_stored(place, head, matrix, k, other=other):
        exclude = {"exclude_same": True} if other else {}
        call = name("atlas").call("pairs", str(head.address), matrix.upper(), k, **exclude)
    if matrix == "vo":
        return Section("vo", "What it moves", call, command, VO_SAYS, width="half")
    rotary = head.spec.rotary is not None
    controls = _slider(place, head) if rotary else Markup("")
    return Section("qk", "Where it looks", call, command, QK_SAYS, width="half", controls=controls)


def _is_stored(place: Viewpoint, head: Head, matrix: str, k: int, *, other: bool) -> bool:
    """Whether the atlas has so many pairs of it: among those of a head that copies most are pairs
    of a token with itself."""
    if not place.stores("heads", layer=head.layer) or not place.stores_lists(k):
        return False
    pairs = place.atlas.pairs(str(head.address), matrix.upper(), k, exclude_same=other)
    return len(pairs) == k


VO_SAYS = "Attending to the left token writes the right one: the strongest of all pairs, exactly."
BY_MATRICES = "By what they move and where they look"
QK_SAYS = "The left token, as a query, looks for the right one."


def _slider(place: Viewpoint, head: Head) -> Markup:
    """How far the key is from the query, in models whose queries and keys are turned."""
    return el(
        "label",
        "key at ",
        el("output", _say_offset(place.offset)),
        el(
            "input",
            type="range",
            name="offset",
            min=-FAR,
            max=0,
            value=max(-FAR, place.offset),
            data_offset=str(head.address),
        ),
        class_="slider",
    )


def _say_offset(offset: int) -> str:
    return "the same place" if offset == 0 else f"{-offset} before"


def _lines(
    place: Viewpoint, model: Anatomy, part: Expression, address: str, query: Query
) -> list[Section]:
    """Rows and columns of a typed token."""
    typed = query.text("of", 100)
    if not typed.strip():
        return []
    token = spell_token(model, typed)
    shown = model.space.token(model.space.id(token)).shown
    sections = []
    for matrix, method, flag, title in (
        ("vo", "of", "--of", f"When it sees {shown}"),
        ("vo", "writing", "--writing", f"What makes it write {shown}"),
        ("qk", "attends_to", "--attends-to", f"{shown} as a query"),
        ("qk", "attended_by", "--attended-by", f"{shown} as a key"),
    ):
        call = part.get(matrix).call(method, token, LINES)
        command = place.command("head", address, flag, str(token), "-k", LINES, offset=True)
        sections.append(Section(method.replace("_", "-"), title, call, command, width="half"))
    return sections


def spell_token(model: Anatomy, typed: str) -> str | int:
    """A typed word as the library takes it: its text where that finds it, else its id."""
    word = typed.replace("·", " ")
    if word.strip().isdecimal() and word.strip() == typed.strip() and len(typed) < 9:
        try:
            return seeds_text(model, word)
        except LexrayError:
            return model.space.id(int(word))
    return seeds_text(model, word)


def seeds_text(model: Anatomy, word: str) -> str | int:
    (token_id,) = seeds(model, word)
    text = model.vocabulary.text(token_id)
    return text if model.vocabulary.find(text) == token_id else token_id


def _grids(
    place: Viewpoint, model: Anatomy, part: Expression, address: str, query: Query
) -> list[Section]:
    """All pairs among chosen tokens."""
    typed = query.words("tokens", CHOSEN)
    if len(typed) < 2:
        return []
    words = list(dict.fromkeys(spell_token(model, word) for word in typed))
    among = name("lx").get("filters").call("among", words)
    n, ids = len(words), tuple(map(model.space.id, words))
    return [
        Section(
            f"grid-{matrix}",
            title,
            part.get(matrix).call("top", n * n, filter=among),
            "",
            says,
            width="half",
            among=ids,
        )
        for matrix, title, says in (
            ("vo", "What it moves among these", "Rows are attended to, columns written."),
            ("qk", "Where it looks among these", "Rows are queries, columns keys."),
        )
    ]


def _directions(place: Viewpoint, part: Expression, head: Head) -> Section:
    address = str(head.address)
    call = part.get("vo").call("svd", DIRECTIONS, WORDS)
    command = place.command("svd", f"{address}.VO", "-n", DIRECTIONS, "-k", WORDS)
    says = (
        "Its singular directions take it apart: what is read on the left is written on the right."
    )
    if place.stores("heads", layer=head.layer):
        call = name("atlas").call("directions", address, "VO")
    when: When = "now" if call.root == "atlas" else "soon"
    return Section("directions", "The things it does", call, command, says, when)


def _describe(place: Viewpoint, part: Expression, head: Head) -> list[Section]:
    """Its roles and relations; what is stored of them first."""
    address, ask = str(head.address), name("atlas")
    stored = []
    if place.stores("roles") and len(place.atlas.roles(address=address)):
        call = ask.call("roles", address=address)
        says = "The roles that its weights show, against chance."
        stored.append(Section("roles", "What it does", call, "", says, width="half"))
    if place.stores("relations") and len(place.atlas.relations(address)):
        call = ask.call("relations", address)
        says = "Pairs of words that it gets right far more often than chance would."
        stored.append(Section("relations", "Relations it holds", call, "", says, width="half"))
    card = Section(
        "card",
        "What moves it most" if stored else "What it does",
        part.call("describe", measure=False),
        place.command("describe", address, "--static"),
        "Roles and relations from its weights, and the tokens that move it most.",
        "asked" if stored else "soon",
        waits="Describe it as a whole",
    )
    return [*stored, card]


def _company(place: Viewpoint, part: Expression, head: Head) -> list[Section]:
    address = str(head.address)
    links = [
        Section(
            method,
            title,
            part.call(method, LINKS),
            place.command("wires", flag, address, "-n", LINKS),
            says,
            "soon",
            "half",
        )
        for method, title, flag, says in (
            ("writers", "Who writes for it", "--to", "Earlier parts whose words it reads."),
            ("readers", "Who reads it", "--from", "Later parts that read its words."),
        )
    ]
    if place.stores("evidence", kind="heads", layer=head.layer):
        return [*links, *stored_evidence(place, address)]
    return [
        *links,
        Section(
            "evidence",
            "In running text",
            name("model").call("evidence", address, n=SNIPPETS),
            place.command("evidence", address, "-n", SNIPPETS),
            "Where it takes most, from which token, and what that says.",
            "asked",
            waits="Look for it in a text",
        ),
    ]


def _siblings(place: Viewpoint, model: Anatomy, head: Head) -> Markup:
    """Its matrices' columns, and the heads that share its keys and values."""
    address = str(head.address)
    others = [
        str(other.address)
        for other in heads_beside(model, head.address)
        if other.kv_index == head.kv_index and other.index != head.index
    ]
    subheads = el(
        "span",
        f"{head.d_head} subheads: ",
        *(join(el("a", side, href=place.link(f"{address}.{side}0")), " ") for side in "QKVO"),
        class_="note",
    )
    if not others:
        return subheads
    shared = [join(" ", el("a", other, href=place.link(other), class_="addr")) for other in others]
    return join(subheads, el("span", "shares its keys and values with", *shared, class_="note"))


def _ask(place: Viewpoint, address: str, asked: dict[str, str]) -> Markup:
    """Two boxes: one token, or several."""
    return el(
        "form",
        el(
            "label",
            el("span", "What does it do when it sees"),
            el(
                "input",
                name="of",
                value=asked["of"],
                placeholder="a token, as ·film",
                maxlength=100,
            ),
        ),
        el(
            "label",
            el("span", "How do these go together"),
            el(
                "input",
                name="tokens",
                value=asked["tokens"],
                placeholder="he, she, his, her",
                maxlength=400,
            ),
        ),
        place.hidden,
        el("button", "read"),
        action=place.link(address).partition("?")[0],
        method="get",
        class_="ask",
        data_live="ask",
    )


def heads_beside(model: Anatomy, at: Address, layer: int | None = None) -> Sequence[Head]:
    """The heads of its layer, or of another one: of its stack, and of cross-attention if it is."""
    layers = model.stack_at(at).layers
    number = at.layer if layer is None else layer
    if not 0 <= number < len(layers):
        return ()
    return layers[number].cross_heads if at.cross else layers[number].heads


def _neighbours(model: Anatomy, place: Viewpoint, at: Address) -> tuple[str, str, str, str]:
    """The head before and after, across layers too, and the same one layer up and down."""
    here, above, below = (heads_beside(model, at, at.layer + by) for by in (0, -1, 1))
    i = at.head or 0
    steps = (
        here[i - 1] if i else (above[-1] if above else None),
        here[i + 1] if i + 1 < len(here) else (below[0] if below else None),
        above[i] if i < len(above) else None,
        below[i] if i < len(below) else None,
    )
    before, after, up, down = ("" if h is None else place.link(str(h.address)) for h in steps)
    return before, after, up, down
