"""Train, evaluate and describe the models that ship with lexray.

    python tools/train_demo.py tokenizer
    python tools/train_demo.py demo            # likewise demo-b, demo-wide
    python tools/train_demo.py sentiment       # --seed N --out DIR for further fine-tunes
    python tools/train_demo.py evaluate
    python tools/train_demo.py card

Needs scikit-learn, matplotlib and tqdm beside lexray's own dependencies. Checkpoints, tokenised
reviews and logs are kept in `--work`; a stopped command continues where its last checkpoint was.
Each process uses one thread, so that the same numbers come out again: train two models side by
side on two cores.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from demo_models import card as model_card
from demo_models import evaluate as evaluation
from demo_models.corpus import load_corpus
from demo_models.data import read_reviews, split_training
from demo_models.export import export
from demo_models.language import train
from demo_models.recipe import DATA, FINE_TUNE, LANGUAGE_MODELS, MODELS, WORK
from demo_models.sentiment import fine_tune

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Data = Annotated[Path, typer.Option(help="Folder of imdb-train.jsonl.gz and imdb-test.jsonl.gz.")]
Work = Annotated[Path, typer.Option(help="Folder of checkpoints, logs and tokenised reviews.")]
Out = Annotated[Path, typer.Option(help="Folder to write the models to.")]


@app.command()
def tokenizer(data: Data = DATA, work: Work = WORK) -> None:
    """Train the shared vocabulary and tokenise the training reviews."""
    load_corpus(data, work)


@app.command()
def demo(data: Data = DATA, work: Work = WORK, out: Out = MODELS) -> None:
    """Train the language model `demo`."""
    _language_model("demo", data, work, out)


@app.command()
def demo_b(data: Data = DATA, work: Work = WORK, out: Out = MODELS) -> None:
    """Train `demo-b`: the same shape from another seed, reviews in another order."""
    _language_model("demo-b", data, work, out)


@app.command()
def demo_wide(data: Data = DATA, work: Work = WORK, out: Out = MODELS) -> None:
    """Train `demo-wide`: fewer, wider layers."""
    _language_model("demo-wide", data, work, out)


@app.command()
def sentiment(
    seed: Annotated[int, typer.Option(help="Classifier's initialisation and order.")] = (
        FINE_TUNE.seed
    ),
    base: Annotated[Path, typer.Option(help="Folder of the model to start from.")] = MODELS
    / "demo",
    out: Annotated[Path, typer.Option(help="Folder to write.")] = MODELS / "demo-sentiment",
    data: Data = DATA,
    work: Work = WORK,
) -> None:
    """Fine-tune a language model to tell praise from blame."""
    corpus = load_corpus(data, work)
    reviews, _ = split_training(read_reviews(data / "imdb-train.jsonl.gz"))
    spec = replace(FINE_TUNE, seed=seed)
    folder = work / f"sentiment-{base.resolve().name}-{seed}"
    model = fine_tune(base, spec, corpus.train, reviews, folder)
    export(model, corpus.tokenizer, "demo-sentiment", out)


@app.command()
def evaluate(data: Data = DATA, work: Work = WORK, out: Out = MODELS) -> None:
    """Measure the written models on the test reviews; write figures.json."""
    evaluation.evaluate(load_corpus(data, work), data, out)


@app.command()
def card(work: Work = WORK, out: Out = MODELS) -> None:
    """Write the model card and the picture of the losses from figures.json and the logs."""
    model_card.write_card(work, out)


def _language_model(name: str, data: Path, work: Path, out: Path) -> None:
    corpus = load_corpus(data, work)
    model = train(LANGUAGE_MODELS[name], corpus, work)
    export(model, corpus.tokenizer, name, out / name)


if __name__ == "__main__":
    app()
