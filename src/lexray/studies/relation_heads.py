"""Do heads do in prompts what their weights say of relations between words?

For each relation, every head's static score (the share of pairs that its VO holds, `lexray
relations`) is held against what the head writes in prompts that end in the source: with its
attention put on the source, and free. The figure is the correlation over all heads, for each view
of the weights: raw, folded, folded through the effective embedding, and standard. A source that
stands alone is run too; where a tokenizer puts nothing before it, it is the first token, whose
state is like no other's and tells little.

Then the task itself: after a few examples in the prompt the model is to name the target. The best
heads by their static score are removed, and as many others drawn at random.

Departs from the paper: templates and pairs are ours, and the task is in-context for every relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from lexray.edits.values import Edits
from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel, StandingBars
from lexray.result.table import Cell, Table
from lexray.roles.relation import Relation, relations_of
from lexray.roles.relations import relations
from lexray.roles.tokens import TokenPairs, tasks_of
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.study import Study, StudyOptions, option
from lexray.trace.trace import Trace
from lexray.view import STANDARD, View

MAPS = "MAPS: Inferring Functionality of Attention Heads from their Parameters"
VIEWS = {
    "raw": View(),
    "folded": View(folded=True),
    "effective": View(folded=True, reading="effective"),
    "standard": STANDARD,
}
NO_CONTEXT = "{}"
TEMPLATES = (
    "This is a document about {}",
    "She had often heard of {}",
    "Before we go on, a word about {}",
    "The next entry on the list is {}",
)
PUT, FREE = "attention on the source", "free"
ALONE = "the source alone"
PUBLISHED = {
    "capital": (0.95, 0.91),
    "antonym": (0.93, 0.87),
    "past": (0.91, 0.70),
    "copy": (0.88, 0.45),
    "first": (0.87, 0.64),
    "last": (0.44, 0.43),
}
"""For Pythia 6.9B: without context, which is with the attention on the source, and with it."""
SHOWN = 5
"""Examples before the question."""
ROWS_AT_ONCE, PROMPTS_AT_ONCE = 256, 16
SCREEN = 1024
"""Tokens that most targets are compared with first."""
MARGIN = 1e-4
"""How much rounding may move a score, as a share of the row's largest."""

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class RelationHeads(StudyOptions):
    relations: str = option(
        "capital;past;antonym;copy;first;last",
        "Which relations: names, files or typed pairs, with semicolons.",
    )
    pairs: int = option(24, "So many pairs of each are run.", min=4)
    templates: int = option(4, "So many templates, beside the source alone.", min=1)
    remove: int = option(10, "So many of the best heads are removed.", min=1)
    draws: int = option(3, "How often as many others are drawn.", min=1)


def run(model: Model, options: RelationHeads) -> Outcome:
    tasks = _tasks(model, options)
    wanted = [task.relation for task in tasks]
    static = {name: _static(model.with_view(view), wanted) for name, view in VIEWS.items()}
    dynamic = {
        task.relation.name: [
            measure_written(model, task, template)
            for template in (NO_CONTEXT, *TEMPLATES[: options.templates])
        ]
        for task in track(tasks, len(tasks), "what heads write")
    }
    by_relation = correlations(static, dynamic)
    removed = {
        task.relation.name: without(model, task, static["standard"][task.relation.name], options)
        for task in track(tasks, len(tasks), "heads removed")
    }
    return Outcome(
        {"correlation": by_relation, "accuracy": removed},
        (_correlations_table(by_relation), _removed_table(removed)),
        tuple(findings(by_relation, removed)),
        lambda: draw(by_relation, removed),
        (f"{options.pairs} pairs at most", f"{options.remove} heads removed"),
    )


def _tasks(model: Model, options: RelationHeads) -> list[TokenPairs]:
    """The first pairs of whole words of each relation."""
    names = [name for name in options.relations.split(";") if name.strip()]
    every = [task for task in tasks_of(model, relations_of(names)) if task.whole]
    kept = [
        TokenPairs(
            Relation(
                task.relation.name,
                task.words[: options.pairs],
                task.relation.title,
                task.relation.k,
            ),
            True,
            task.words[: options.pairs],
            task.sources[: options.pairs],
            task.targets[: options.pairs],
        )
        for task in every
    ]
    if not kept:
        raise LexrayError(f"the vocabulary of {model.name} has no pairs of {options.relations}")
    return kept


def _static(model: Model, wanted: Sequence[Relation]) -> dict[str, Shares]:
    scores = relations(model, list(wanted), shuffled=100)
    return {tested.relation.name: tested.share[0] for tested in scores.tested}


