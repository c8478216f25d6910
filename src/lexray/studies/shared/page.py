"""Studies as one HTML page: verdicts first, then each figure beside the paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lexray.result import page as shell
from lexray.result.page import escape
from lexray.result.table import Table
from lexray.studies.shared.finding import Finding, Outcome, Tables

MARKS = {"holds": "✓", "does not hold": "✗", "not testable": "–"}
ROWS_SHOWN = 400
"""A longer table is cut on the page; the files have all of it."""


@dataclass(frozen=True)
class StudySection:
    """What a page says of one study."""

    name: str
    title: str
    figure: str
    where: str
    about: str
    findings: tuple[Finding, ...]
    source: str
    options: Mapping[str, Any]
    evidence: Outcome | None
    """None if the study could not be run."""


def page(sections: Sequence[StudySection], title: str, *, files: bool = False) -> str:
    """A page that needs no network; `files`: the data lie beside it and are linked."""
    body = "\n".join(
        [
            f"<header><h1>{escape(title)}</h1>\n{_origin(sections)}</header>",
            _overview(sections) if len(sections) > 1 else "",
            *(_section(section, files) for section in sections),
        ]
    )
    contents = _contents(sections) if len(sections) > 1 else ""
    kind = ' class="with-contents"' if contents else ""
    return shell.page(title, f"<main{kind}>\n{contents}<div>{body}</div>\n</main>")


def _contents(sections: Sequence[StudySection]) -> str:
    """What stays at the side: every study, and how it came out."""
    rows = "".join(
        f'<li><a href="#{section.name}">{escape(section.title)}</a> {_marks(section)}</li>'
        for section in sections
    )
    return f'<nav class="contents" aria-label="contents"><ol>{rows}</ol></nav>\n'


def _marks(section: StudySection) -> str:
    """A sign for each finding."""
    return "".join(
        f'<span class="{f.verdict.replace(" ", "-")}" title="{escape(f.claim)}: {f.verdict}">'
        f"{MARKS[f.verdict]}</span>"
        for f in section.findings
    )


def _origin(sections: Sequence[StudySection]) -> str:
    sources = dict.fromkeys(section.source for section in sections if section.source)
    return "".join(f'<p class="note">{escape(source)}</p>' for source in sources)


def _overview(sections: Sequence[StudySection]) -> str:
    counts: Counter[str] = Counter(f.verdict for section in sections for f in section.findings)
    tally = " ".join(_badge(v, f"{v}: {counts[v]}") for v in MARKS)
    rows = "\n".join(_overview_row(s, i) for s in sections for i in range(len(s.findings)))
    return (
        f'<p class="tally">{tally}</p><div class="scroll"><table class="overview"><thead><tr>'
        "<th>study</th><th>the paper's claim</th><th>published</th><th>this model</th>"
        f"<th>verdict</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _overview_row(section: StudySection, i: int) -> str:
    """One finding; the study is named at its first."""
    own = section.findings
    name = (
        f'<td rowspan="{len(own)}"><a href="#{section.name}">{escape(section.title)}</a><br>'
        f'<span class="note">{escape(section.figure)}</span></td>'
    )
    cells = "".join(
        f"<td>{escape(text)}</td>" for text in (own[i].claim, own[i].published, own[i].measured)
    )
    return f"<tr>{name if i == 0 else ''}{cells}<td>{_badge(own[i].verdict)}</td></tr>"


def _section(section: StudySection, files: bool) -> str:
    evidence = section.evidence
    head = (
        f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>\n'
        f'<p class="note">{escape(section.where)} · <code>lexray study {section.name}</code>'
        f"{_links(section.name) if files and evidence else ''}</p>"
    )
    if evidence is None:
        said = "".join(f"<p>{_badge(f.verdict)} {escape(f.measured)}</p>" for f in section.findings)
        return f"{head}\n{said}\n</section>"
    return "\n".join(
        [
            head,
            _about(section),
            *(f'<p class="note">{escape(note)}</p>' for note in evidence.notes),
            f'<div class="claims">{"".join(map(_claim, section.findings))}</div>',
            _figure(evidence),
            f"<details><summary>Options and numbers</summary>\n{_options(section)}",
            *(f'<div class="scroll">{_table(table)}</div>' for table in evidence.tables),
            "</details>\n</section>",
        ]
    )


def _links(name: str) -> str:
    return f' · data: <a href="{name}.json">JSON</a>, <a href="{name}.csv">CSV</a>'


def _about(section: StudySection) -> str:
    """The docstring's paragraphs, but for one that is the title again."""
    blocks = (" ".join(block.split()) for block in section.about.strip().split("\n\n"))
    return "".join(f"<p>{escape(block)}</p>" for block in blocks if block != section.title)


def _claim(finding: Finding) -> str:
    published = f"<dt>published</dt><dd>{escape(finding.published)}</dd>" * bool(finding.published)
    return (
        f'<article><p class="claim">{_badge(finding.verdict)} {escape(finding.claim)}</p><dl>'
        f"{published}<dt>measured</dt><dd>{escape(finding.measured)}</dd>"
        f"<dt>rule</dt><dd>{escape(finding.rule)}</dd></dl></article>"
    )


def _badge(verdict: str, text: str = "") -> str:
    kind = verdict.replace(" ", "-")
    return f'<span class="badge {kind}">{MARKS[verdict]} {escape(text or verdict)}</span>'


def _figure(evidence: Outcome) -> str:
    return f'<div class="scroll">{evidence.draw().html()}</div>'


def _options(section: StudySection) -> str:
    said = ", ".join(f"{name} = {value}" for name, value in section.options.items())
    return f'<p class="note">{escape(said)}</p>'


def _table(table: Table) -> str:
    if len(table.rows) > ROWS_SHOWN:
        more = f"The first {ROWS_SHOWN} of {len(table.rows)} rows; JSON and CSV have all."
        note = f"{more} {table.note}".strip()
        table = replace(table, rows=table.rows[:ROWS_SHOWN], note=note)
    return Tables((table,)).html_body()


def tally(sections: Iterable[StudySection]) -> str:
    """A line a study: "keep-k   holds: 3, does not hold: 1"."""
    sections = list(sections)
    width = max((len(section.name) for section in sections), default=0)
    return "\n".join(
        f"{section.name:{width}} "
        + ", ".join(
            f"{verdict}: {n}" for verdict, n in Counter(f.verdict for f in section.findings).items()
        )
        for section in sections
    )
