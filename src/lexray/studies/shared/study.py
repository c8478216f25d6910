"""What a study is: options, a function of a model and these, and findings with their verdicts.

>>> @dataclass(frozen=True)
... class Opts(StudyOptions):
...     k: int = option(100, "How many tokens.", min=1)
>>> def run(model: Model, options: Opts) -> Evidence: ...
>>> STUDY = Study("sim-k", "Do keys resemble their values?", ES, "Fig. 6", __doc__, Opts, run)
>>> STUDY.options(k=50).k
50
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from lexray.errors import LexrayError
from lexray.result.charts.panels import Panels
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.studies.shared.finding import Finding, Outcome
from lexray.studies.shared.page import StudySection, page

if TYPE_CHECKING:
    from lexray.model.model import Model

ES = "Analyzing Transformers in Embedding Space"
VISIT = "VISIT: Visualizing and Interpreting the Semantic Information Flow of Transformers"

Views = Literal["any", "both", "none"]
"""Which views a study can be run with: any, raw and standard, or none, as it is of probabilities,
which are the model's own whatever the view."""


def option(default: Any, help: str, *, min: float | None = None, flag: str | None = None) -> Any:
    """A field of a study's options; `flag` is the command line's `--yes/--no` for a bool."""
    return field(default=default, metadata={"help": help, "min": min, "flag": flag})


@dataclass(frozen=True)
class StudyOptions:
    """What every study can be told."""

    seed: int = option(0, "Of everything random: the same seed gives the same figures.", min=0)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StudyOptions:
        """Checked options; what is not given has its default."""
        known = {f.name: f for f in fields(cls)}
        if unknown := given.keys() - known.keys():
            raise LexrayError(
                f"no option {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        for name, value in given.items():
            least = known[name].metadata["min"]
            if least is not None and value is not None and value < least:
                raise LexrayError(f"{name} is {value}, and must be at least {least}")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


@dataclass(frozen=True)
class PromptOptions(StudyOptions):
    """What a study over prompts can be told besides; see `studies.shared.resume.each_prompt`."""

    prompts: Path | None = option(  # noqa: RUF009
        None, "Prompts: .txt, one a line, or .jsonl (prompt, answer), perhaps .gz; else our own."
    )
    right: bool = option(
        True,
        "Only prompts that the model answers rightly (those without an answer count), or all.",
        flag="--right/--all",
    )
    limit: int = option(100, "The first so many of them; 0 for all.", min=0)


Opts = TypeVar("Opts", bound=StudyOptions)


@dataclass(frozen=True)
class Study(Generic[Opts]):
    """One figure or table of a paper."""

    name: str
    title: str
    paper: str
    figure: str
    about: str
    """What is reproduced, and where this departs: the module's docstring."""
    options: type[Opts]
    run: Callable[[Model, Opts], Outcome]
    views: Views = "any"

    def for_file(self) -> StudyName:
        """As it goes into a file."""
        return StudyName(self.name)

    @property
    def needs_prompts(self) -> bool:
        return issubclass(self.options, PromptOptions)

    @property
    def where(self) -> str:
        """The paper's short name and the figure: "VISIT, Fig. 2"."""
        return f"{self.paper.partition(':')[0]}, {self.figure}"

    def section(
        self,
        findings: tuple[Finding, ...],
        source: str = "",
        options: Mapping[str, Any] | None = None,
        evidence: Outcome | None = None,
    ) -> StudySection:
        """What a page says of it and of what came out."""
        own = (self.name, self.title, self.figure, self.where, self.about)
        return StudySection(*own, findings, source, options or {}, evidence)

    def __call__(self, model: Model, **options: Any) -> StudyResult:
        """Runs it: `find("sim-k")(model.view("raw"), k=50, seed=1)`.

        The model's view decides how parameters are read: raw is the papers' way, and what
        `lexray study` takes unless told otherwise.
        """
        chosen = self.options.of(options)
        if self.views == "none" or (self.views == "both" and not model.options.standardised):
            model = model.view("raw")
        evidence = self.run(model, chosen)  # type: ignore[arg-type]
        return StudyResult(self, model.space.source(""), chosen, evidence)


@dataclass(frozen=True)
class StudyName:
    """What a file says of a study."""

    name: str

    @staticmethod
    def reopen(name: str) -> Study[Any]:
        study: Study[Any] = import_module("lexray.studies").find(name)
        return study


@dataclass(frozen=True)
class StudyResult(Result):
    """A study run on a model: numbers, findings, and the figure."""

    study: Study[Any]
    source: Source
    options: StudyOptions
    evidence: Outcome

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.evidence.findings

    @property
    def numbers(self) -> dict[str, Any]:
        return self.evidence.numbers

    def tables(self) -> list[Table]:
        columns = ("claim", "published", "measured", "verdict")
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (f.claim, f.published or None, f.measured, f.verdict) for f in self.findings
        )
        note = " · ".join([str(self.source), *self.evidence.notes])
        return [Table(columns, rows, self.heading, note), *self.evidence.tables]

    @property
    def heading(self) -> str:
        return f"{self.study.title} ({self.study.where})"

    def csv_tables(self) -> list[Table]:
        return list(self.evidence.tables)

    def to_dict(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "title": self.study.title,
            "paper": self.study.paper,
            "figure": self.study.figure,
            **self.source.to_dict(),
            "options": self.options.to_dict(),
            "findings": [f.to_dict() for f in self.findings],
            "notes": list(self.evidence.notes),
            "numbers": _plain(self.numbers),
        }

    def plot(self) -> Panels:
        """The figure with its title, for notebooks and images."""
        note = f"{self.study.where} · {self.source}"
        return replace(self.evidence.draw(), title=self.study.title, note=note)

    @property
    def section(self) -> StudySection:
        """Its part of a page."""
        options = self.options.to_dict()
        return self.study.section(self.findings, str(self.source), options, self.evidence)

    def to_html(self) -> str:
        """A page with the figure, its findings and its tables, which needs no network."""
        return page([self.section], self.source.model)


@dataclass(frozen=True)
class Untestable:
    """A study that this model cannot be put to, and why."""

    study: Study[Any]
    reason: str

    @property
    def section(self) -> StudySection:
        """Its part of a page: a single finding, which says so."""
        return self.study.section((Finding(self.study.title, "", "not testable", self.reason),))


def _plain(value: Any) -> Any:
    """JSON has no infinities and no NaN: None stands for them."""
    match value:
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float():
            return value if isfinite(value) else None
        case _:
            return value