def measure_written(model: Model, task: TokenPairs, template: str) -> dict[str, Shares]:
    """For each head the share of pairs whose target is among the best of what it writes."""
    prompts = [
        [*_before(model, template.format(word).removesuffix(word)), source]
        for (word, _), source in zip(task.words, task.sources, strict=True)
    ]
    traces = _traces(model, prompts, ["attention", "heads"])
    shares: dict[str, list[Tensor]] = {PUT: [], FREE: []}
    targets = torch.tensor(task.targets)
    for n, layer in enumerate(model.view(folded=True).layers):
        heads = list(layer.heads)
        W_O = torch.stack([at_least_float32(head.W_O) for head in heads])
        own = torch.tensor([head.kv_index for head in heads])
        z = {
            PUT: torch.stack([trace[n].v[-1][own.to(trace[n].v.device)] for trace in traces]),
            FREE: torch.stack([trace[n].z[-1] for trace in traces]),
        }
        for mode, rows in z.items():
            X = torch.einsum("phr,hrd->phd", rows.to(W_O), W_O)
            each = targets.repeat_interleave(len(heads))
            hit = among_best(model, X.flatten(0, 1), each, task.relation.k)
            shares[mode].append(hit.view(len(traces), len(heads)).double().mean(0))
    return {mode: np.asarray(torch.cat(each)) for mode, each in shares.items()}


def _traces(
    model: Model, prompts: list[list[int]], what: Sequence[str], edits: Edits | None = None
) -> list[Trace]:
    """The last position of every prompt, several in one pass."""
    traces: list[Trace] = []
    for start in range(0, len(prompts), PROMPTS_AT_ONCE):
        some = prompts[start : start + PROMPTS_AT_ONCE]
        traces += model.trace(some, what=what, positions=-1, special=False, edits=edits)
    return traces


def _before(model: Model, text: str) -> list[int]:
    """The tokens before the source, as the tokenizer begins a text."""
    stem = text.rstrip()
    return model.vocabulary.encode(stem, special=True) if stem else _begin(model)


def _begin(model: Model) -> list[int]:
    """What the tokenizer puts first, if anything."""
    ids = model.vocabulary.encode("a", special=True)
    return ids[:1] if ids and model.vocabulary.is_special(ids[0]) else []


