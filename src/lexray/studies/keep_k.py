"""How much of an inner product survives if only k tokens are kept of each projected vector?

For vectors X, the cosine between the flattened matrices XXᵀ and keep-k(XE)·keep-k(XE′ᵀ)ᵀ, where
keep-k leaves the k entries of largest absolute value in each row: 1 means that reading k tokens of
every vector loses nothing. E′ is the transpose Eᵀ or the pseudo-inverse E⁺; X are normal vectors,
feed-forward values, and hidden states of the model at our own prompts, all layers and positions.

The paper's two ranges of k are cut to the vocabulary, 1000 (of which it gives the figures) and the
whole vocabulary (where the E⁺ of an E of full rank is exact) are added. Ties at the k-th entry are
all kept. A few hidden states can be a hundred times as long as the rest, and then the cosine is
theirs alone, so hidden states scaled to unit length are shown as well; the rules do not use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Curve, Panel, Series
from lexray.result.table import Table
from lexray.space.kernels import invert
from lexray.space.side import Side
from lexray.space.topk.arithmetic import full_precision
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.hidden import hidden_states
from lexray.studies.shared.measures import rows_of, sample, seed_generator
from lexray.studies.shared.study import ES, Study, StudyOptions, option

SMALL = (10, 50, 100, 200, 300, 500)
LARGE = (512, 1024, 2048, 4096, 10000, 15000, 20000, 30000)
QUOTED, PUBLISHED = 1000, {"transpose": 0.83, "pinv": 0.10}
"""GPT-2 medium, 300 normal vectors."""
NORMAL, VALUES, HIDDEN = "normal vectors", "FF values", "hidden states"
UNIT = "hidden states of unit length"
COLOURS = {
    NORMAL: figures.OURS,
    VALUES: figures.CONTROL,
    HIDDEN: figures.THIRD,
    UNIT: figures.MUTED,
}
COLUMNS_AT_ONCE = 4096
ALIKE = 0.02
"""Cosines that differ by less count as similar."""

Scores = dict[str, dict[str, list[float]]]
"""Distribution → E′ → a cosine for each k."""


@dataclass(frozen=True)
class KeepK(StudyOptions):
    n: int = option(300, "How many vectors of each distribution.", min=2)
    k: int = option(0, "One k only; 0 for the paper's.", min=0)


def run(model: Model, options: KeepK) -> Outcome:
    E, inverse = both_sides(model)
    ks = choose_ks(len(E.rows), options.k)
    drawn, notes = distributions(model, options)
    scores: Scores = {}
    for name, X in track(drawn.items(), len(drawn), "keep-k"):
        transpose, pinv = cosines(X, E.project(X), inverse.project(X), ks)
        scores[name] = {"transpose": transpose, "pinv": pinv}
    return Outcome(
        {"k": ks, "n_tokens": len(E.rows), "cosine": scores, "published": _read_published()},
        (_table(ks, scores),),
        tuple(findings(ks, len(E.rows), scores)),
        lambda: draw(ks, scores),
        notes,
    )


def both_sides(model: Model) -> tuple[Side, Side]:
    """E as the view has it for what writes, and the side of its pseudo-inverse."""
    space = model.space
    ids, whole = space.list_ids(None), space.whole("value")
    inverse = invert(whole, ids)
    return space.side("value"), inverse if ids is None else inverse.only(ids)


def choose_ks(n_tokens: int, k: int) -> list[int]:
    """The paper's, cut to the vocabulary, and all of it."""
    wanted = {k} if k else {*SMALL, QUOTED, *LARGE}
    return sorted({*(k for k in wanted if k < n_tokens), n_tokens})


def distributions(
    model: Model, options: KeepK
) -> tuple[dict[str, Float[Tensor, "n d_model"]], tuple[str, ...]]:
    """The kinds of vectors; hidden states only of models that transformers can run."""
    n, device = options.n, model.device
    normal = torch.randn(n, model.d_model, generator=seed_generator(options.seed, NORMAL))
    drawn = {NORMAL: normal.to(device), VALUES: random_values(model, n, options.seed)}
    try:
        states = hidden_states(model)
    except LexrayError as error:
        return drawn, (f"no hidden states: {error}",)
    at = sample(n, len(states), seed_generator(options.seed, HIDDEN))
    drawn[HIDDEN] = states[at.to(states.device)]
    drawn[UNIT] = torch.nn.functional.normalize(drawn[HIDDEN], dim=1)
    return drawn, ()


