"""The heads and neurons of `demo` that read best: chosen by eye, read anew whenever the card is."""

from dataclasses import dataclass
from pathlib import Path

import lexray as lx
from lexray import filters

WORDS = "--calibrated --ascii --starts-word"


@dataclass(frozen=True)
class Chosen:
    """A parameter of `demo` and what one sees in it."""

    address: str
    what: str


HEADS = (
    Chosen("L0H1.QK", "demonstratives look for what they point at"),
    Chosen("L0H2.QK", "pronouns look for verbs"),
    Chosen("L0H0.QK", "`between` looks for what two people share or fight out"),
    Chosen("L1H2.VO", "the opening of a verdict brings its end"),
    Chosen("L2H2.VO", "crafts of film-making bring one another"),
    Chosen("L3H2.VO", "names bring `she` and `her`"),
)
NEURONS = (
    Chosen("L3N180.key", "praise and blame"),
    Chosen("L2N515.key", "what a film can be"),
    Chosen("L2N441.key", "film words"),
    Chosen("L2N230.value", "film words"),
    Chosen("L0N115.value", "what one may be reviewing"),
    Chosen("L2N301.key", "persons"),
    Chosen("L1N626.value", "family and lovers"),
    Chosen("L3N482.key", "people and places of a plot"),
    Chosen("L2N409.value", "auxiliary verbs"),
    Chosen("L3N126.value", "numbers"),
)
PAIRS, TOKENS = 5, 8


def rows(folder: Path) -> list[list[str]]:
    """Rows of the card's table: address, what it is, its words, the command that shows them."""
    model = lx.Model.from_pretrained(folder).view(calibrated=True)
    english = filters.ascii & filters.starts_word
    found = []
    for chosen in HEADS:
        head, matrix = chosen.address.split(".")
        pairs = model[chosen.address].top(PAIRS, exclude_same="inflected", filter=english).pairs
        words = ", ".join(f"{pair.row.shown} → {pair.col.shown}" for pair in pairs)
        command = f"lexray head demo {head} --{matrix.lower()} --exclude-inflected {WORDS}"
        found.append([f"`{chosen.address}`", chosen.what, words, f"`{command}`"])
    for chosen in NEURONS:
        tokens = model[chosen.address].top(TOKENS, filter=english).top
        words = " ".join(scored.token.shown for scored in tokens)
        command = f"lexray neuron demo {chosen.address.split('.')[0]} {WORDS}"
        found.append([f"`{chosen.address}`", chosen.what, words, f"`{command}`"])
    return found