def among_best(
    model: Model, rows: Float[Tensor, "n d_model"], targets: Int[Tensor, "n"], k: int
) -> Bool[Tensor, "n"]:
    """Whether fewer than k tokens score above each row's target.

    Most targets are beaten by k out of a thousand tokens; the other rows are multiplied whole.
    """
    side = model.with_view(VIEWS["folded"]).space.whole("O")
    wanted, at = torch.unique(targets, return_inverse=True)
    own = side.only(wanted).project(rows).gather(1, at[:, None].to(rows.device))
    step = max(1, len(side.rows) // SCREEN)
    some = side.only(torch.arange(0, len(side.rows), step)).project(rows)
    room = MARGIN * torch.maximum(some.abs().amax(1, keepdim=True), own.abs())
    still = ((some > own + room).sum(1) < k).nonzero()[:, 0]
    hits = torch.zeros(len(rows), dtype=torch.bool)
    for part in torch.split(still, ROWS_AT_ONCE):
        scores = side.project(rows[part])
        best = scores.gather(1, targets[part.cpu(), None].to(scores.device))
        hits[part.cpu()] = ((scores > best).sum(1) < k).cpu()
    return hits


def correlations(
    static: dict[str, dict[str, Shares]], dynamic: dict[str, list[dict[str, Shares]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """relation → view → the source alone; in context, with the attention on the source and free."""
    by_relation: dict[str, dict[str, dict[str, float]]] = {}
    for name, templates in dynamic.items():
        by_relation[name] = {}
        for view, scores in static.items():
            put = [correlation(scores[name], shares[PUT]) for shares in templates]
            free = [correlation(scores[name], shares[FREE]) for shares in templates[1:]]
            by_relation[name][view] = {
                ALONE: put[0],
                PUT: _mean(put[1:]),
                FREE: _mean(free),
            }
    return by_relation


def correlation(a: Shares, b: Shares) -> float:
    """Pearson's; NaN where nothing varies."""
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")


def without(
    model: Model, task: TokenPairs, scores: Shares, options: RelationHeads
) -> dict[str, float]:
    """Accuracy of the whole model, without the best heads, and without as many others."""
    random = Random(options.seed)
    heads = [str(head.address) for layer in model.layers for head in layer.heads]
    order = sorted(range(len(heads)), key=lambda i: -scores[i])
    m = min(options.remove, max(1, len(heads) // 2))
    best, others = [heads[i] for i in order[:m]], [heads[i] for i in order[m:]]
    asked = questions(model, task, random)
    drawn = [
        accuracy(model, asked, random.sample(others, min(m, len(others))))
        for _ in range(options.draws)
    ]
    return {
        "whole": accuracy(model, asked, []),
        "without the best": accuracy(model, asked, best),
        "without others": sum(drawn) / len(drawn),
    }


def questions(model: Model, task: TokenPairs, random: Random) -> list[tuple[list[int], int]]:
    """A few pairs, then a source: the tokens of the prompt, and the target."""
    asked = []
    for i, (source, _) in enumerate(task.words):
        rest = [pair for j, pair in enumerate(task.words) if j != i]
        shown = random.sample(rest, min(SHOWN, len(rest)))
        text = "\n".join([*(f"{a} means {b}" for a, b in shown), f"{source} means"])
        asked.append((model.vocabulary.encode(text, special=True), task.targets[i]))
    return asked


def accuracy(model: Model, asked: Sequence[tuple[list[int], int]], removed: Sequence[str]) -> float:
    """The share of questions whose target is the most probable next token."""
    edits = [f"ablate {address}" for address in removed] or None
    traces = _traces(model, [ids for ids, _ in asked], ["logits"], edits)
    best = [int(trace.logits[-1].argmax()) for trace in traces]
    right = [token == target for token, (_, target) in zip(best, asked, strict=True)]
    return sum(right) / max(1, len(right))


def findings(
    by_relation: dict[str, dict[str, dict[str, float]]], removed: dict[str, dict[str, float]]
) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    able = [each for each in removed.values() if each["whole"] >= 0.2]
    lost = _mean([each["whole"] - each["without the best"] for each in able])
    others = _mean([each["whole"] - each["without others"] for each in able])
    return [
        _predicts(
            by_relation, PUT, "Static scores tell what heads write when they look at the source."
        ),
        _predicts(by_relation, FREE, "They also tell what heads write where they look freely."),
        finding(
            "Removing the heads of a relation hurts it more than removing others.",
            "the mean loss of accuracy is larger, over relations of which a fifth is answered",
            (lost > others) if able else None,
            f"{lost:.2f} lost without the best heads, {others:.2f} without others",
        ),
    ]


def _predicts(
    by_relation: dict[str, dict[str, dict[str, float]]], mode: str, claim: str
) -> Finding:
    """Whether the best view's scores go along with what heads write, over all relations."""
    means = {view: _mean([by[view][mode] for by in by_relation.values()]) for view in VIEWS}
    said = ", ".join(f"{view} {value:.2f}" for view, value in means.items())
    best = max(means, key=lambda view: means[view] if means[view] == means[view] else -2)
    at = 0 if mode == PUT else 1
    known = [f"{name} {PUBLISHED[name][at]}" for name in by_relation if name in PUBLISHED]
    return finding(
        claim,
        "the mean correlation over relations is above 0.5 for the best view",
        means[best] > 0.5 if means[best] == means[best] else None,
        f"{best} predicts best; {said}",
        f"{', '.join(known)} (Pythia 6.9B)" if known else "",
    )


def _correlations_table(by_relation: dict[str, dict[str, dict[str, float]]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (name, view, *(value if value == value else None for value in values.values()))
        for name, by in by_relation.items()
        for view, values in by.items()
    ]
    columns = ("relation", "view", ALONE, PUT, FREE)
    return Table(columns, tuple(rows), "Correlation of static scores with what heads write")


def _removed_table(removed: dict[str, dict[str, float]]) -> Table:
    rows: list[tuple[Cell, ...]] = [(name, *values.values()) for name, values in removed.items()]
    columns = ("relation", "whole model", "without the best heads", "without others")
    return Table(columns, tuple(rows), "Accuracy on the task")


def draw(
    by_relation: dict[str, dict[str, dict[str, float]]], removed: dict[str, dict[str, float]]
) -> Panels:
    colours = (figures.MUTED, figures.THIRD, figures.PUBLISHED, figures.OURS)
    names = list(by_relation)
    places = [float(i) for i in range(len(names))]
    bars = tuple(
        StandingBars(places, [by_relation[n][view][PUT] for n in names], view, colour)
        for view, colour in zip(VIEWS, colours, strict=True)
    )
    kinds = ("whole", "without the best", "without others")
    accuracies = tuple(
        StandingBars(places, [removed[n][kind] for n in names], kind, colour)
        for kind, colour in zip(kinds, (figures.MUTED, figures.CONTROL, figures.THIRD), strict=True)
    )
    axis = Axis(", ".join(f"{i} {name}" for i, name in enumerate(names)), whole=True)
    return figures.panels(
        Panel(f"correlation, {PUT}", bars, axis, Axis(zero=True)),
        Panel("accuracy", accuracies, axis, Axis(zero=True)),
    )


STUDY = Study(
    "relation-heads",
    "Do heads do what their weights say of relations?",
    MAPS,
    "Tables 2 and 3",
    __doc__,
    RelationHeads,
    run,
)