def random_values(model: Model, n: int, seed: int) -> Float[Tensor, "m d_model"]:
    """n feed-forward values from anywhere in the model."""
    groups = list(model.groups("value"))
    at = sample(n, sum(group.n for group in groups), seed_generator(seed, VALUES))
    return model.space.shift(rows_of(groups, at), "value")


def cosines(
    X: Float[Tensor, "n d"], A: Float[Tensor, "n e"], B: Float[Tensor, "n e"], ks: list[int]
) -> tuple[list[float], list[float]]:
    """cos(XXᵀ, keep-k(A)·keep-k(Y)ᵀ) for each k, for Y = A and for Y = B."""
    limits_A, limits_B = smallest_kept(A, ks), smallest_kept(B, ks)
    totals = torch.zeros(2, len(ks), len(X), len(X), dtype=torch.float64)
    with full_precision():
        truth = (X @ X.T).cpu().double()
        for start in range(0, A.shape[1], COLUMNS_AT_ONCE):
            a = A[:, start : start + COLUMNS_AT_ONCE]
            b = B[:, start : start + COLUMNS_AT_ONCE]
            for i in range(len(ks)):
                kept, other = keep(a, limits_A[:, i]), keep(b, limits_B[:, i])
                totals[0, i] += (kept @ kept.T).cpu()
                totals[1, i] += (kept @ other.T).cpu()
    similarities = torch.cosine_similarity(totals.flatten(2), truth.flatten(), dim=2, eps=1e-300)
    return similarities[0].tolist(), similarities[1].tolist()


def keep(A: Float[Tensor, "n e"], limits: Float[Tensor, "n"]) -> Float[Tensor, "n e"]:
    """The entries of each row that are at least as large as its limit, zero elsewhere."""
    return torch.where(A.abs() >= limits[:, None], A, 0)


def smallest_kept(A: Float[Tensor, "n e"], ks: list[int]) -> Float[Tensor, "n ks"]:
    """The k-th largest absolute value of each row, for each k."""
    at = torch.tensor(ks, device=A.device) - 1
    return torch.cat([row.abs().sort(descending=True).values[:, at] for row in torch.split(A, 16)])


def findings(ks: list[int], n_tokens: int, scores: Scores) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    return [_quote(ks, scores), _small(ks, scores), *_large(ks, n_tokens, scores)]


def _quote(ks: list[int], scores: Scores) -> Finding:
    claim = "With 1000 tokens kept of each normal vector, the transpose is the better inverse."
    rule = "at k = 1000, the cosine is higher with Eᵀ than with E⁺"
    told = "Eᵀ 0.83, E⁺ 0.10 (GPT-2 medium)"
    if QUOTED not in ks:
        return finding(claim, rule, None, "k = 1000 was not run", told)
    T, P = (scores[NORMAL][inverse][ks.index(QUOTED)] for inverse in ("transpose", "pinv"))
    return finding(claim, rule, T > P, f"Eᵀ {T:.2f}, E⁺ {P:.2f}", told)


def _small(ks: list[int], scores: Scores) -> Finding:
    claim = (
        "At small k the transpose is better for all three distributions (hidden states: similar)."
    )
    rule = f"Eᵀ is above E⁺ less {ALIKE} at every k ≤ 500 and for every distribution"
    gaps = {
        (name, ks[i]): both["transpose"][i] - both["pinv"][i]
        for name, both in scores.items()
        for i in range(len(ks))
        if ks[i] in SMALL and name != UNIT
    }
    if not gaps:
        return finding(claim, rule, None, "no k ≤ 500 was run")
    won = sum(gap > -ALIKE for gap in gaps.values())
    name, k = min(gaps, key=lambda at: gaps[at])
    worst = f"least at k = {k}, {name}: {gaps[name, k]:+.2f}"
    holds = (won == len(gaps)) if won < len(gaps) or HIDDEN in scores else None
    return finding(claim, rule, holds, f"{won} of {len(gaps)}; {worst}")


