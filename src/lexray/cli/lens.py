"""`lexray lens`, `attention` and `contributions`: one forward pass, read as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import MODEL, READING, PlacedOptions, TokenOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import numbers
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.model import Model
    from lexray.trace.read.lens import Lens
    from lexray.trace.trace import Trace
    from lexray.vocabulary.chat import Message

WHERE, TARGET = "Where", "Which token"
Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="The text to run, in quotes.")]
QK_SIDES = ("queries", "keys")
PARTS = {
    "--heads": ("heads", "cross_heads", "values", *QK_SIDES),
    "--neurons": ("neurons",),
    "--query": ("keys",),
    "--offset": QK_SIDES,
    "--reading": QK_SIDES,
}
"""Which of --of must be asked for, so that an option has an effect."""


@dataclass(frozen=True)
class RunOptions(PlacedOptions):
    """Which model runs, and how."""

    special: Annotated[
        bool,
        option(
            "With the tokens that the tokenizer adds (BOS, [CLS]).", MODEL, "--special/--no-special"
        ),
    ] = True
    chat: Annotated[
        bool, option("The prompt is what a user says: through the model's chat template.", MODEL)
    ] = False
    system: Annotated[
        str | None, option("With --chat, what the model is told first.", MODEL, metavar="TEXT")
    ] = None
    edits: Annotated[
        list[str] | None,
        option(
            "Change the run: 'ablate L23H4', 'scale L29N50 by 3', 'cut [3]->[-1]'; several with "
            "semicolons. Repeatable.",
            MODEL,
            metavar="EDITS",
        ),
    ] = None

    target_text: Annotated[
        str | None,
        option(
            "Of an encoder–decoder: how the target begins; the prompt is the source.",
            MODEL,
            metavar="TEXT",
        ),
    ] = None

    encoder: Annotated[
        bool, option("Of an encoder–decoder: the encoder's pass, over the source.", MODEL)
    ] = False

    def trace(self, model: Model, prompt: str, **options: Any) -> Trace:
        """A run of the prompt, with all that these options say; `options` are what is kept of it,
        of an encoder's pass all."""
        kept = {} if self.encoder else options
        trace = model.trace(
            self.read(prompt),
            special=self.special,
            edits=self.edits,
            target=self.target_text,
            **kept,
        )
        return trace.encoder if self.encoder else trace

    def refuse_encoder(self, why: str) -> None:
        """Raises where an answer is looked at, which an encoder gives none."""
        if self.encoder:
            raise LexrayError(f"--encoder has no effect here: {why}")

    def read(self, prompt: str) -> str | list[Message]:
        """The prompt as a model takes it: the text, or messages."""
        if self.system is not None and not self.chat:
            raise LexrayError("--system belongs to --chat")
        if not self.chat:
            return prompt
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, {"role": "user", "content": prompt}]


@dataclass(frozen=True)
class WordedRunOptions(RunOptions):
    """The same where what was run is read as words."""

    raw: Annotated[bool, option("Words by probability alone, the papers' way.", READING)] = False
    text: Annotated[
        Path | None,
        option(
            "Measure on this text what places usually carry; else on one that comes along.",
            READING,
            metavar="FILE",
        ),
    ] = None

    def open(self) -> Model:
        model = super().open()
        return model.view("raw") if self.raw else model

    def usual_text(self) -> str | None:
        """The text by which words are standardised, if one was given."""
        if self.text is None:
            return None
        if self.raw:
            raise LexrayError("--raw reads words by probability alone; leave --text out")
        from lexray.files import open_text

        with open_text(self.text) as stream:
            return stream.read()


@dataclass(frozen=True)
class TargetOptions:
    """Which token is looked for."""

    target: Annotated[
        str | None,
        option(
            'Its probability and rank are shown: " Tokyo", or as tables show it, ·Tokyo.', TARGET
        ),
    ] = None
    first: Annotated[bool, option("Of a word of several tokens, take the first.", TARGET)] = False


