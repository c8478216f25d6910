"""`lexray align`: two models that share a vocabulary, layer by layer, or a single parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from lexray.cli.groups import expand, option
from lexray.cli.options import Among, CircuitOptions, TokenOptions
from lexray.cli.other import OtherOptions
from lexray.cli.output import OutputOptions
from lexray.cli.parse import names, numbers
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

LAYERS, ONE = "Whole layers", "One head, neuron or subhead"
PARTNERS = 10
"""How many partners, and how many tokens of each, unless said otherwise."""


@dataclass(frozen=True)
class LayerOptions:
    """What is aligned, where whole layers are."""

    among: Among = None
    control: Annotated[
        bool,
        option(
            "Also without projecting, where the models have the same width.",
            LAYERS,
            "--control/--no-control",
        ),
    ] = True


@dataclass(frozen=True)
class PartnerOptions:
    """Whose partners are sought, and how."""

    of: Annotated[
        str | None,
        option(
            "Its best partners in OTHER instead: L3H2, L3H2.VO, L2N17, L2N17.value, L3H2.V12.",
            ONE,
            metavar="ADDRESS",
        ),
    ] = None
    one_to_one: Annotated[
        bool,
        option("Per layer of OTHER, the partner under the best matching of whole layers.", ONE),
    ] = False
    layers: Annotated[
        str | None, option("Only in these layers of OTHER: 3, 20-25 or 0,5,-1.", ONE)
    ] = None
    limit: Annotated[int, option("How many partners.", ONE, "--limit", "-n", min=1)] = PARTNERS
    k: Annotated[int, option("How many tokens of each.", ONE, "-k", min=1)] = PARTNERS

    def check(self, layers: LayerOptions, plot: PlotOptions) -> None:
        """That options for a parameter and for layers are not mixed."""
        ours = {
            "--one-to-one": self.one_to_one,
            "--layers": self.layers,
            "--limit": self.limit != PARTNERS,
            "-k": self.k != PARTNERS,
        }
        theirs = {
            "--plot": plot.plot,
            "--among": layers.among,
            "--no-control": not layers.control,
        }
        if self.of is None and (given := [name for name, value in ours.items() if value]):
            raise LexrayError(f"{', '.join(given)} needs a head or neuron; say which with --of")
        if self.of is not None and (given := [name for name, value in theirs.items() if value]):
            raise LexrayError(f"{', '.join(given)} is for whole layers, not with --of {self.of}")


def register(app: typer.Typer) -> None:
    app.command()(expand(align))


def align(
    model: CircuitOptions,
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The model to compare with: a path, Hub id or name."),
    ],
    options: OtherOptions,
    layers: LayerOptions,
    partner: PartnerOptions,
    plot: PlotOptions,
    words: TokenOptions,
    output: OutputOptions,
) -> None:
    """Which layer of another model does what, by way of the vocabulary that both share.

    lexray align demo demo-b --plot heat-maps.html

    lexray align demo demo-b --of L2N17.value
    """
    partner.check(layers, plot)
    plot.check()
    filter = words.filter()
    a = model.open() if model.unsaid else model.open_as_papers_do()
    b = options.open(other, model, a)
    if partner.of is not None:
        from lexray.compare.align.partners import partners

        result = partners(
            a,
            partner.of,
            b,
            partner.limit,
            one_to_one=partner.one_to_one,
            layers=numbers("--layers", partner.layers),
            tokens=partner.k,
            filter=filter,
        )
        output.show(result)
        return
    from lexray.compare.align.align import align

    aligned = align(a, b, names(layers.among) or None, control=layers.control, filter=filter)
    plot.draw(aligned)
    output.show(aligned)
