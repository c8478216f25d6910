"""`lexray align`: two models that share a vocabulary, layer by layer, or a single parameter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from lexray.cli.groups import expanded
from lexray.cli.options import MODEL, CircuitOptions, OutputOptions, TokenOptions
from lexray.cli.plotting import PlotOptions
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model.model import Model

LAYERS, ONE = "Whole layers", "One head, neuron or subhead"
PARTNERS = 10
"""How many partners, and how many tokens of each, unless said otherwise."""


@dataclass(frozen=True)
class OtherOptions:
    """Which model it is compared with; it is read as the first one is."""

    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The model to compare with: a path, Hub id or name."),
    ]
    other_revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of OTHER.", rich_help_panel=MODEL)
    ] = None
    other_adapter: Annotated[
        str | None, typer.Option(help="A LoRA adapter on top of OTHER.", rich_help_panel=MODEL)
    ] = None
    other_family: Annotated[
        str | None,
        typer.Option(help="Read OTHER by the rules of this family.", rich_help_panel=MODEL),
    ] = None

    def open(self, like: CircuitOptions) -> Model:
        options = replace(
            like,
            model=self.other,
            revision=self.other_revision,
            adapter=self.other_adapter,
            family=self.other_family,
        )
        return options.open()


@dataclass(frozen=True)
class LayerOptions:
    """What is aligned, where whole layers are."""

    group: Annotated[
        list[str] | None,
        typer.Option(
            help="Only keys, gates, values, Q, K, V or O; repeatable, all of them by default.",
            rich_help_panel=LAYERS,
        ),
    ] = None
    control: Annotated[
        bool,
        typer.Option(
            "--control/--no-control",
            help="Also without projecting, where the models have the same width.",
            rich_help_panel=LAYERS,
        ),
    ] = True


@dataclass(frozen=True)
class PartnerOptions:
    """Whose partners are sought, and how."""

    of: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Its best partners in OTHER instead: L3H2, L3H2.VO, L2N17, L2N17.value, L3H2.V12.",
            rich_help_panel=ONE,
        ),
    ] = None
    one_to_one: Annotated[
        bool,
        typer.Option(
            "--one-to-one",
            help="Per layer of OTHER, the partner under the best matching of whole layers.",
            rich_help_panel=ONE,
        ),
    ] = False
    layer: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only in this layer of OTHER; repeatable.", rich_help_panel=ONE),
    ] = None
    n: Annotated[int, typer.Option("-n", min=1, help="How many partners.", rich_help_panel=ONE)] = (
        PARTNERS
    )
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, help="How many tokens of each.", rich_help_panel=ONE)
    ] = PARTNERS

    def check(self, layers: LayerOptions, plot: PlotOptions) -> None:
        """That options for a parameter and for layers are not mixed."""
        ours = {
            "--one-to-one": self.one_to_one,
            "--layer": self.layer,
            "-n": self.n != PARTNERS,
            "--tokens": self.tokens != PARTNERS,
        }
        theirs = {
            "--plot": plot.plot,
            "--group": layers.group,
            "--no-control": not layers.control,
        }
        if self.of is None and (given := [name for name, value in ours.items() if value]):
            raise LexrayError(f"{', '.join(given)} needs a head or neuron; say which with --of")
        if self.of is not None and (given := [name for name, value in theirs.items() if value]):
            raise LexrayError(f"{', '.join(given)} is for whole layers, not with --of {self.of}")


def register(app: typer.Typer) -> None:
    app.command()(expanded(align))


def align(
    model: CircuitOptions,
    other: OtherOptions,
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
    a = model.open()
    b = other.open(model)
    if partner.of is not None:
        from lexray.compare.align.partners import partners

        found = partners(
            a,
            partner.of,
            b,
            partner.n,
            one_to_one=partner.one_to_one,
            layers=partner.layer,
            tokens=partner.tokens,
            filter=filter,
        )
        output.show(found)
        return
    from lexray.compare.align.align import align

    aligned = align(a, b, layers.group, control=layers.control, filter=filter)
    plot.draw(aligned)
    output.show(aligned)