def _large(ks: list[int], n_tokens: int, scores: Scores) -> list[Finding]:
    reverses = "At very large k the order reverses."
    rule = (
        "for normal vectors and for FF values, Eᵀ is above E⁺ at the smallest of the paper's k and "
        "below it at the largest that fits the vocabulary (at least 2048)"
    )
    stays = "With Eᵀ only the hidden states keep a high score at very large k."
    rule_stays = "at the same k, Eᵀ's cosine is higher for hidden states than for both others"
    told = "k up to 30000 of 50257 tokens (GPT-2 medium)"
    large = [k for k in ks if k in LARGE and k >= 2048]
    if not large or SMALL[0] not in ks:
        none = f"the paper's k do not fit {n_tokens} tokens, or were not run"
        return [finding(reverses, rule, None, none, told), finding(stays, rule_stays, None, none)]
    first, last = ({n: _at(ks, s, k) for n, s in scores.items()} for k in (SMALL[0], large[-1]))
    holds = all(first[n][0] > first[n][1] and last[n][0] < last[n][1] for n in (NORMAL, VALUES))
    said = ", ".join(f"{name} Eᵀ {t:.2f} E⁺ {p:.2f}" for name, (t, p) in last.items())
    said = f"k = {large[-1]} of {n_tokens}: {said}; {_crossing(ks, scores[NORMAL])}"
    order = finding(reverses, rule, holds, said, told)
    if HIDDEN not in last:
        return [order, finding(stays, rule_stays, None, "there are no hidden states")]
    hidden, others = last[HIDDEN][0], max(last[NORMAL][0], last[VALUES][0])
    unit = f" ({last[UNIT][0]:.2f} at unit length)" if UNIT in last else ""
    measured = f"{hidden:.2f}{unit}, others at most {others:.2f}"
    return [order, finding(stays, rule_stays, hidden > others, measured)]


def _at(ks: list[int], both: dict[str, list[float]], k: int) -> tuple[float, float]:
    """The cosines with Eᵀ and with E⁺ at one k."""
    return both["transpose"][ks.index(k)], both["pinv"][ks.index(k)]


def _crossing(ks: list[int], both: dict[str, list[float]]) -> str:
    """From which k on E⁺ is the better one."""
    ahead = [k for k, t, p in zip(ks, both["transpose"], both["pinv"], strict=True) if t >= p]
    later = [k for k in ks if k > max(ahead, default=0)]
    return f"E⁺ leads from k = {later[0]} on (normal vectors)" if later else "E⁺ never leads"


def _read_published() -> dict[str, Any]:
    return {"model": "GPT-2 medium", "k": QUOTED, "n": 300, "cosine": PUBLISHED}


def _table(ks: list[int], scores: Scores) -> Table:
    columns = ("k", *(f"{name}, {mark}" for name in scores for mark in ("Eᵀ", "E⁺")))
    rows = tuple(
        (k, *(both[e][i] for both in scores.values() for e in ("transpose", "pinv")))
        for i, k in enumerate(ks)
    )
    return Table(columns, rows, "cosine by k")


def draw(ks: list[int], scores: Scores) -> Panels:
    """Solid lines Eᵀ, dashed lines E⁺, as in the paper, over both ranges at once."""
    series: list[Series] = [
        Curve(ks, both[inverse], f"{name}, {mark}", COLOURS[name], dash)
        for name, both in scores.items()
        for inverse, mark, dash in (("transpose", "Eᵀ", "solid"), ("pinv", "E⁺", "dash"))
    ]
    texts = ["GPT-2 medium, normal, Eᵀ: 0.83", "GPT-2 medium, normal, E⁺: 0.10"]
    if ks[-1] >= QUOTED:
        series.append(figures.draw_published([QUOTED] * 2, list(PUBLISHED.values()), texts))
    across = Axis("k, how many tokens are kept", log=True)
    return figures.panels(Panel("", tuple(series), across, Axis("cosine with XXᵀ")))


STUDY = Study(
    "keep-k",
    "Is the transpose a good inverse of E when few tokens are kept?",
    ES,
    "App. A, Fig. 5",
    __doc__,
    KeepK,
    run,
    "both",
)
