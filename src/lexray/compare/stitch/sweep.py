"""Which layer of A feeds B best: stitching after every layer, measured on texts with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from lexray.compare.stitch.recipe import Recipe
from lexray.compare.stitch.run import CutRunner
from lexray.compare.stitch.stitch import (
    average_logits,
    context,
    encode,
    stitch_after,
)
from lexray.errors import LexrayError
from lexray.files import read_json_lines
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Curve, Level, Panel, Series
from lexray.result.format import show_percent
from lexray.result.table import Result, Table

COLOURS = ("positive", "negative", "third", "fifth", "fourth", "sixth", "seventh", "faint")
DASHES = ("solid", "dash", "dot", "dashdot")
CALIBRATION = 32
"""Texts on which sizes are measured where a recipe asks for it."""
REACHED = 0.7
"""What the paper calls a success."""
VARIANTS = (
    "vocabulary",
    "vocabulary+frequencies=predicted",
    "vocabulary+frequencies=counted",
    "vocabulary+match=moments",
    "pinv",
    "whitened",
    "orthogonal",
    "regression",
    "transpose",
    "pinv+centred",
    "pinv+folded",
    "pinv+a_norm",
    "pinv+b_positions",
    "pinv+a_norm+b_positions",
    "pinv+match=scale",
    "pinv+match=token",
    "pinv+match=moments",
    "whitened+match=scale",
    "orthogonal+match=scale",
    "orthogonal+match=token",
    "orthogonal+centred",
)
"""What `all` tries."""
Z95 = 1.959963984540054


@dataclass(frozen=True)
class Example:
    """A text and its class: a number or a name."""

    text: str
    label: int | str


def read_examples(path: Path, limit: int | None = None, seed: int = 0) -> list[Example]:
    """The lines of a `.jsonl` file, perhaps `.gz`, with `text` and `label`; a random sample."""
    expected = 'this should be {"text": "…", "label": 0 or "name"}'
    examples = []
    for where, value in read_json_lines(path, expected):
        match value:
            case {"text": str(text), "label": int() | str() as label} if text.strip():
                examples.append(Example(text, label))
            case _:
                raise LexrayError(f"{where}: {expected}")
    if not examples:
        raise LexrayError(f"{path} has no lines")
    if limit is None or limit >= len(examples):
        return examples
    return Random(seed).sample(examples, limit)


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share."""
    share, spread = right / n, Z95**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 * sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class SweepPoint:
    """How often one stitched model was right."""

    b: str
    recipe: str
    after: int
    right: int
    n: int
    levelled: int
    """How often, with each class's logits levelled: less their mean over all texts. It needs no
    labels, and shows what a model knows that leans to one class."""

    @property
    def accuracy(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.n)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "b": self.b,
            "variant": self.recipe,
            "after": self.after,
            "accuracy": self.accuracy,
            "low": low,
            "high": high,
            "right": self.right,
            "n": self.n,
            "levelled": self.levelled / self.n,
        }


