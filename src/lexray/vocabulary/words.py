"""Which tokens are words that say what a list is about, and which hold sentences together.

A list reads as something where its words do: names, things, deeds. Punctuation, digits, bytes,
function words and pieces of words may be what a vector is about, but nobody can tell from them.
"""

from __future__ import annotations

import string
import unicodedata

import torch
from jaxtyping import Bool
from torch import Tensor

from lexray.vocabulary.vocabulary import Vocabulary

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

ELSEWHERE = frozenset(
    """
    der das und ist nicht ein eine einen einem einer mit auf für von zu dem auch wie als sich
    aber oder wenn sind wird wurde bei nach aus vom zum zur ich sie wir ihr
    le la les un une des et est dans que qui ne pas sur avec au aux ce cette il elle nous vous ils
    sont été ou mais du
    el los las una unos y es en no se lo su por para al del como pero más este esta
    il gli di che non è per della delle dei nel nella sono anche più questo questa
    os um uma em não com para ao dos da das como mas foi são
    het een en dat niet op te zijn ook maar
    и в не на что с по это как а то из за от у же он она они
    """.split()  # noqa: SIM905
)
"""The most frequent ones of some other languages, as far as they are no English words."""

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts that put no spaces between words, so that nothing tells a word from its pieces."""
SIGNS = frozenset(string.punctuation) - {"-", "'"}
FEW_STARTS = 0.02
"""A vocabulary with a smaller share of tokens that begin a word does not mark where they do."""
LONG_ENOUGH = 4
"""A word that has a token without a leading space may be a piece, unless it is so long."""


def is_function_word(text: str) -> bool:
    """A function word in any case, or a token without letters and digits: punctuation, spaces."""
    word = text.strip().strip("'’").lower()
    return word in FUNCTION_WORDS or not any(c.isalnum() for c in word)


def telling(vocabulary: Vocabulary, n: int) -> Bool[Tensor, "n"]:
    """Which of the first n ids are words that say something, not pieces or function words."""
    return vocabulary.remember(("telling", n), lambda: _telling(vocabulary, n))


def _telling(vocabulary: Vocabulary, n: int) -> Bool[Tensor, "n"]:
    texts = vocabulary.all_texts[:n]
    starts = [text[1:].casefold() for text in texts if text[:1] == " " and text[1:].isalpha()]
    spaced = len(starts) > FEW_STARTS * len(texts)
    begun = frozenset(starts)
    marks = torch.zeros(n, dtype=torch.bool)
    for i, (text, data) in enumerate(zip(texts, vocabulary.all_bytes, strict=False)):
        whole = text.encode("utf-8", "surrogatepass") == data
        marks[i] = whole and not vocabulary.is_special(i) and _says(text, begun if spaced else None)
    return marks


def _says(text: str, begun: frozenset[str] | None) -> bool:
    """Whether a text is a word; `begun` are the words that tokens begin, where they are marked."""
    word = text.strip()
    key = word.casefold()
    if not any(c.isalpha() for c in word) or any(c in SIGNS for c in word):
        return False
    if is_function_word(text) or key in ELSEWHERE:
        return False
    if is_unspaced(word):
        return True
    if len(word) < 2:
        return False
    if begun is None or text[:1] == " ":
        return True
    return len(word) >= LONG_ENOUGH and key in begun


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script without spaces."""
    return any(
        c.isalpha() and not c.isascii() and unicodedata.name(c, "").startswith(UNSPACED)
        for c in word
    )
