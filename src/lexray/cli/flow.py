"""`lexray flow`: one forward pass as a graph of words."""

from __future__ import annotations

import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.cli.groups import expanded
from lexray.cli.lens import TARGET, WHERE, Prompt, RunOptions, numbers
from lexray.cli.options import OUTPUT, READING, Format, OutputOptions, TokenOptions, show
from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.flow.graph import FlowGraph
    from lexray.model.model import Model
    from lexray.trace.trace import Trace

SHOWN, COMPARE = "What is shown", "Two runs"
PICTURES = (".html", ".htm", ".svg", ".png", ".json")
WHOLE = (Format.JSON, Format.HTML)
"""Formats that show the graph, not its summary."""
STREAM_ALONE = {"heads": 0, "memories": 0, "neurons": (0, 0), "keep": None, "static": False}
"""All that the summary needs to be read."""


@dataclass(frozen=True)
class WhereOptions:
    """Which part of the pass."""

    layers: Annotated[
        str | None,
        typer.Option(help="Only these blocks: 3, 20-25 or 0,5,-1.", rich_help_panel=WHERE),
    ] = None
    position: Annotated[
        int, typer.Option(help="Whose flow is drawn; -1 is the last.", rich_help_panel=WHERE)
    ] = -1


@dataclass(frozen=True)
class WordOptions:
    """Which token the graph looks for."""

    target: Annotated[
        str | None,
        typer.Option(
            help='The token that colours nodes: " Tokyo"; by default the model\'s own prediction.',
            rich_help_panel=TARGET,
        ),
    ] = None
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            help="Another token that can become the target in the page. Repeatable.",
            rich_help_panel=TARGET,
        ),
    ] = None


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of each block: the fields of `lexray.flow.options.Options`."""

    heads: Annotated[
        int | None,
        typer.Option(
            min=0, help="How many heads; 10 unless --keep decides.", rich_help_panel=SHOWN
        ),
    ] = None
    memories: Annotated[
        int | None,
        typer.Option(min=0, help="Keys and values per head; else 2.", rich_help_panel=SHOWN),
    ] = None
    neurons: Annotated[
        str | None,
        typer.Option(
            help="Neurons: the largest and the most negative ones; else 18,7.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    by: Annotated[
        Literal["signed", "absolute"],
        typer.Option(
            help="Rank neurons by coefficient times norm, or by |coefficient| as in the paper.",
            rich_help_panel=SHOWN,
        ),
    ] = "signed"
    keep: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Show the fewest parts that carry this share of each sum.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    keep_by: Annotated[
        Literal["sum", "target"],
        typer.Option(
            help="With --keep: the share of the sum itself, or of the target's logit.",
            rich_help_panel=SHOWN,
        ),
    ] = "sum"
    merge_qk: Annotated[
        bool,
        typer.Option("--merge-qk", help="Values without queries and keys.", rich_help_panel=SHOWN),
    ] = False
    merge_neurons: Annotated[
        bool,
        typer.Option("--merge-neurons", help="Neurons without keys.", rich_help_panel=SHOWN),
    ] = False
    norm: Annotated[
        bool,
        typer.Option("--norm/--no-norm", help="Read with the norms in.", rich_help_panel=READING),
    ] = True
    rotary: Annotated[
        bool,
        typer.Option(
            "--rotary/--no-rotary",
            help="Queries and keys at their actual distance, or at distance 0.",
            rich_help_panel=READING,
        ),
    ] = True
    transform: Annotated[
        bool,
        typer.Option(
            "--transform",
            help="The stream through the LM head's non-linear transform (BERT and its kin).",
            rich_help_panel=READING,
        ),
    ] = False
    static: Annotated[
        bool | None,
        typer.Option(
            "--static/--no-static",
            help="Also read the parameters behind nodes by themselves; by default of few blocks.",
            rich_help_panel=READING,
        ),
    ] = None
    k: Annotated[int, typer.Option("-k", min=1, help="How many tokens of each node.")] = 10

    def options(self) -> dict[str, Any]:
        return vars(self) | {"neurons": _pair(self.neurons)}


def _pair(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.replace(" ", "").split(",")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise LexrayError(f"--neurons {text!r} is no pair of numbers such as 18,7")
    return int(parts[0]), int(parts[1])


@dataclass(frozen=True)
class OtherOptions:
    """The run to compare with."""

    compare: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPT", help="Another prompt: a difference graph.", rich_help_panel=COMPARE
        ),
    ] = None
    compare_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Another model with the same tokens: a difference graph.",
            rich_help_panel=COMPARE,
        ),
    ] = None


@dataclass(frozen=True)
class PictureOptions:
    """How the graph is drawn."""

    open: Annotated[
        bool,
        typer.Option("--open", help="Show the page in the browser.", rich_help_panel=OUTPUT),
    ] = False
    open_layers: Annotated[
        str | None,
        typer.Option(help="SVG, PNG: the blocks that are drawn open.", rich_help_panel=OUTPUT),
    ] = None
    dark: Annotated[
        bool, typer.Option("--dark", help="SVG, PNG: light on dark.", rich_help_panel=OUTPUT)
    ] = False
    palette: Annotated[
        Literal["paper", "colour-blind"],
        typer.Option(help="SVG, PNG: the colours.", rich_help_panel=OUTPUT),
    ] = "paper"

    def write(self, graph: FlowGraph, path: Path) -> None:
        style: dict[str, Any] = {
            "open_layers": numbers("--open-layers", self.open_layers),
            "dark": self.dark,
            "palette": self.palette,
        }
        match path.suffix.lower():
            case ".svg":
                graph.to_svg(path, **style)
            case ".png":
                graph.to_png(path, **style)
            case ".json":
                from lexray.cli.options import write_file

                write_file(path, graph.to_json() + "\n")
            case _:
                graph.to_html(path)

    def show(self, graph: FlowGraph, path: Path | None) -> None:
        """Opens the page: the one that was written, or one in the folder for temporary files."""
        if path is None or path.suffix.lower() not in (".html", ".htm"):
            path = Path(tempfile.mkdtemp(prefix="lexray-")) / "flow.html"
            graph.to_html(path)
        webbrowser.open(path.resolve().as_uri())


def register(app: typer.Typer) -> None:
    app.command()(expanded(flow))


def flow(
    run: RunOptions,
    prompt: Prompt,
    where: WhereOptions,
    words: WordOptions,
    shown: ShownOptions,
    tokens: TokenOptions,
    other: OtherOptions,
    picture: PictureOptions,
    output: OutputOptions,
) -> None:
    """What flows through a model at one position, as a graph of words.

    Without -o, the target's way along the stream and what moved it most; with -o flow.html, .svg,
    .png or .json the graph itself.

    lexray flow smollm2 "The capital of Japan is the city of" --layers 20-25 --target " Tokyo" -o
    flow.html

    lexray flow smollm2 "The capital of Japan is" --compare "The capital of France is" --open
    """
    path = output.output
    if path is not None and not path.parent.is_dir():
        raise LexrayError(f"cannot write {path}: there is no folder {path.parent}")
    options: dict[str, Any] = {
        "layers": numbers("--layers", where.layers),
        "position": where.position,
        "target": words.target,
        "candidates": words.candidate or [],
        **shown.options(),
        "filter": tokens.filter(),
    }
    drawn = path is not None and path.suffix.lower() in PICTURES and output.format is None
    printed = not drawn and (path is not None or not picture.open)
    if printed and output.format not in WHOLE and not picture.open:
        options |= STREAM_ALONE
    traces = _traces(run, prompt, where, other)
    graph = _graph(traces, options)
    if path is not None and drawn:
        picture.write(graph, path)
    elif printed:
        _print(traces[0], graph, output)
    if picture.open:
        picture.show(graph, path)


def _traces(run: RunOptions, prompt: str, where: WhereOptions, other: OtherOptions) -> list[Trace]:
    """One or two runs."""
    model = run.open()
    found = [_traced(model, prompt, where, run.special)]
    if other.compare is not None or other.compare_model is not None:
        second = model
        if other.compare_model is not None:
            from lexray.cli.options import open_model

            second = open_model(other.compare_model, device=run.device, dtype=run.dtype)
        text = prompt if other.compare is None else other.compare
        found.append(_traced(second, text, where, run.special))
    return found


def _traced(model: Model, prompt: str, where: WhereOptions, special: bool) -> Trace:
    """A run of which only what the graph needs is kept: one position, with all keys and values."""
    from lexray.trace.record.plan import chosen

    asked = numbers("--layers", where.layers)
    layers = chosen(asked, model.n_layers, "layer")
    blocks = model.architecture.blocks
    if any(part.sum_norm for block in blocks for part in (block.attention, block.ff)):
        layers = tuple(range(min(layers), model.n_layers))
    return model.trace(prompt, layers=layers, positions=[where.position], special=special)


def _graph(traces: list[Trace], options: dict[str, Any]) -> FlowGraph:
    if len(traces) == 1:
        return traces[0].flow(**options)
    from lexray.flow.compare import compare

    return compare(*traces, **options)


def _print(trace: Trace, graph: FlowGraph, output: OutputOptions) -> None:
    from lexray.flow.summary import summarise

    if output.format in WHOLE:
        show(graph, output.format, output.output)
    else:
        show(summarise(trace, graph), output.format, output.output)