@dataclass(frozen=True)
class Sweep(Result):
    """Accuracy after each layer of A, for each fine-tuned B and each recipe."""

    a: str
    last: int
    n: int
    max_tokens: int
    data: str
    majority: float
    """The share of the most frequent class: what knowing nothing gives."""
    ceilings: tuple[SweepPoint, ...]
    """Each B by itself."""
    points: tuple[SweepPoint, ...]

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(point.recipe for point in self.points))

    def of(self, recipe: str, after: int | None = None) -> list[SweepPoint]:
        """The points of a recipe."""
        return [p for p in self.points if p.recipe == recipe and after in (None, p.after)]

    def tables(self) -> list[Table]:
        return [self._references(), self._summary(), *map(self._curve, self.recipes)]

    def csv_tables(self) -> list[Table]:
        rows = [point.to_dict() for point in self.points]
        return [Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))]

    def _references(self) -> Table:
        majority = ("the most frequent class", self.majority, "–", None)
        own = (
            (f"{p.b} by itself", p.accuracy, _between(p), p.levelled / p.n) for p in self.ceilings
        )
        return Table(
            ("reference", "accuracy", "95 % interval", "levelled"),
            (majority, *own),
            f"{self.a} stitched to the last {self.last} layers of "
            f"{', '.join(p.b for p in self.ceilings)}",
            f"{self.n} texts of {self.data}, at most {self.max_tokens} tokens each",
        )

    def _summary(self) -> Table:
        rows = []
        for recipe in self.recipes:
            points = self.of(recipe)
            best = {p.b: max((q for q in points if q.b == p.b), key=_score) for p in points}
            afters = sorted({p.after for p in points})
            means = [_mean(self.of(recipe, after)) for after in afters]
            top = max(range(len(afters)), key=means.__getitem__)
            reached = sum(p.accuracy >= REACHED for p in best.values())
            levelled = max(
                sum(p.levelled for p in self.of(recipe, after))
                / sum(p.n for p in self.of(recipe, after))
                for after in afters
            )
            share = f"{reached} of {len(best)}"
            rows.append((recipe, means[top], afters[top], _mean(points), share, levelled))
        return Table(
            (
                *("variant", "best mean", "after", "mean of all layers"),
                *(f"models ≥ {show_percent(REACHED, 0)}", "best levelled"),
            ),
            tuple(rows),
            "the variants",
            "“Best” is chosen on the same texts, so it flatters; the curves below are whole. "
            "Levelled: each class's logits less their mean over all texts.",
        )

    def _curve(self, recipe: str) -> Table:
        rows = [(p.b, p.after, p.accuracy, _between(p), p.levelled / p.n) for p in self.of(recipe)]
        columns = ("fine-tuned model", "after layer", "accuracy", "95 % interval", "levelled")
        return Table(columns, tuple(rows), recipe, bars=frozenset({"accuracy", "levelled"}))

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "last": self.last,
            "n": self.n,
            "max_tokens": self.max_tokens,
            "data": self.data,
            "majority": self.majority,
            "unstitched": [p.to_dict() for p in self.ceilings],
            "points": [p.to_dict() for p in self.points],
        }

    def plot(self) -> Panels:
        """Curves like the paper's Fig. 4, a colour for each variant, a dash for each fine-tuned
        model, intervals as bars; `.save("sweep.pdf")` writes the figure to a file."""
        names = [point.b for point in self.ceilings]
        series: list[Series] = []
        for i, recipe in enumerate(self.recipes):
            for j, name in enumerate(names):
                points = sorted((p for p in self.of(recipe) if p.b == name), key=lambda p: p.after)
                label = recipe if len(names) == 1 else f"{recipe} → {name}"
                line = Curve(
                    [p.after for p in points],
                    [p.accuracy for p in points],
                    label,
                    COLOURS[i % len(COLOURS)],
                    DASHES[j % len(DASHES)],
                    spread=[p.interval for p in points],
                )
                series.append(line)
        series.append(Level(self.majority, "the most frequent class", "faint", "dot"))
        series += [Level(p.accuracy, f"{p.b} by itself", "ink", "dot") for p in self.ceilings]
        title = f"{self.a} stitched to the last {self.last} layers of {', '.join(names)}"
        height = Axis("accuracy, with 95 % intervals", percent=True)
        panel = Panel("", tuple(series), Axis(f"after layer of {self.a}", whole=True), height)
        return Panels(title, "", (panel,))


def _score(point: SweepPoint) -> float:
    return point.accuracy


def _mean(points: Sequence[SweepPoint]) -> float:
    return sum(p.accuracy for p in points) / len(points)


def _between(point: SweepPoint) -> str:
    low, high = point.interval
    return f"{low:.3f} to {high:.3f}"


