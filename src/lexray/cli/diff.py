"""`lexray diff`: what a fine-tune changed, as words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import CircuitOptions, OutputOptions, TokenOptions

if TYPE_CHECKING:
    from lexray.compare.diff.lexicon import Lexicon
    from lexray.model.model import Model

GROUPS = "keys, gates, values, Q, K, V, O, VO, QK, router, norms, biases, embedding, …"


def register(app: typer.Typer) -> None:
    app.command()(expanded(diff))


@dataclass(frozen=True)
class BaseOptions(CircuitOptions):
    """The base model; the other is opened in the same way."""

    model: Annotated[
        str,
        typer.Argument(metavar="BASE", help="The model before: a path, a Hub id, a shipped name."),
    ]


def diff(
    base: BaseOptions,
    tuned: Annotated[
        str,
        typer.Argument(metavar="TUNED", help="The model after, or a LoRA adapter for BASE."),
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    k: Annotated[int, typer.Option("-k", min=1, help="How many tokens or pairs of each.")] = 10,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many changes, the most telling first.")
    ] = 30,
    each: Annotated[
        int, typer.Option(min=0, help="At least so many of each group that moved.")
    ] = 3,
    groups: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help=f"Only these: {GROUPS} Repeatable, or with commas."),
    ] = None,
    through: Annotated[
        Literal["base", "tuned"], typer.Option(help="Whose embedding reads the differences.")
    ] = "base",
    lexicon: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Count words of praise and blame, from labelled reviews (.jsonl, .jsonl.gz), a "
            "list (.json), or the one that comes along (shipped). auto: for sentiment models.",
        ),
    ] = "auto",
    tuned_revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of TUNED, if it is a Hub model.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random rotations behind p-values.")] = 0,
) -> None:
    """What a fine-tune changed: how far each group moved, and towards which words.

    lexray diff demo demo-sentiment -o report.html
    """
    from lexray.compare.diff.diff import diff as compare
    from lexray.compare.open import open_other

    first = base.open()
    options: dict[str, Any] = {"family": base.family, "remote": base.remote}
    found = compare(
        first,
        open_other(first, tuned, on_first=True, revision=tuned_revision, **options),
        n=limit,
        k=k,
        each=each,
        groups=[name for text in groups or () for name in text.replace(",", " ").split()],
        filter=tokens.filter(),
        through=through,
        lexicon=_lexicon(lexicon, first),
        seed=seed,
    )
    output.show(found)


def _lexicon(name: str, model: Model) -> Lexicon | Literal["auto"] | None:
    from lexray.compare.diff.lexicon import Lexicon

    if name == "auto":
        return "auto"
    if name == "none":
        return None
    if name == "shipped":
        return Lexicon.shipped()
    return Lexicon.from_file(Path(name), vocabulary=model.vocabulary)
