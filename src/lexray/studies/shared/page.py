"""Studies as one HTML page: verdicts first, then each figure beside the paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexray.result import page as shell
from lexray.result.page import escape
from lexray.result.table import Table
from lexray.studies.shared.study import Finding, Study, StudyResult, Tables

MARKS = {"holds": "✓", "does not hold": "✗", "not testable": "–"}
ROWS_SHOWN = 400
"""A longer table is cut on the page; the files have all of it."""


@dataclass(frozen=True)
class Untestable:
    """A study that this model cannot be put to, and why."""

    study: Study[Any]
    reason: str


Section = StudyResult | Untestable


def page(sections: Sequence[Section], title: str, *, files: bool = False) -> str:
    """A page that needs no network; `files`: the data lie beside it and are linked."""
    results = [s for s in sections if isinstance(s, StudyResult)]
    body = "\n".join(
        [
            f"<header><h1>{escape(title)}</h1>\n{_origin(results)}</header>",
            _overview(sections) if len(sections) > 1 else "",
            *(_section(section, files) for section in sections),
        ]
    )
    contents = _contents(sections) if len(sections) > 1 else ""
    kind = ' class="with-contents"' if contents else ""
    return shell.page(title, f"<main{kind}>\n{contents}<div>{body}</div>\n</main>")


def _contents(sections: Sequence[Section]) -> str:
    """What stays at the side: every study, and how it came out."""
    rows = "".join(
        f'<li><a href="#{section.study.name}">{escape(section.study.title)}</a> '
        f"{_marks(section)}</li>"
        for section in sections
    )
    return f'<nav class="contents" aria-label="contents"><ol>{rows}</ol></nav>\n'


def _marks(section: Section) -> str:
    """A sign for each finding."""
    return "".join(
        f'<span class="{f.verdict.replace(" ", "-")}" title="{escape(f.claim)}: {f.verdict}">'
        f"{MARKS[f.verdict]}</span>"
        for f in findings(section)
    )


def _origin(results: Sequence[StudyResult]) -> str:
    sources = dict.fromkeys(str(result.source) for result in results)
    return "".join(f'<p class="note">{escape(source)}</p>' for source in sources)


def _overview(sections: Sequence[Section]) -> str:
    counts: Counter[str] = Counter(f.verdict for section in sections for f in findings(section))
    tally = " ".join(_badge(v, f"{v}: {counts[v]}") for v in MARKS)
    rows = "\n".join(_overview_row(s, i) for s in sections for i in range(len(findings(s))))
    return (
        f'<p class="tally">{tally}</p><div class="scroll"><table class="overview"><thead><tr>'
        "<th>study</th><th>the paper's claim</th><th>published</th><th>this model</th>"
        f"<th>verdict</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _overview_row(section: Section, i: int) -> str:
    """One finding; the study is named at its first."""
    study, own = section.study, findings(section)
    name = (
        f'<td rowspan="{len(own)}"><a href="#{study.name}">{escape(study.title)}</a><br>'
        f'<span class="note">{escape(study.figure)}</span></td>'
    )
    cells = "".join(
        f"<td>{escape(text)}</td>" for text in (own[i].claim, own[i].published, own[i].measured)
    )
    return f"<tr>{name if i == 0 else ''}{cells}<td>{_badge(own[i].verdict)}</td></tr>"


def findings(section: Section) -> tuple[Finding, ...]:
    """A study's findings; one that cannot be run has a single one that says so."""
    if isinstance(section, StudyResult):
        return section.findings
    return (Finding(section.study.title, "", "not testable", section.reason),)


def _section(section: Section, files: bool) -> str:
    study = section.study
    head = (
        f'<section id="{study.name}">\n<h2>{escape(study.title)}</h2>\n'
        f'<p class="note">{escape(study.where)} · <code>lexray study {study.name}</code>'
        f"{_links(study.name) if files and isinstance(section, StudyResult) else ''}</p>"
    )
    if isinstance(section, Untestable):
        badge = _badge("not testable")
        return f"{head}\n<p>{badge} {escape(section.reason)}</p>\n</section>"
    return "\n".join(
        [
            head,
            _about(study),
            *(f'<p class="note">{escape(note)}</p>' for note in section.evidence.notes),
            f'<div class="claims">{"".join(map(_claim, section.findings))}</div>',
            _figure(section),
            f"<details><summary>Options and numbers</summary>\n{_options(section)}",
            *(f'<div class="scroll">{_table(table)}</div>' for table in section.evidence.tables),
            "</details>\n</section>",
        ]
    )


def _links(name: str) -> str:
    return f' · data: <a href="{name}.json">JSON</a>, <a href="{name}.csv">CSV</a>'


def _about(study: Study[Any]) -> str:
    """The docstring's paragraphs, but for one that is the title again."""
    blocks = (" ".join(block.split()) for block in study.about.strip().split("\n\n"))
    return "".join(f"<p>{escape(block)}</p>" for block in blocks if block != study.title)


def _claim(found: Finding) -> str:
    published = f"<dt>published</dt><dd>{escape(found.published)}</dd>" * bool(found.published)
    return (
        f'<article><p class="claim">{_badge(found.verdict)} {escape(found.claim)}</p><dl>'
        f"{published}<dt>measured</dt><dd>{escape(found.measured)}</dd>"
        f"<dt>rule</dt><dd>{escape(found.rule)}</dd></dl></article>"
    )


def _badge(verdict: str, text: str = "") -> str:
    kind = verdict.replace(" ", "-")
    return f'<span class="badge {kind}">{MARKS[verdict]} {escape(text or verdict)}</span>'


def _figure(result: StudyResult) -> str:
    return f'<div class="scroll">{result.evidence.draw().html()}</div>'


def _options(result: StudyResult) -> str:
    said = ", ".join(f"{name} = {value}" for name, value in result.options.to_dict().items())
    return f'<p class="note">{escape(said)}</p>'


def _table(table: Table) -> str:
    if len(table.rows) > ROWS_SHOWN:
        more = f"The first {ROWS_SHOWN} of {len(table.rows)} rows; JSON and CSV have all."
        note = f"{more} {table.note}".strip()
        table = replace(table, rows=table.rows[:ROWS_SHOWN], note=note)
    return Tables((table,)).html_body()


def tally(sections: Iterable[Section]) -> str:
    """A line a study: "keep-k   holds: 3, does not hold: 1"."""
    sections = list(sections)
    width = max((len(section.study.name) for section in sections), default=0)
    return "\n".join(
        f"{section.study.name:{width}} "
        + ", ".join(
            f"{verdict}: {n}"
            for verdict, n in Counter(f.verdict for f in findings(section)).items()
        )
        for section in sections
    )
