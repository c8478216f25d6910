"""A study over prompts that is easy to check: it counts letters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from lexray import studies
from lexray.model.model import Model
from lexray.result.charts.series import Panel, StandingBars
from lexray.result.table import Table
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Outcome, finding
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import each_prompt
from lexray.studies.shared.study import VISIT, PromptOptions, Study, option

counted: list[str] = []
"""Every prompt for which something was computed."""


@dataclass(frozen=True)
class Letters(PromptOptions):
    letter: str = option("a", "Which one.")


def run(model: Model, options: Letters) -> Outcome:
    def count(prompt: Prompt) -> dict[str, Any]:
        counted.append(prompt.text)
        return {"n": prompt.text.count(options.letter), "third": 1 / 3, "list": [1, 2.5]}

    done = each_prompt("letters", model, options, count)
    total = sum(d.numbers["n"] for d in done)
    rows = tuple((d.prompt.text, d.numbers["n"]) for d in done)
    return Outcome(
        {"total": total, "rows": [d.numbers for d in done], "odd": [float("nan"), float("inf")]},
        (Table(("prompt", "count"), rows, "counts"),),
        (
            finding("There are <b>many</b>.", "more than 3", total > 3, str(total), "12"),
            finding("It can be told.", "never", None, "no"),
        ),
        lambda: figures.panels(Panel("", (StandingBars([1], [total], "letters", figures.OURS),))),
        ("counted by hand",),
    )


STUDY = Study(
    "letters", "How many <i>letters</i>?", VISIT, "Fig. 99", "About.\n\nMore.", Letters, run
)


def register(monkeypatch: pytest.MonkeyPatch, name: str = "letters") -> None:
    """Makes it one of lexray's studies for a test."""
    module = ModuleType("lexray.studies.letters")
    module.STUDY = STUDY  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lexray.studies.letters", module)
    monkeypatch.setitem(studies.MODULES, name, "letters")
    counted.clear()
