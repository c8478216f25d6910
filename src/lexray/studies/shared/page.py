"""Studies as one HTML page: verdicts first, then each figure beside the paper's claims."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plotly.offline import get_plotlyjs

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
    script = f"<script>{get_plotlyjs()}</script>" if results else ""
    many = len(sections) > 1
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n{script}\n</head>",
            "<body>",
            f"<header><h1>{html.escape(title)}</h1>\n{_origin(results)}</header>",
            _overview(sections) if many else "",
            *(_section(section, files) for section in sections),
            "</body>\n</html>\n",
        ]
    )


def _origin(results: Sequence[StudyResult]) -> str:
    sources = dict.fromkeys(str(result.source) for result in results)
    return "".join(f'<p class="note">{html.escape(source)}</p>' for source in sources)


def _overview(sections: Sequence[Section]) -> str:
    counts: Counter[str] = Counter(f.verdict for section in sections for f in findings(section))
    tally = " ".join(_badge(v, f"{v}: {counts[v]}") for v in MARKS)
    rows = "\n".join(_overview_row(s, i) for s in sections for i in range(len(findings(s))))
    return (
        f'<p class="tally">{tally}</p><div class="wide"><table class="overview"><thead><tr>'
        "<th>study</th><th>the paper's claim</th><th>published</th><th>this model</th>"
        f"<th>verdict</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _overview_row(section: Section, i: int) -> str:
    """One finding; the study is named at its first."""
    study, own = section.study, findings(section)
    name = (
        f'<td rowspan="{len(own)}"><a href="#{study.name}">{html.escape(study.title)}</a><br>'
        f'<span class="note">{html.escape(study.figure)}</span></td>'
    )
    cells = "".join(
        f"<td>{html.escape(text)}</td>"
        for text in (own[i].claim, own[i].published, own[i].measured)
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
        f'<section id="{study.name}">\n<h2>{html.escape(study.title)}</h2>\n'
        f'<p class="note">{html.escape(study.where)} · <code>lexray study {study.name}</code>'
        f"{_links(study.name) if files and isinstance(section, StudyResult) else ''}</p>"
    )
    if isinstance(section, Untestable):
        badge = _badge("not testable")
        return f"{head}\n<p>{badge} {html.escape(section.reason)}</p>\n</section>"
    return "\n".join(
        [
            head,
            _about(study),
            *(f'<p class="note">{html.escape(note)}</p>' for note in section.evidence.notes),
            f'<div class="claims">{"".join(map(_claim, section.findings))}</div>',
            _figure(section),
            f"<details><summary>Options and numbers</summary>\n{_options(section)}",
            *(f'<div class="wide">{_table(table)}</div>' for table in section.evidence.tables),
            "</details>\n</section>",
        ]
    )


def _links(name: str) -> str:
    return f' · data: <a href="{name}.json">JSON</a>, <a href="{name}.csv">CSV</a>'


def _about(study: Study[Any]) -> str:
    """The docstring's paragraphs, but for one that is the title again."""
    blocks = (" ".join(block.split()) for block in study.about.strip().split("\n\n"))
    return "".join(f"<p>{html.escape(block)}</p>" for block in blocks if block != study.title)


def _claim(found: Finding) -> str:
    published = f"<dt>published</dt><dd>{html.escape(found.published)}</dd>" * bool(found.published)
    return (
        f'<article><p class="claim">{_badge(found.verdict)} {html.escape(found.claim)}</p><dl>'
        f"{published}<dt>measured</dt><dd>{html.escape(found.measured)}</dd>"
        f"<dt>rule</dt><dd>{html.escape(found.rule)}</dd></dl></article>"
    )


def _badge(verdict: str, text: str = "") -> str:
    kind = verdict.replace(" ", "-")
    return f'<span class="badge {kind}">{MARKS[verdict]} {html.escape(text or verdict)}</span>'


def _figure(result: StudyResult) -> str:
    config = {"displaylogo": False, "typesetMath": False, "responsive": True}
    drawn: str = result.evidence.draw().to_html(
        full_html=False,
        include_plotlyjs=False,
        include_mathjax=False,
        config=config,
        div_id=f"figure-{result.study.name}",
        default_width="100%",
    )
    return f'<div class="figure">{drawn}</div>'


def _options(result: StudyResult) -> str:
    said = ", ".join(f"{name} = {value}" for name, value in result.options.to_dict().items())
    return f'<p class="note">{html.escape(said)}</p>'


def _table(table: Table) -> str:
    if len(table.rows) > ROWS_SHOWN:
        more = f"The first {ROWS_SHOWN} of {len(table.rows)} rows; JSON and CSV have all."
        note = f"{more} {table.note}".strip()
        table = replace(table, rows=table.rows[:ROWS_SHOWN], note=note)
    return Tables((table,))._repr_html_()


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


STYLE = """
:root { color-scheme: light dark; --ink: #1f2a33; --muted: #66727d; --ground: #fff;
  --card: #f5f7f9; --line: #dde3e8; --good: #1d7a46; --bad: #b3412a; --link: #1f6fa8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ec; --muted: #98a4ae; --ground: #14191d;
  --card: #1c2329; --line: #323c45; --good: #58c389; --bad: #f0866c; --link: #6db6ea; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
  background: var(--ground); margin: 0 auto; max-width: 68rem; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; margin: 0 0 .2rem; }
a { color: var(--link); }
.note { color: var(--muted); font-size: .9rem; margin: .2rem 0 .8rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.8rem; }
section > p { max-width: 48rem; }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 1rem;
  padding: 0 .6rem; font-size: .82rem; font-weight: 600; white-space: nowrap; }
.holds { color: var(--good); } .does-not-hold { color: var(--bad); }
.not-testable { color: var(--muted); }
.claims { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: .9rem;
  margin: 1.2rem 0; }
article { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; }
.claim { margin: 0 0 .5rem; font-weight: 500; } .claim .badge { margin-right: .3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem; margin: 0;
  font-size: .9rem; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
.figure, .wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { color: var(--muted); font-weight: 500; }
table.lexray td { font-family: ui-monospace, monospace; font-size: .85rem; padding-right: .9rem; }
.tally { display: flex; gap: .6rem; margin: 1.4rem 0 .4rem; }
summary { cursor: pointer; color: var(--muted); }
"""
