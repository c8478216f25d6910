"""Which tokens are function words: they hold sentences together, and speak of no topic."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool
from torch import Tensor

from lexray.model.model import Model

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those such same other another each every either neither both all any
    some no none few many much more most several enough less least own
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself
    it its itself we us our ours ourselves they them their theirs themselves one ones oneself
    who whom whose which what whatever whichever whoever someone somebody something anyone anybody
    anything everyone everybody everything nobody nothing
    and or but nor so yet for if then else than because since although though unless until while
    whereas whether as when whenever where wherever why how however therefore thus hence
    of in on at by to from with without within into onto out off over under above below between
    among amongst through throughout during before after against along across around about behind
    beside besides beyond near toward towards upon via per despite except like up down inside
    outside
    be am is are was were been being do does did done doing have has had having will would shall
    should can could may might must ought need cannot
    not never ever also too very just only even still already again there here now rather quite
    almost perhaps indeed
    s t d ll m re ve don doesn didn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn
    """.split()  # noqa: SIM905
)
"""English determiners, pronouns, conjunctions, prepositions, auxiliaries, and common particles."""


def is_function_word(text: str) -> bool:
    """A function word in any case, or a token without letters and digits: punctuation, spaces."""
    word = text.strip().strip("'’").lower()
    return word in FUNCTION_WORDS or not any(c.isalnum() for c in word)


def function_words(model: Model) -> Bool[Tensor, "rows"]:
    """Which rows of the embedding are function words; rows that stand for no token are none."""
    admitted = model.vocabulary.admitted(model.space.n_rows).tolist()
    return torch.tensor(
        [there and is_function_word(model.space.token(i).text) for i, there in enumerate(admitted)]
    )


def share(ids: Iterable[int], words: Bool[Tensor, "rows"]) -> float:
    """How many of these tokens are function words."""
    found = words[torch.tensor(list(ids), dtype=torch.long)]
    return float(found.double().mean())
