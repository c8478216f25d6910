"""A token: who writes it, who reads it, what is near it, and whether it was trained."""

from __future__ import annotations

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.space.kinds import kind_of
from lexray.web.expression import name
from lexray.web.library import Library
from lexray.web.markup import Markup, el
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint

FOUND, WORDS = 12, 10


def read_token(library: Library, place: Viewpoint, query: Query, token_id: int) -> Sheet:
    """The page of a token of this id."""
    model = place.model
    token = model.space.token(model.space.id(token_id))
    spelled = token.text if model.vocabulary.find(token.text) == token.id else token.id
    readers = tuple(x for x in ("gates", "keys", "Q", "K", "V") if _has(model, x))
    sections = [
        Section(
            "token",
            "In the embedding",
            name("lx").call("read_token", name("model"), spelled),
            place.command("token", str(spelled)),
            "How long its embedding is, whether training has touched it, and what lies near.",
        ),
        *(_read_stored(place, spelled) or _live(place, spelled, readers)),
    ]
    last = model.space.n_rows - 1
    return Sheet(
        "token",
        token.shown,
        place,
        ("token", token_id),
        tuple(sections),
        el("span", f"token {token_id:,} of {len(model.vocabulary):,}", class_="note"),
        Markup(""),
        [("tokens", place.link("search"))],
        place.link("token", token_id - 1) if token_id else "",
        place.link("token", token_id + 1) if token_id < last else "",
        facts=(("token", token.to_dict()),),
    )


def _read_stored(place: Viewpoint, token: str | int) -> list[Section]:
    """Whose stored lists have it, from the atlas."""
    if not (place.stores("vectors", kind="value") and place.stores("vectors", kind="key")):
        return []
    ask = name("atlas")
    return [
        Section(section, title, ask.call("parameters", token, FOUND, end=end, kind=kind), "", says)
        for section, title, end, kind, says in (
            (
                "writers",
                "Who writes it",
                "top",
                "value",
                "Values that have it high in their lists.",
            ),
            ("readers", "Who reads it", "top", "key", "Keys that respond to it, or expect it."),
            ("against", "Who pushes it down", "bottom", "value", ""),
        )
    ]


def _live(place: Viewpoint, token: str | int, readers: tuple[str, ...]) -> list[Section]:
    both, down = ("values", "O"), ("--suppressed",)
    return [
        Section(
            section,
            title,
            name("model").call(method, token, *among).call("top", FOUND, tokens=WORDS),
            place.command(
                "lookup",
                *(str(token), "--among", ",".join(groups), "-n", FOUND, "-k", WORDS, *flags),
            ),
            says,
            "soon",
        )
        for section, title, method, among, groups, flags, says in (
            ("writers", "Who writes it", "promotes", (), both, (), WRITES_SAYS),
            ("readers", "Who reads it", "lookup", (readers,), readers, (), READS_SAYS),
            ("against", "Who pushes it down", "suppresses", (), both, down, ""),
        )
    ]


WRITES_SAYS = "The values and rows of W_O that raise it most, for their own lists."
READS_SAYS = "The keys, gates and columns of W_Q, W_K and W_V that respond to it most."


def _has(model: Anatomy, group: str) -> bool:
    try:
        return next(iter(model.groups(kind_of(group))), None) is not None
    except LexrayError:
        return False
