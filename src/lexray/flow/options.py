"""How a flow graph is built: what is shown, what is left out, and how vectors are read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypedDict, TypeVar, get_args

from lexray.errors import LexrayError
from lexray.vocabulary.filters import Filter

STATIC_BLOCKS = 6
"""Up to so many blocks, parameters are read by themselves if nobody says otherwise."""
HEADS, MEMORIES, NEURONS = 10, 2, (18, 7)
"""The paper's figures (its code shows 10 heads, the paper itself all of them)."""

Ranking = Literal["signed", "absolute"]
Measure = Literal["sum", "target"]
Count = TypeVar("Count", int, tuple[int, int])


class FlowOptions(TypedDict, total=False):
    """The fields of `BlockOptions`, for those who hand them on by name."""

    heads: int | None
    memories: int | None
    neurons: tuple[int, int] | None
    by: Ranking
    keep: float | None
    keep_by: Measure
    merge_qk: bool
    merge_neurons: bool
    norm: bool
    transform: bool
    rotary: bool
    static: bool | None
    k: int
    filter: Filter | None
    text: str | None


@dataclass(frozen=True)
class BlockOptions:
    """What is shown of each block.

    Counts that are None are the paper's, or as many as `keep` needs; what is left out of a sum is
    one aggregate node, so that sums stay true.
    """

    heads: int | None = None
    """Those whose outputs through W_O are longest."""
    memories: int | None = None
    """Keys and values per head: those that it attends to most."""
    neurons: tuple[int, int] | None = None
    """The largest positive and the most negative ones, by coefficient times the row's norm; of the
    feed-forward's neurons, and of the rows of W_O."""
    by: Ranking = "signed"
    """"absolute" takes as many neurons together, the largest |coefficient|s, as the paper says."""
    keep: float | None = None
    """The share (0 to 1) of all contributions to a sum that the fewest addends carry: those are
    shown. A contribution is the size of an addend's part along the sum."""
    keep_by: Measure = "sum"
    """"target": an addend's part in the target's logit (the norms on the way at their recorded
    scale) is what counts, not its part along the sum."""
    merge_qk: bool = False
    """No queries and keys: values alone."""
    merge_neurons: bool = False
    """No keys and gates: a neuron is its value."""
    norm: bool = True
    """Vectors are read with the norms in: what is written, through the norm behind its sub-block
    and the final norm; what reads, through the norm before its sub-block."""
    transform: bool = False
    """The residual stream passes the non-linear LM head of encoders such as BERT."""
    rotary: bool = True
    """Queries and keys are read at their actual distance, else at distance 0."""
    static: bool | None = None
    """The parameters behind nodes are also read by themselves; None: of graphs of few blocks."""
    k: int = 10
    """How many tokens at either end of a reading."""
    filter: Filter | None = None
    """Which tokens are listed; probabilities and ranks are among all."""
    text: str | None = None
    """Over which text it is measured what places usually carry; None: over lexray's own."""

    @classmethod
    def check(cls, **given: Any) -> BlockOptions:
        """The options that a caller gives, refused with an explanation if they make no sense."""
        known = {field.name: field.default for field in fields(cls)}
        if unknown := sorted(given.keys() - known.keys()):
            raise LexrayError(
                f"a flow graph has no option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        full = known | given
        for name in ("heads", "memories"):
            _check_count(name, full[name])
        for name, allowed in (("by", get_args(Ranking)), ("keep_by", get_args(Measure))):
            if full[name] not in allowed:
                raise LexrayError(f"{name}={full[name]!r}: try one of {', '.join(allowed)}")
        keep = full["keep"]
        if keep is not None and not (isinstance(keep, (int, float)) and 0 <= keep <= 1):
            raise LexrayError(f"keep={keep!r} is no share; give a number from 0 to 1")
        if not isinstance(full["k"], int) or full["k"] < 1:
            raise LexrayError(f"k={full['k']!r}: a node is read as at least 1 token")
        return cls(**given | {"neurons": _pair(full["neurons"])})

    @property
    def most_heads(self) -> int | None:
        return self._most(self.heads, HEADS)

    @property
    def most_memories(self) -> int | None:
        return self._most(self.memories, MEMORIES)

    @property
    def most_neurons(self) -> tuple[int, int] | None:
        return self._most(self.neurons, NEURONS)

    def reads_parameters(self, n_blocks: int) -> bool:
        return n_blocks <= STATIC_BLOCKS if self.static is None else self.static

    def _most(self, given: Count | None, usual: Count) -> Count | None:
        return usual if given is None and self.keep is None else given

    def to_dict(self) -> dict[str, Any]:
        """All settings, the counts as they are used."""
        counts = {
            "heads": self.most_heads,
            "memories": self.most_memories,
            "neurons": self.most_neurons,
        }
        words = "" if self.filter is None else self.filter.describe()
        text = "lexray's own" if self.text is None else f"{len(self.text):,} characters"
        return asdict(replace(self, filter=None)) | counts | {"filter": words, "text": text}


def _check_count(name: str, count: Any) -> None:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise LexrayError(f"{name}={count!r}: give a number of {name} from 0 on, or None")


def _pair(neurons: Any) -> tuple[int, int] | None:
    if neurons is None:
        return None
    try:
        high, low = neurons
    except (TypeError, ValueError) as error:
        raise LexrayError(
            f"neurons={neurons!r}: give two numbers, how many of the largest and how many of the "
            "most negative, such as (18, 7)"
        ) from error
    for count in (high, low):
        _check_count("neurons", count)
    return high, low
