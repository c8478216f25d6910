"""`lexray ablate`, `patch`, `steer` and `check`: change a run, and see what comes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.lens import TARGET, WHERE, Prompt, RunOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import numbers
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.edits.values import Edit
    from lexray.effects.effect import Effect
    from lexray.effects.knockout import Knockout
    from lexray.effects.removals import Effects
    from lexray.model.model import Model
    from lexray.trace.trace import Trace

HOW = "How it is changed"
PLACE = re.compile(r"(enc\.)?L\d", re.I)
EVERY = ("heads", "neurons", "layers", "attention", "mixers", "mlps", "positions")


def register(app: typer.Typer) -> None:
    for command in (ablate, patch, steer, check):
        app.command()(expand(command))


@dataclass(frozen=True)
class AimOptions:
    """What is looked at in the answer."""

    target: Annotated[
        str | None, option('Whose logit: " Tokyo"; by default the most probable token.', TARGET)
    ] = None
    against: Annotated[
        str | None, option("Another token; the difference of the two logits.", TARGET)
    ] = None
    first: Annotated[bool, option("Of a word of several tokens, take the first.", TARGET)] = False
    position: Annotated[int, option("Where it is predicted; -1 is the last.", TARGET)] = -1


@dataclass(frozen=True)
class AblateOptions:
    """What is put in the place of what is removed, and where."""

    to: Annotated[
        Literal["zero", "mean"],
        option("To zero, or to the mean over the prompt's other positions.", HOW),
    ] = "zero"
    layers: Annotated[str | None, option("Only those of these layers: 3, 20-29.", WHERE)] = None
    positions: Annotated[str | None, option("Removed only there; -1 is the last.", WHERE)] = None
    window: Annotated[
        int | None,
        option("With positions: attention to each is cut in so many layers around each.", HOW),
    ] = None
    cross: Annotated[
        bool, option("With --window: attention to each position of the source.", HOW)
    ] = False

    def every(self, trace: Trace, what: str, aim: AimOptions) -> Effects | Knockout:
        layers = numbers("--layers", self.layers)
        positions = numbers("--positions", self.positions)
        if self.cross and self.window is None:
            raise LexrayError("--cross belongs to --window: what is seen of the source is cut")
        if self.window is not None:
            from lexray.effects.knockout import knockout

            if what != "positions":
                raise LexrayError(f"--window is for positions, not for {what}")
            return knockout(
                trace,
                aim.target,
                aim.position,
                window=self.window,
                layers=layers,
                sources=positions,
                first=aim.first,
                cross=self.cross,
            )
        return trace.effects(
            what,
            aim.target,
            aim.position,
            against=aim.against,
            first=aim.first,
            layers=layers,
            positions=positions,
            to=self.to,
        )

    def removals(self, what: list[str]) -> list[Edit]:
        """Places as edits: L23H4, L29N50[-1]."""
        from lexray.edits import parse
        from lexray.edits.positions import Positions
        from lexray.edits.values import Ablate

        at = numbers("--positions", self.positions)
        edits: list[Edit] = []
        for text in what:
            if not PLACE.match(text):
                raise LexrayError(
                    f"{text!r} is no place in a model; name places such as L23H4, L23.mlp, "
                    f"L29N50[-1] or L12, or one of {', '.join(EVERY)}"
                )
            edit = parse(f"ablate {text}")
            assert isinstance(edit, Ablate)
            if at is not None and edit.positions != Positions():
                raise LexrayError(f"{text} says where, and so does --positions; choose one")
            if at is not None:
                edit = replace(edit, positions=Positions.of(at))
            edits.append(replace(edit, to=self.to) if self.to != "zero" else edit)
        return edits

    def together(self, trace: Trace, edits: list[Edit], aim: AimOptions) -> Effect:
        return trace.effect(edits, aim.target, aim.position, against=aim.against, first=aim.first)


def open_exact(run: RunOptions) -> Model:
    """In float32 unless another dtype is asked for: changes are small, and halves crawl on CPUs."""
    return replace(run, dtype=run.dtype or "float32").open()


def ablate(
    run: RunOptions,
    prompt: Prompt,
    how: AblateOptions,
    aim: AimOptions,
    plot: PlotOptions,
    output: OutputOptions,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Places that are removed together (L23H4, L23.mlp, L29N50[-1], L12), or one of "
            "heads, neurons, layers, attention, mlps, positions: each in turn. By default heads.",
        ),
    ] = None,
    limit: Annotated[
        int, option("How many lines, the largest changes first.", None, "--limit", "-n", min=1)
    ] = 15,
) -> None:
    """What the answer depends on: parts of the model removed, together or each in turn.

    lexray ablate smollm2 "The capital of Japan is the city of" --target " Tokyo"

    lexray ablate smollm2 "The capital of Japan is the city of" L23H4 L23H5 --target " Tokyo"

    lexray ablate smollm2 "The capital of Japan is the city of" positions --window 9
    """
    plot.check()
    output.check()
    run.refuse_encoder("name its parts, as in enc.L3H2")
    wanted = what or ["heads"]
    every = [name for name in wanted if name in EVERY]
    if every and len(wanted) > 1:
        raise LexrayError(f"{every[0]} are removed each in turn; name nothing else beside them")
    removals = [] if every else how.removals(wanted)
    if removals and plot.plot is not None:
        raise LexrayError("--plot is for maps: heads, neurons, layers, … each in turn")
    opened, text = open_exact(run), run.read(prompt)
    if removals:
        from lexray.effects.generate import Begun
        from lexray.trace.apply.resolve import refuse_misfits

        begun = Begun.of(opened, text, run.target_text, special=run.special)
        refuse_misfits(opened, removals, *begun.lengths)
    trace = run.trace(opened, prompt)
    if removals:
        output.show(how.together(trace, removals, aim))
        return
    result = how.every(trace, wanted[0], aim)
    plot.draw(result)
    output.show(result if how.window else replace(result, shown=limit))  # type: ignore[arg-type]


def patch(
    run: RunOptions,
    clean: Annotated[str, typer.Argument(metavar="CLEAN", help="A prompt, in quotes.")],
    corrupted: Annotated[
        str, typer.Argument(metavar="CORRUPTED", help="Another one of the same length.")
    ],
    aim: AimOptions,
    plot: PlotOptions,
    output: OutputOptions,
    of: Annotated[
        str,
        option(
            "residual, attention, mlp, heads or head-positions; of an encoder–decoder also cross, "
            "cross-heads or cross-head-positions.",
            HOW,
        ),
    ] = "residual",
    noising: Annotated[
        bool, option("Put the corrupted run into the clean one, not the reverse.", HOW)
    ] = False,
    layers: Annotated[str | None, option("Only these layers: 3, 20-29 or 0,5,-1.", WHERE)] = None,
    positions: Annotated[str | None, option("Only these positions.", WHERE)] = None,
    gradient: Annotated[
        bool, option("Also the gradient's estimate.", HOW, "--gradient/--no-gradient")
    ] = True,
) -> None:
    """Where two prompts differ in what makes the model answer differently.

    lexray patch smollm2 "When Mary and John went to the store, John gave a drink to" "When Mary
    and John went to the store, Mary gave a drink to" --of heads --target " Mary" --against " John"
    """
    plot.check()
    output.check()
    from lexray.effects.patching import patching

    model = open_exact(run)
    whole = replace(run, encoder=False)
    one, other = (whole.trace(model, text) for text in (clean, corrupted))
    result = patching(
        one,
        other,
        aim.target,
        aim.position,
        of=of.replace("-", " "),
        way="noising" if noising else "denoising",
        against=aim.against,
        first=aim.first,
        layers=numbers("--layers", layers),
        positions=numbers("--positions", positions),
        approximate=gradient,
        encoder=run.encoder,
    )
    plot.draw(result)
    output.show(result)


def steer(
    run: RunOptions,
    prompt: Prompt,
    output: OutputOptions,
    add: Annotated[
        list[str] | None,
        option(
            'A vector and where it is added: "8*L29N50.value@L29", "4*[\\" Paris\\"]@L12". '
            "Repeatable.",
            HOW,
            metavar="VECTOR@PLACE",
        ),
    ] = None,
    n: Annotated[int, option("How many new tokens.", None, "-n", min=1)] = 20,
) -> None:
    """Continues a prompt with and without a change, each token with both probabilities.

    lexray steer smollm2 "I think that" --add "8*L29N50.value@L29" -n 40

    lexray steer smollm2 "The capital of Japan is" --edits "ablate L23H4; ablate L23H5"
    """
    output.check()
    run.refuse_encoder("it is the decoder that continues; edits may name enc.L3H2")
    edits = [f"add {text}" for text in add or ()] + list(run.edits or ())
    if not edits:
        raise LexrayError('nothing is changed: give --add "8*L29N50.value@L29", or --edits')
    result = open_exact(run).generate(
        run.read(prompt), n, edits, special=run.special, target=run.target_text
    )
    output.show(result)


def check(
    run: RunOptions,
    address: Annotated[
        list[str], typer.Argument(metavar="ADDRESS", help="Neurons and heads: L26N777, L25H1.")
    ],
    output: OutputOptions,
    text: Annotated[
        Path | None, option("Run this text; else one that comes along.", None, metavar="FILE")
    ] = None,
    prompt: Annotated[
        list[str] | None, option("Run this prompt instead of a text. Repeatable.", None)
    ] = None,
    amplify: Annotated[bool, option("Double the parameter, not remove it.", HOW)] = False,
    places: Annotated[int, option("At how many places each is changed.", None, min=1)] = 4,
    others: Annotated[int, option("How many others of its layer to compare.", None, min=0)] = 8,
    k: Annotated[int, option("How many tokens that move most.", None, "-k", min=1)] = 20,
) -> None:
    """Does a parameter's reading predict what moves when it is removed?

    lexray check smollm2 L26N777 L25H1
    """
    output.check()
    from lexray.studies.shared.text import own_text

    run.refuse_encoder("it is the answer that is looked at")
    if run.edits:
        raise LexrayError("--edits has no effect here; what is changed is the parameter itself")
    given: str | list[str] = prompt or _read(text) or own_text()
    how = "amplify" if amplify else "remove"
    model = open_exact(run)
    output.show(model.check(address, given, k=k, how=how, places=places, others=others))


def _read(path: Path | None) -> str | None:
    from lexray.files import open_text

    if path is None:
        return None
    with open_text(path) as stream:
        return stream.read()
