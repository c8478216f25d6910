"""`lexray stitch`: the first layers of one model, the last of a fine-tuned other, measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import MODEL, PlacedOptions
from lexray.cli.other import OtherOptions
from lexray.cli.output import OUTPUT, OutputOptions
from lexray.cli.parse import names
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.compare.stitch.recipe import Recipe
    from lexray.compare.stitch.sweep import Example, Sweep
    from lexray.model.model import Model

DATA = "The labelled texts"


def register(app: typer.Typer) -> None:
    app.command()(expand(stitch))


@dataclass(frozen=True)
class StitchOptions(PlacedOptions):
    """A, and where both models run."""

    dtype: Annotated[
        str | None,
        option(
            "Compute in this dtype; by default float32 on a CPU, else the checkpoint's own.", MODEL
        ),
    ] = None

    def open(self) -> Model:
        return self._open(device=self.device, dtype=self.dtype or self._usual)

    @property
    def _usual(self) -> str | None:
        return "float32" if self.device == "cpu" else None


@dataclass(frozen=True)
class DataOptions:
    """What accuracy is measured on."""

    data: Annotated[
        Path | None,
        option('A .jsonl file, perhaps .gz, of {"text": …, "label": …}.', DATA, metavar="FILE"),
    ] = None
    sample: Annotated[int, option("A random sample of so many texts.", DATA, min=1)] = 500
    seed: Annotated[int, option("Of the sample.", DATA)] = 0
    batch: Annotated[int, option("Texts at once.", DATA, min=1)] = 16
    max_tokens: Annotated[
        int | None,
        option(
            "The first tokens of each text; by default as many as both models take.", DATA, min=1
        ),
    ] = None

    def read(self) -> list[Example]:
        from lexray.compare.stitch.sweep import read_examples

        if self.data is None:
            raise LexrayError("accuracy is measured on labelled texts: --data FILE.jsonl")
        return read_examples(self.data, self.sample, self.seed)


def stitch(
    model: StitchOptions,
    tuned: Annotated[
        list[str],
        typer.Argument(metavar="TUNED…", help="Fine-tuned classifiers with the same vocabulary."),
    ],
    other: OtherOptions,
    texts: DataOptions,
    plot: PlotOptions,
    output: OutputOptions,
    last: Annotated[int, option("How many last layers of TUNED run.", min=1)] = 3,
    after: Annotated[int | None, option("Leave MODEL after this layer.", min=0)] = None,
    sweep: Annotated[bool, option("After every layer in turn.")] = False,
    variants: Annotated[
        list[str] | None,
        option(
            "How states are carried over: vocabulary (by default: a map fitted on every token's "
            "states in both models; +frequencies=predicted|counted weighs tokens), or from the "
            "embeddings: pinv (the paper's), whitened, orthogonal, regression or transpose, with "
            "+b_positions, +centred, +folded, +ridge=…, +embedding=input. Both with +a_norm, "
            "+final_norm=…, +match=scale|token|moments. Or all. Repeatable.",
            metavar="VARIANT",
        ),
    ] = None,
    save: Annotated[
        Path | None, option("With --after: keep the stitched model.", OUTPUT, metavar="DIR")
    ] = None,
) -> None:
    """A classifier without training: MODEL's first layers, then TUNED's last ones.

    lexray stitch demo-wide demo-sentiment --last 2 --sweep --data reviews.jsonl
    lexray stitch demo-wide demo-sentiment --last 2 --after 2 --data reviews.jsonl \
        --variants vocabulary,pinv
    """
    if sweep == (after is not None):
        raise LexrayError("say after which layer to leave the model: --after N, or --sweep for all")
    plot.check()
    output.check()
    recipes = _recipes(variants or ["vocabulary"])
    a = model.open()
    others = [other.open(source, model, a) for source in tuned]
    if save is not None:
        _save(a, others, after, last, recipes, texts, save)
    if save is None or texts.data is not None:
        result = _measure(a, others, texts, last, None if after is None else [after], recipes)
        plot.draw(result)
        output.show(result)


def _recipes(variants: list[str]) -> list[Recipe]:
    from lexray.compare.stitch.recipe import Recipe
    from lexray.compare.stitch.sweep import VARIANTS

    listed = [name for one in names(variants) for name in (VARIANTS if one == "all" else (one,))]
    return [Recipe.parse(name) for name in dict.fromkeys(listed)]


def _measure(
    a: Model,
    others: list[Model],
    texts: DataOptions,
    last: int,
    after: list[int] | None,
    recipes: list[Recipe],
) -> Sweep:
    from lexray.compare.stitch.sweep import sweep

    return sweep(
        a,
        others,
        texts.read(),
        last=last,
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
    last: int,
    recipes: list[Recipe],
    texts: DataOptions,
    folder: Path,
) -> None:
    from lexray.compare.stitch.stitch import stitch
    from lexray.compare.stitch.sweep import CALIBRATION

    if after is None or len(others) != 1 or len(recipes) != 1:
        raise LexrayError("--save keeps one stitched model: one TUNED, one variant, --after N")
    needed = recipes[0].needs_texts
    calibrate = [e.text for e in texts.read()[:CALIBRATION]] if needed else []
    options = vars(recipes[0])
    stitch(a, others[0], after=after, last=last, calibrate=calibrate, **options).save_pretrained(
        folder
    )
