"""Whether norms are semantic filters: the paper's claims, counted."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

from lexray.result.format import show_percent
from lexray.studies.shared.finding import Finding, finding
from lexray.studies.shared.last_position import Curves, mean

ENDS = ("fall", "rise")
Measured = Mapping[str, Mapping[str, Curves]]


def judge(measured: Measured, base: float) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    findings: list[Finding] = []
    for norm, kinds in measured.items():
        findings += [
            _usual(norm, kinds["real"]),
            _words(norm, kinds["real"], base),
            _control(norm, kinds),
            _new(norm, kinds["real"]),
            _bare(norm, kinds),
        ]
    return findings


def _usual(norm: str, real: Curves) -> Finding:
    falls, rises = (real[f"{end}: usual probability"] for end in ENDS)
    won = sum(a > b for a, b in zip(falls, rises, strict=True))
    return finding(
        f"{norm}: the tokens that lose most are usually probable ones, those that gain are not.",
        "in more than three quarters of the layers the falling tokens are more probable in the "
        "output, over all prompts, than the rising ones, and twice as probable on average",
        won > 0.75 * len(falls) and mean(falls) > 2 * mean(rises),
        f"falling {show_percent(mean(falls), 2)}, rising {show_percent(mean(rises), 2)}; "
        f"in {won} of {len(falls)} layers",
    )


def _words(norm: str, real: Curves, base: float) -> Finding:
    falls, rises = (mean(real[f"{end}: function words"]) for end in ENDS)
    return finding(
        f"{norm}: function words fall, content words rise.",
        "the share of function words among the falling tokens is above a quarter, and one and a "
        "half times that among the rising ones",
        falls > max(0.25, 1.5 * rises),
        f"function words: {show_percent(falls, 0)} of falling, {show_percent(rises, 0)} of rising, "
        f"{show_percent(base, 0)} of all tokens",
        "the, a, not fall; Microsoft, subsidiaries rise (GPT-2 medium, ln_1)",
    )


def _control(norm: str, kinds: Mapping[str, Curves]) -> Finding:
    real, random = (
        {end: mean(kinds[kind][f"{end}: usual probability"]) for end in ENDS}
        for kind in ("real", "random")
    )
    gaps = [x["fall"] - x["rise"] for x in (real, random)]
    moved = [mean(kinds[kind]["moved"]) for kind in ("real", "random")]
    return finding(
        f"{norm}: it does not do so with random vectors.",
        "the falling tokens' usual probability exceeds the rising ones' by more than twice as much "
        "as with random vectors",
        gaps[0] > 2 * gaps[1] if gaps[0] > 0 else None,
        f"{show_percent(gaps[0], 2, sign=True)}, random vectors "
        f"{show_percent(gaps[1], 2, sign=True)}; probability moved {show_percent(moved[0], 0)}, "
        f"random vectors {show_percent(moved[1], 0)}",
    )


def _new(norm: str, real: Curves) -> Finding:
    new = real["new"]
    layers = sum(x > 0.1 for x in new)
    return finding(
        f"{norm}: it brings new tokens to the top.",
        "in more than half of the layers over a tenth of the first tokens behind the norm were not "
        "there before it",
        layers > len(new) / 2,
        f"{show_percent(mean(new), 0)} are new; over a tenth in {layers} of {len(new)} layers",
    )


def _bare(norm: str, kinds: Mapping[str, Curves]) -> Finding:
    sums = [
        sum(mean(kinds[kind][f"{end}: usual probability"]) for end in ENDS) / 2
        for kind in ("real", "bare")
    ]
    return finding(
        f"{norm}: without the final norm in the lens, the tokens are not those of the text.",
        "falling and rising tokens together are usually less than half as probable in the output "
        "as with the final norm",
        None if any(map(isnan, sums)) else sums[1] < sums[0] / 2,
        f"{show_percent(sums[1], 2)} without, {show_percent(sums[0], 2)} with it",
        "tokens look out of context (GPT-2 medium)",
    )