@dataclass(frozen=True)
class LensOptions:
    """Which vectors are read, and how."""

    of: Annotated[
        list[str] | None,
        option(
            "residual, pre, mid, post, attention, mlp, attn_in, mlp_in, heads, values, queries, "
            "keys or neurons; beside an encoder self, cross, cross_in or cross_heads; repeatable.",
            WHERE,
        ),
    ] = None
    layers: Annotated[str | None, option("Only these layers: 3, 20-29 or 0,5,-1.", WHERE)] = None
    positions: Annotated[str | None, option("Only these positions; -1 is the last.", WHERE)] = None
    heads: Annotated[
        str | None, option("With --of heads, values, queries or keys: only these heads.", WHERE)
    ] = None
    neurons: Annotated[
        int | None, option("With --of neurons: how many in each layer; else 10.", WHERE, min=1)
    ] = None
    query: Annotated[
        int | None, option("With --of keys: the position that looks at them; else the last.", WHERE)
    ] = None
    offset: Annotated[
        int | None,
        option(
            "Queries and keys of rotary models: how far the key is from the query; by default "
            "their actual distance.",
            READING,
        ),
    ] = None
    norm: Annotated[bool, option("With the final norm.", READING, "--norm/--no-norm")] = True
    transform: Annotated[
        bool, option("Through the LM head's non-linear transform (BERT and its kin).", READING)
    ] = False
    reading: Annotated[
        Literal["output", "input", "effective"] | None,
        option(
            "Which embedding reads queries and keys; else the effective one: what is seen.",
            READING,
        ),
    ] = None
    k: Annotated[int, option("How many tokens of each vector.", None, "-k", min=1)] = 5

    def look(
        self, run: WordedRunOptions, prompt: str, target: TargetOptions, tokens: TokenOptions
    ) -> Lens:
        from lexray.trace.read.vectors import choose_kinds, what_for

        kinds = choose_kinds(self.of or ["residual"])
        self.refuse_idle(kinds)
        layers = numbers("--layers", self.layers)
        model = run.open().view(reading=self.reading)
        trace = run.trace(model, prompt, layers=layers, what=what_for(kinds))
        return trace.lens(
            kinds,
            target=target.target,
            first=target.first,
            layers=layers,
            positions=numbers("--positions", self.positions),
            heads=numbers("--heads", self.heads),
            neurons=10 if self.neurons is None else self.neurons,
            query=-1 if self.query is None else self.query,
            offset=self.offset,
            k=self.k,
            norm=self.norm,
            transform=self.transform,
            filter=tokens.filter(),
            text=run.usual_text(),
        )

    def refuse_idle(self, kinds: tuple[str, ...]) -> None:
        """An option that would change nothing is a misunderstanding."""
        for name, parts in PARTS.items():
            if getattr(self, name[2:]) is not None and not set(parts) & set(kinds):
                raise LexrayError(
                    f"{name} has no effect on {', '.join(kinds)}; it is for "
                    f"--of {' or '.join(parts)}"
                )


def register(app: typer.Typer) -> None:
    for command in (lens, attention, contributions):
        app.command()(expand(command))


def lens(
    run: WordedRunOptions,
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
    result = which.look(run, prompt, target, tokens)
    plot.draw(result)
    output.show(result)


def attention(
    run: RunOptions,
    prompt: Prompt,
    tokens: TokenOptions,
    output: OutputOptions,
    layers: Annotated[str | None, option("Only these layers: 3, 20-29 or 0,5,-1.", WHERE)] = None,
    heads: Annotated[str | None, option("Only these heads.", WHERE)] = None,
    position: Annotated[int, option("Where heads are read as words; -1 is the last.", WHERE)] = -1,
    k: Annotated[int, option("How many words of each head.", None, "-k", min=1)] = 5,
    cross: Annotated[
        bool, option("Of an encoder–decoder: where the target looks in the source.", WHERE)
    ] = False,
) -> None:
    """Where every head looks over the prompt, and which words it moves.

    lexray attention smollm2 "The capital of Japan is the city of" -o attention.html

    lexray attention demo "She went to the" --layers 2 -o heads.svg
    """
    output.check()
    only = numbers("--layers", layers)
    what = ("residual", "attention", "heads")
    trace = run.trace(run.open(), prompt, layers=only, what=what)
    result = trace.attention(
        layers=only,
        heads=numbers("--heads", heads),
        position=position,
        k=k,
        filter=tokens.filter(),
        cross=cross,
    )
    output.show(result)


def contributions(
    run: WordedRunOptions,
    prompt: Prompt,
    output: OutputOptions,
    plot: PlotOptions,
    target: Annotated[
        str | None, option('Whose logit: " Tokyo"; by default the most probable token.', TARGET)
    ] = None,
    against: Annotated[
        str | None, option("Another token; the difference of the two logits.", TARGET)
    ] = None,
    first: Annotated[bool, option("Of a word of several tokens, take the first.", TARGET)] = False,
    position: Annotated[int, option("Which position; -1 is the last.", WHERE)] = -1,
    sources: Annotated[
        bool, option("Split each head by the positions it looked at.", WHERE)
    ] = False,
    limit: Annotated[
        int, option("How many components at either end.", None, "--limit", "-n", min=1)
    ] = 10,
) -> None:
    """What each head, neuron, bias and embedding added to a token's logit.

    lexray contributions smollm2 "The capital of Japan is the city of" --target " Tokyo"

    lexray contributions demo "She went to the" --sources -o parts.csv
    """
    plot.check()
    trace = run.trace(run.open(), prompt, positions=[position])
    result = trace.contributions(
        target,
        position,
        against=against,
        first=first,
        sources=sources,
        shown=limit,
        text=run.usual_text(),
    )
    plot.draw(result)
    output.show(result)