def sweep(
    a: Model,
    tuned: Sequence[Model],
    examples: Sequence[Example],
    *,
    last: int = 3,
    recipes: Sequence[Recipe] = (Recipe(),),
    after: Sequence[int] | None = None,
    batch: int = 16,
    max_tokens: int | None = None,
    data: str = "the given texts",
) -> Sweep:
    """Accuracy of A stitched to each of the fine-tuned models after each layer.

    A runs once per batch, whatever the number of layers, models and recipes.
    """
    most = min(context(a, *tuned), max_tokens or context(a, *tuned))
    afters = list(range(a.n_layers) if after is None else after)
    names = _names(tuned)
    calibration = encode(a, [e.text for e in examples[:CALIBRATION]], most)
    stitched = {
        (name, recipe, one.after): one
        for name, b in zip(names, tuned, strict=True)
        for recipe in recipes
        for one in stitch_after(a, b, afters, last, recipe, calibration)
    }
    labels = {name: _labels(b, examples) for name, b in zip(names, tuned, strict=True)}
    runners = {name: CutRunner.of(b) for name, b in zip(names, tuned, strict=True)}
    answers: dict[Any, list[Tensor]] = {key: [] for key in (*names, *stitched)}
    first = CutRunner.of(a)
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].text))
    batches = [order[i : i + batch] for i in range(0, len(order), batch)]
    for chosen in track(batches, len(batches), f"stitching {a.name}"):
        ids, mask = (t.to(a.device) for t in encode(a, [examples[i].text for i in chosen], most))
        with torch.no_grad():
            states = first.states(ids, mask, afters)
            for name, runner in runners.items():
                own = _one_per_text(runner.module(input_ids=ids, attention_mask=mask), mask, name)
                answers[name].append(own.float().cpu())
            for key, one in stitched.items():
                logits = one.finish(states[key[2]], ids, mask).logits
                answers[key].append(logits.float().cpu())
    n = len(examples)

    def point(key: Any, b: str, recipe: str, after: int) -> SweepPoint:
        logits, right = torch.cat(answers[key]), labels[b][order]
        return SweepPoint(
            *(b, recipe, after, _hits(logits, right), n), _hits(logits - logits.mean(0), right)
        )

    return Sweep(
        a.name,
        last,
        n,
        most,
        data,
        max(Counter(e.label for e in examples).values()) / n,
        tuple(point(name, name, "unstitched", -1) for name in names),
        tuple(point(key, key[0], str(key[1]), key[2]) for key in stitched),
    )


def _names(models: Sequence[Model]) -> list[str]:
    """Their names, told apart."""
    if not models:
        raise LexrayError("stitching needs a fine-tuned model")
    names = [model.name for model in models]
    return [f"{n} ({i})" if names.count(n) > 1 else n for i, n in enumerate(names, 1)]


def _one_per_text(out: Any, mask: Tensor, name: str) -> Tensor:
    """Logits of a classifier, one row per text."""
    logits = getattr(out, "logits", None)
    if logits is None:
        raise LexrayError(f"{name} has no classifier: its output is a {type(out).__name__}")
    if logits.ndim == 3:
        logits = average_logits(logits, mask).logits
    scores: Tensor = logits
    return scores


def _labels(b: Model, examples: Sequence[Example]) -> Tensor:
    """The examples' classes as the model numbers them."""
    module: Any = b.module()
    kind = type(module).__name__
    if not kind.endswith("Classification"):
        raise LexrayError(
            f"{b.name} is a {kind}, which has no classes; give a fine-tuned classifier"
        )
    known, n = module.config.label2id or {}, module.config.num_labels
    numbers = [e.label if isinstance(e.label, int) else known.get(e.label, -1) for e in examples]
    for example, number in zip(examples, numbers, strict=True):
        if not 0 <= number < n:
            raise LexrayError(
                f"{b.name} has no class {example.label!r}: it has 0 to {n - 1}, "
                f"called {', '.join(map(repr, known))}"
            )
    return torch.tensor(numbers)


def _hits(logits: Tensor, labels: Tensor) -> int:
    return int((logits.argmax(-1) == labels).sum())
