"""`lexray lens` and `lexray contributions`: one forward pass, read as tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import MODEL, READING, OutputOptions, PlacedOptions, TokenOptions
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.trace.read.lens import Lens

WHERE, TARGET = "Where", "Which token"
Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="The text to run, in quotes.")]
NUMBERS = re.compile(r"(-?\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True)
class RunOptions(PlacedOptions):
    """Which model runs, and how."""

    special: Annotated[
        bool,
        typer.Option(
            "--special/--no-special",
            help="With the tokens that the tokenizer adds (BOS, [CLS]).",
            rich_help_panel=MODEL,
        ),
    ] = True


@dataclass(frozen=True)
class TargetOptions:
    """Which token is looked for."""

    target: Annotated[
        str | None,
        typer.Option(
            help='Its probability and rank are shown: " Tokyo", or as tables show it, ·Tokyo.',
            rich_help_panel=TARGET,
        ),
    ] = None
    first: Annotated[
        bool,
        typer.Option(
            "--first", help="Of a word of several tokens, take the first.", rich_help_panel=TARGET
        ),
    ] = False


@dataclass(frozen=True)
class LensOptions:
    """Which vectors are read, and how."""

    of: Annotated[
        list[str] | None,
        typer.Option(
            help="residual, pre, mid, post, attention, mlp, attn_in, mlp_in, heads, values, "
            "queries, keys or neurons; repeatable.",
            rich_help_panel=WHERE,
        ),
    ] = None
    layers: Annotated[
        str | None,
        typer.Option(help="Only these layers: 3, 20-29 or 0,5,-1.", rich_help_panel=WHERE),
    ] = None
    positions: Annotated[
        str | None,
        typer.Option(help="Only these positions; -1 is the last.", rich_help_panel=WHERE),
    ] = None
    heads: Annotated[str | None, typer.Option(help="Only these heads.", rich_help_panel=WHERE)] = (
        None
    )
    neurons: Annotated[
        int,
        typer.Option(
            min=1, help="With --of neurons: how many in each layer.", rich_help_panel=WHERE
        ),
    ] = 10
    query: Annotated[
        int,
        typer.Option(
            help="With --of keys: the position that looks at them.", rich_help_panel=WHERE
        ),
    ] = -1
    offset: Annotated[
        int | None,
        typer.Option(
            help="Queries and keys of rotary models: how far the key is from the query; by "
            "default their actual distance.",
            rich_help_panel=READING,
        ),
    ] = None
    norm: Annotated[
        bool,
        typer.Option("--norm/--no-norm", help="With the final norm.", rich_help_panel=READING),
    ] = True
    transform: Annotated[
        bool,
        typer.Option(
            "--transform",
            help="Through the LM head's non-linear transform (BERT and its kin).",
            rich_help_panel=READING,
        ),
    ] = False
    reading: Annotated[
        Literal["output", "input"],
        typer.Option(
            help="Which embedding reads queries and keys, if the model has two.",
            rich_help_panel=READING,
        ),
    ] = "output"
    k: Annotated[int, typer.Option("-k", min=1, help="How many tokens of each vector.")] = 5

    def look(
        self, run: RunOptions, prompt: str, target: TargetOptions, tokens: TokenOptions
    ) -> Lens:
        from lexray.trace.read.vectors import chosen_kinds, needed

        kinds = chosen_kinds(self.of or ["residual"])
        layers = numbers("--layers", self.layers)
        model = run.open().view(reading=self.reading)
        trace = model.trace(prompt, layers=layers, what=needed(kinds), special=run.special)
        return trace.lens(
            kinds,
            target=target.target,
            first=target.first,
            layers=layers,
            positions=numbers("--positions", self.positions),
            heads=numbers("--heads", self.heads),
            neurons=self.neurons,
            query=self.query,
            offset=self.offset,
            k=self.k,
            norm=self.norm,
            transform=self.transform,
            filter=tokens.filter(),
        )


def register(app: typer.Typer) -> None:
    for command in (lens, contributions):
        app.command()(expanded(command))


def lens(
    run: RunOptions,
    prompt: Prompt,
    target: TargetOptions,
    which: LensOptions,
    tokens: TokenOptions,
    plot: PlotOptions,
    output: OutputOptions,
) -> None:
    """What the vectors of a forward pass say in the vocabulary, layer by layer.

    lexray lens smollm2 "The capital of Japan is the city of" --target " Tokyo"

    lexray lens smollm2 "The capital of Japan is the city of" --of heads --layers 23 --positions -1
    """
    plot.check()
    found = which.look(run, prompt, target, tokens)
    plot.draw(found)
    output.show(found)


def contributions(
    run: RunOptions,
    prompt: Prompt,
    output: OutputOptions,
    plot: PlotOptions,
    target: Annotated[
        str | None,
        typer.Option(
            help='Whose logit: " Tokyo"; by default the most probable token.',
            rich_help_panel=TARGET,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another token; the difference of the two logits.", rich_help_panel=TARGET
        ),
    ] = None,
    first: Annotated[
        bool,
        typer.Option(
            "--first", help="Of a word of several tokens, take the first.", rich_help_panel=TARGET
        ),
    ] = False,
    position: Annotated[
        int, typer.Option(help="Which position; -1 is the last.", rich_help_panel=WHERE)
    ] = -1,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources",
            help="Split each head by the positions it looked at.",
            rich_help_panel=WHERE,
        ),
    ] = False,
    k: Annotated[int, typer.Option("-k", min=1, help="How many components at either end.")] = 10,
) -> None:
    """What each head, neuron, bias and embedding added to a token's logit.

    lexray contributions smollm2 "The capital of Japan is the city of" --target " Tokyo"

    lexray contributions demo "She went to the" --sources -o parts.csv
    """
    plot.check()
    trace = run.open().trace(prompt, special=run.special)
    found = trace.contributions(
        target, position, against=against, first=first, sources=sources, shown=k
    )
    plot.draw(found)
    output.show(found)


def numbers(option: str, text: str | None) -> list[int] | None:
    """The numbers of a list such as 3, 20-29 or 0,5,-1."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = NUMBERS.fullmatch(part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise LexrayError(f"{option} {text!r} is no list of numbers such as 3, 20-29 or 0,5,-1")
        start = int(match[1])
        found += range(start, int(match[2]) + 1) if match[2] else [start]
    return found
