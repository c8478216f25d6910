"""`lexray diff`: what a fine-tune changed, as words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import CircuitOptions, K, TokenOptions
from lexray.cli.other import OtherOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import names

if TYPE_CHECKING:
    from lexray.compare.diff.lexicon import Lexicon
    from lexray.model.model import Model

GROUPS = "keys, gates, values, Q, K, V, O, VO, QK, router, norms, biases, embedding, …"


def register(app: typer.Typer) -> None:
    app.command()(expand(diff))


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
    other: OtherOptions,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 10,
    limit: Annotated[
        int, option("How many changes, the most telling first.", None, "--limit", "-n", min=1)
    ] = 30,
    each: Annotated[int, option("At least so many of each group that moved.", min=0)] = 3,
    among: Annotated[
        list[str] | None,
        option(
            f"Only these groups, all by default: {GROUPS} Repeatable, or with commas.",
            metavar="GROUP",
        ),
    ] = None,
    through: Annotated[
        Literal["base", "tuned"], option("Whose embedding reads the differences.")
    ] = "base",
    lexicon: Annotated[
        str,
        option(
            "Count words of praise and blame, from labelled reviews (.jsonl, .jsonl.gz), a "
            "list (.json), or the one that comes along (shipped). auto: for sentiment models.",
            metavar="FILE",
        ),
    ] = "auto",
    seed: Annotated[int, option("Of the random rotations behind p-values.")] = 0,
) -> None:
    """What a fine-tune changed: how far each group moved, and towards which words.

    lexray diff demo demo-sentiment -o report.html
    """
    from lexray.compare.diff.diff import diff as compare

    first = base.open()
    result = compare(
        first,
        other.open(tuned, base, first),
        n=limit,
        k=k,
        each=each,
        groups=names(among),
        filter=tokens.filter(),
        through=through,
        lexicon=_lexicon(lexicon, first),
        seed=seed,
    )
    output.show(result)


def _lexicon(name: str, model: Model) -> Lexicon | Literal["auto"] | None:
    from lexray.compare.diff.lexicon import Lexicon

    if name == "auto":
        return "auto"
    if name == "none":
        return None
    if name == "shipped":
        return Lexicon.shipped()
    return Lexicon.from_file(Path(name), vocabulary=model.vocabulary)
