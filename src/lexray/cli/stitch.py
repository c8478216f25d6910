"""`lexray stitch`: the first layers of one model, the last of a fine-tuned other, measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import MODEL, OUTPUT, OutputOptions, PlacedOptions, open_model
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.compare.stitch.stitch import Recipe
    from lexray.compare.stitch.sweep import Example, Sweep
    from lexray.model.model import Model

DATA = "The labelled texts"


def register(app: typer.Typer) -> None:
    app.command()(expanded(stitch))


@dataclass(frozen=True)
class RunOptions(PlacedOptions):
    """A, and where both models run."""

    dtype: Annotated[
        str | None,
        typer.Option(
            help="Compute in this dtype; by default float32 on a CPU, else the checkpoint's own.",
            rich_help_panel=MODEL,
        ),
    ] = None

    def open(self) -> Model:
        return self._opened(device=self.device, dtype=self.chosen)

    def open_tuned(self, source: str) -> Model:
        return open_model(source, device=self.device, dtype=self.chosen)

    @property
    def chosen(self) -> str | None:
        return self.dtype or ("float32" if self.device == "cpu" else None)


@dataclass(frozen=True)
class DataOptions:
    """What accuracy is measured on."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='A .jsonl file, perhaps .gz, of {"text": …, "label": …}.',
            rich_help_panel=DATA,
        ),
    ] = None
    limit: Annotated[
        int, typer.Option(min=1, help="A random sample of so many texts.", rich_help_panel=DATA)
    ] = 500
    seed: Annotated[int, typer.Option(help="Of the sample.", rich_help_panel=DATA)] = 0
    batch: Annotated[int, typer.Option(min=1, help="Texts at once.", rich_help_panel=DATA)] = 16
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The first tokens of each text; by default as many as both models take.",
            rich_help_panel=DATA,
        ),
    ] = None

    def read(self) -> list[Example]:
        from lexray.compare.stitch.sweep import read_examples

        if self.data is None:
            raise LexrayError("accuracy is measured on labelled texts: --data FILE.jsonl")
        return read_examples(self.data, self.limit, self.seed)


def stitch(
    model: RunOptions,
    tuned: Annotated[
        list[str],
        typer.Argument(metavar="TUNED…", help="Fine-tuned classifiers with the same vocabulary."),
    ],
    texts: DataOptions,
    plot: PlotOptions,
    output: OutputOptions,
    layers: Annotated[int, typer.Option(min=1, help="How many last layers of TUNED run.")] = 3,
    after: Annotated[int | None, typer.Option(min=0, help="Leave MODEL after this layer.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="After every layer in turn.")] = False,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variants",
            metavar="VARIANT",
            help="How states are carried over: pinv (the paper's), whitened, orthogonal, "
            "regression or transpose, with +a_norm, +b_positions, +centred, +folded, +ridge=…, "
            "+final_norm=…, +embedding=input, +match=scale|token|moments; or all. Repeatable.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --after: keep the stitched model.", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """A classifier without training: MODEL's first layers, then TUNED's last ones.

    lexray stitch demo-wide demo-sentiment --layers 2 --sweep --data reviews.jsonl
    """
    if sweep == (after is not None):
        raise LexrayError("say after which layer to leave the model: --after N, or --sweep for all")
    plot.check()
    if output.output is not None and not output.output.parent.is_dir():
        raise LexrayError(f"cannot write {output.output}: there is no folder for it")
    recipes = _recipes(variants or ["pinv"])
    a, others = model.open(), [model.open_tuned(source) for source in tuned]
    if save is not None:
        _save(a, others, after, layers, recipes, texts, save)
    if save is None or texts.data is not None:
        found = _measured(a, others, texts, layers, None if after is None else [after], recipes)
        plot.draw(found)
        output.show(found)


def _recipes(variants: list[str]) -> list[Recipe]:
    from lexray.compare.stitch.stitch import Recipe
    from lexray.compare.stitch.sweep import VARIANTS

    named = [name for one in variants for name in one.split(",")]
    listed = [name for one in named for name in (VARIANTS if one == "all" else (one,))]
    return [Recipe.parse(name) for name in dict.fromkeys(listed)]


def _measured(
    a: Model,
    others: list[Model],
    texts: DataOptions,
    layers: int,
    after: list[int] | None,
    recipes: list[Recipe],
) -> Sweep:
    from lexray.compare.stitch.sweep import sweep

    return sweep(
        a,
        others,
        texts.read(),
        layers=layers,
        recipes=recipes,
        after=after,
        batch=texts.batch,
        max_tokens=texts.max_tokens,
        data=str(texts.data),
    )


def _save(
    a: Model,
    others: list[Model],
    after: int | None,
    layers: int,
    recipes: list[Recipe],
    texts: DataOptions,
    folder: Path,
) -> None:
    from lexray.compare.stitch.stitch import stitch
    from lexray.compare.stitch.sweep import CALIBRATION

    if after is None or len(others) != 1 or len(recipes) != 1:
        raise LexrayError("--save keeps one stitched model: one TUNED, one variant, --after N")
    needed = recipes[0].match != "none"
    calibrate = [e.text for e in texts.read()[:CALIBRATION]] if needed else []
    options = vars(recipes[0])
    stitch(
        a, others[0], after=after, layers=layers, calibrate=calibrate, **options
    ).save_pretrained(folder)
