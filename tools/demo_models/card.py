"""The model card: the template card.md filled with what the recipe and the evaluation say."""

import json
from pathlib import Path
from string import Template
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo_models import readings
from demo_models.evaluate import SAMPLE_TOKENS
from demo_models.recipe import (
    BATCH,
    CONTEXT,
    FINE_TUNE,
    LANGUAGE_MODELS,
    MAX_PARAMETERS,
    VOCABULARY_SIZE,
)
from demo_models.run import read_log

COLOURS = {"demo": "#1b6ca8", "demo-b": "#d1495b", "demo-wide": "#2a9d6f"}


def write_card(work: Path, out: Path) -> None:
    """Write `out/README.md` and `out/losses.png`."""
    figures = json.loads((out / "figures.json").read_text())
    template = Template((Path(__file__).parent / "card.md").read_text())
    fields = {**_fields(figures), "readings": _rows(readings.rows(out / "demo"))}
    (out / "README.md").write_text(template.substitute(fields))
    _draw_losses(work, figures["baselines"], out / "losses.png")


def _fields(figures: dict[str, Any]) -> dict[str, str]:
    """Every placeholder of the template."""
    data, sentiment = figures["data"], figures["sentiment"]
    any_spec = LANGUAGE_MODELS["demo"]
    return {
        "shapes": _rows(_shapes(figures)),
        "runs": _rows(_runs(data["train_tokens"] + data["train_reviews"])),
        "perplexities": _rows(_perplexities(figures)),
        "accuracies": _rows(_accuracies(sentiment)),
        "sentences": _rows(_sentences(figures["sentences"])),
        "samples": "\n\n".join(_quote(text) for text in figures["samples"]),
        "max_parameters": f"{MAX_PARAMETERS:,}",
        "train_reviews": f"{data['train_reviews']:,}",
        "train_tokens": f"{data['train_tokens']:,}",
        "held_out_reviews": f"{data['held_out_reviews']:,}",
        "test_reviews": f"{data['test_reviews']:,}",
        "perplexity_tokens": f"{figures['perplexity_tokens']:,}",
        "perplexity_reviews": f"{figures['perplexity_reviews']:,}",
        "sentiment_reviews": f"{sentiment['reviews']:,}",
        "bigram_discount": f"{figures['bigram_discount']}",
        "vocabulary": f"{VOCABULARY_SIZE:,}",
        "context": f"{CONTEXT}",
        "batch": f"{BATCH}",
        "weight_decay": f"{any_spec.weight_decay}",
        "gradient_clip": f"{any_spec.gradient_clip:g}",
        "warmup": f"{any_spec.warmup}",
        "peak_lr": f"{any_spec.peak_lr}",
        "final_lr_percent": f"{100 * any_spec.final_lr_share:g}",
        "tuned_layers": f"{FINE_TUNE.layers}",
        "tuned_lr": f"{FINE_TUNE.peak_lr}",
        "tuned_batch": f"{FINE_TUNE.batch}",
        "tuned_reviews": f"{FINE_TUNE.batch * FINE_TUNE.steps:,}",
        "sample_tokens": f"{SAMPLE_TOKENS}",
    }


def _shapes(figures: dict[str, Any]) -> list[list[str]]:
    rows = [
        [
            f"`{name}`",
            "`GPT2LMHeadModel`",
            f"{spec.n_layer} × {spec.n_embd}",
            f"{spec.n_head} × {spec.n_embd // spec.n_head}",
            f"{figures['models'][name]['parameters']:,}",
            _megabytes(figures["models"][name]["bytes"]),
            "the next token",
        ]
        for name, spec in LANGUAGE_MODELS.items()
    ]
    sentiment, base = figures["sentiment"], rows[0]
    tuned = ["`demo-sentiment`", "`GPT2ForTokenClassification`", *base[2:4]]
    size = [f"{sentiment['parameters']:,}", _megabytes(sentiment["bytes"])]
    return [*rows, [*tuned, *size, "praise or blame"]]


def _runs(tokens_per_pass: int) -> list[list[str]]:
    return [
        [
            f"`{name}`",
            f"{spec.seed}",
            f"{spec.steps:,}",
            ", ".join(f"{start:,}–{end:,}" for start, end in spec.cooldowns),
            f"{spec.steps * BATCH * CONTEXT / tokens_per_pass:.2f}",
        ]
        for name, spec in LANGUAGE_MODELS.items()
    ]


def _perplexities(figures: dict[str, Any]) -> list[list[str]]:
    measured = {**figures["baselines"], **figures["models"]}
    return [[_name(name), f"{values['perplexity']:.1f}"] for name, values in measured.items()]


def _accuracies(sentiment: dict[str, float]) -> list[list[str]]:
    names = {
        "accuracy": "`demo-sentiment`",
        "accuracy_with_final_norm": "`demo-sentiment` with `demo`'s final norm left in place",
        "bag_of_words_truncated": f"bag of words, first {CONTEXT} tokens",
        "bag_of_words": "bag of words, whole reviews",
    }
    return [[name, f"{100 * sentiment[key]:.1f} %"] for key, name in names.items()]


def _sentences(sentences: list[dict[str, Any]]) -> list[list[str]]:
    columns = ("unigram", "bigram", *LANGUAGE_MODELS)
    return [[one["text"], *(f"{one[name]:.2f}" for name in columns)] for one in sentences]


def _rows(rows: list[list[str]]) -> str:
    """Rows of a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _quote(text: str) -> str:
    """A text as a Markdown quotation."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _name(name: str) -> str:
    return f"`{name}`" if name in LANGUAGE_MODELS else name


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _draw_losses(work: Path, baselines: dict[str, Any], path: Path) -> None:
    """Training loss (thin) and held-out loss (dots) of the language models by step."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, colour in COLOURS.items():
        rows = read_log(work / name / "log.jsonl")
        _plot(axes, rows, "train", color=colour, lw=0.8, alpha=0.6)
        _plot(axes, rows, "held_out", color=colour, marker=".", label=name)
    for name, values in baselines.items():
        axes.axhline(values["held_out_loss"], color="grey", lw=0.8, ls="--")
        axes.annotate(name, (0, values["held_out_loss"]), color="grey", va="bottom")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(frameon=False, title="held out (thin: training)")
    figure.savefig(path, dpi=110)


def _plot(axes: Axes, rows: list[dict[str, float]], key: str, **style: Any) -> None:
    """One kind of loss by step."""
    points = [(row["step"], row[key]) for row in rows if key in row]
    axes.plot(*zip(*points, strict=True), **style)
