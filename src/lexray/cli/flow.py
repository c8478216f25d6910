"""`lexray flow`: one forward pass as a graph of words."""

from __future__ import annotations

import tempfile
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lexray.cli.groups import expand, option
from lexray.cli.lens import TARGET, WHERE, Prompt, RunOptions, WordedRunOptions
from lexray.cli.options import READING, TokenOptions
from lexray.cli.other import OtherOptions
from lexray.cli.output import OUTPUT, Format, OutputOptions, show
from lexray.cli.parse import numbers
from lexray.cli.streams import tell
from lexray.errors import LexrayError
from lexray.files import write_whole

if TYPE_CHECKING:
    from lexray.flow.flow import Flow
    from lexray.model.model import Model
    from lexray.trace.trace import Trace

SHOWN, COMPARE = "What is shown", "Two runs"
PICTURES = (".html", ".htm", ".svg", ".png", ".pdf", ".json")
IMAGES = (".svg", ".png", ".pdf")
ATTRIBUTION = ".attribution.json"
"""What circuit-tracer's viewer and Neuronpedia read."""
WHOLE = (Format.JSON, Format.HTML)
"""Formats that show the graph, not its summary."""
REFUSED = (".jpg", ".jpeg", ".webp", ".gif", ".eps")
SPOKEN = {"merge_qk": True, "neurons": (0, 0), "keep": None, "static": False}
"""All that the summary and its caption need to be read: the stream, the heads, where they look."""


@dataclass(frozen=True)
class WhereOptions:
    """Which part of the pass."""

    layers: Annotated[str | None, option("Only these blocks: 3, 20-25 or 0,5,-1.", WHERE)] = None
    position: Annotated[int, option("Whose flow is drawn; -1 is the last.", WHERE)] = -1


@dataclass(frozen=True)
class WordOptions:
    """Which token the graph looks for."""

    target: Annotated[
        str | None,
        option(
            'The token that colours nodes: " Tokyo"; by default the model\'s own prediction.',
            TARGET,
        ),
    ] = None
    candidate: Annotated[
        list[str] | None,
        option("Another token that can become the target in the page. Repeatable.", TARGET),
    ] = None


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of each block: the fields of `lexray.flow.options.Options`."""

    heads: Annotated[
        int | None, option("How many heads; 10 unless --keep decides.", SHOWN, min=0)
    ] = None
    memories: Annotated[int | None, option("Keys and values per head; else 2.", SHOWN, min=0)] = (
        None
    )
    neurons: Annotated[
        str | None, option("Neurons: the largest and the most negative ones; else 18,7.", SHOWN)
    ] = None
    by: Annotated[
        Literal["signed", "absolute"],
        option(
            "Rank neurons by coefficient times norm, or by |coefficient| as in the paper.", SHOWN
        ),
    ] = "signed"
    keep: Annotated[
        float | None,
        option("Show the fewest parts that carry this share of each sum.", SHOWN, min=0.0, max=1.0),
    ] = None
    keep_by: Annotated[
        Literal["sum", "target"],
        option("With --keep: the share of the sum itself, or of the target's logit.", SHOWN),
    ] = "sum"
    merge_qk: Annotated[bool, option("Values without queries and keys.", SHOWN)] = False
    merge_neurons: Annotated[bool, option("Neurons without keys.", SHOWN)] = False
    norm: Annotated[bool, option("Read with the norms in.", READING, "--norm/--no-norm")] = True
    rotary: Annotated[
        bool,
        option(
            "Queries and keys at their actual distance, or at distance 0.",
            READING,
            "--rotary/--no-rotary",
        ),
    ] = True
    transform: Annotated[
        bool,
        option(
            "The stream through the LM head's non-linear transform (BERT and its kin).", READING
        ),
    ] = False
    static: Annotated[
        bool | None,
        option(
            "Also read the parameters behind nodes by themselves; by default of few blocks.",
            READING,
            "--static/--no-static",
        ),
    ] = None
    k: Annotated[int, option("How many tokens of each node.", None, "-k", min=1)] = 10

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
class SecondOptions(OtherOptions):
    """The run to compare with: another prompt, another model, or both; never edited."""

    compare: Annotated[
        str | None, option("Another prompt: a difference graph.", COMPARE, metavar="PROMPT")
    ] = None
    other: Annotated[
        str | None,
        option("Another model with the same tokens: a difference graph.", COMPARE, metavar="MODEL"),
    ] = None


@dataclass(frozen=True)
class PictureOptions:
    """How the graph is drawn."""

    open: Annotated[bool, option("Show the page in the browser.", OUTPUT)] = False
    paper: Annotated[
        bool,
        option("SVG, PDF, PNG: one column for print, the few parts that carry most.", OUTPUT),
    ] = False
    pin: Annotated[
        list[str] | None,
        option(
            "With --paper: show these parts, L23H4, or several together, L23H4,L23H5, or under a "
            "name, NAME=L23H4,L23H5. Repeatable.",
            OUTPUT,
        ),
    ] = None
    open_layers: Annotated[
        str | None, option("SVG, PDF, PNG: the blocks that are drawn open.", OUTPUT)
    ] = None
    dark: Annotated[bool, option("SVG, PDF, PNG: light on dark.", OUTPUT)] = False
    palette: Annotated[
        Literal["paper", "colour-blind"], option("SVG, PDF, PNG: the colours.", OUTPUT)
    ] = "paper"

    def check(self, path: Path | None) -> None:
        if self.paper and (path is None or path.suffix.lower() not in IMAGES):
            raise LexrayError("--paper draws a picture: add -o flow.svg, flow.pdf or flow.png")
        if self.pin and not (self.paper or (path and path.suffix.lower() == ".json")):
            raise LexrayError("--pin chooses what --paper shows (or what a .json keeps): add it")

    def with_pins(self, graph: Flow) -> Flow:
        """The graph with the parts that are asked for pinned."""
        single: list[list[str]] = []
        named: dict[str, list[str]] = {}
        for text in self.pin or ():
            name, equals, parts = text.rpartition("=")
            listed = [part.strip() for part in parts.split(",") if part.strip()]
            if equals and name:
                named[name] = listed
            else:
                single.append(listed)
        return graph.pin(*single, **named) if self.pin else graph

    def write(self, graph: Flow, path: Path) -> None:
        style: dict[str, Any] = {
            "open_layers": numbers("--open-layers", self.open_layers),
            "dark": self.dark,
            "palette": self.palette,
            "paper": self.paper,
        }
        match path.suffix.lower():
            case ".svg":
                graph.to_svg(path, **style)
            case ".png":
                graph.to_png(path, **style)
            case ".pdf":
                graph.to_pdf(path, **style)
            case ".json" if path.name.lower().endswith(ATTRIBUTION):
                write_whole(path, graph.to_attribution().to_json() + "\n")
            case ".json":
                write_whole(path, graph.to_json() + "\n")
            case _:
                graph.to_html(path)

    def show(self, graph: Flow, path: Path | None) -> None:
        """Opens the page: the one that was written, or one in the folder for temporary files."""
        if path is None or path.suffix.lower() not in (".html", ".htm"):
            path = Path(tempfile.mkdtemp(prefix="lexray-")) / "flow.html"
            graph.to_html(path)
        webbrowser.open(path.resolve().as_uri())


def register(app: typer.Typer) -> None:
    app.command()(expand(flow))


def flow(
    run: WordedRunOptions,
    prompt: Prompt,
    where: WhereOptions,
    words: WordOptions,
    shown: ShownOptions,
    tokens: TokenOptions,
    second: SecondOptions,
    picture: PictureOptions,
    output: OutputOptions,
) -> None:
    """What flows through a model at one position, as a graph of words.

    Without -o, the target's way along the stream and what moved it most; with -o flow.html, .svg,
    .pdf, .png or .json the graph itself (.attribution.json: for circuit-tracer and Neuronpedia);
    with --paper a figure of one column for print.

    lexray flow smollm2 "The capital of Japan is the city of" --layers 20-25 --target " Tokyo" -o
    flow.html

    lexray flow smollm2 "The capital of Japan is" --compare "The capital of France is" --open
    """
    path = output.output
    check_ending(path)
    picture.check(path)
    output.check()
    options: dict[str, Any] = {
        "layers": numbers("--layers", where.layers),
        "position": where.position,
        "target": words.target,
        "candidates": words.candidate or [],
        **shown.options(),
        "filter": tokens.filter(),
        "text": run.usual_text(),
    }
    drawn = path is not None and path.suffix.lower() in PICTURES and output.format is None
    printed = not drawn and (path is not None or not picture.open)
    if printed and output.format not in WHOLE and not picture.open:
        options |= SPOKEN
    traces = _traces(run, prompt, where, second)
    graph = picture.with_pins(_graph(traces, options))
    if path is not None and drawn:
        picture.write(graph, path)
    elif printed:
        _print(traces[0], graph, output)
    if picture.open:
        picture.show(graph, path)


def check_ending(path: Path | None) -> None:
    """A picture of a kind that flow does not write is refused before anything is run."""
    if path is not None and path.suffix.lower() in REFUSED:
        raise LexrayError(
            f"{path}: the flow graph is written as {', '.join(PICTURES)}, not as {path.suffix}"
        )


def _traces(
    run: RunOptions, prompt: str, where: WhereOptions, second: SecondOptions
) -> list[Trace]:
    """One or two runs."""
    from lexray.model.open import is_shipped

    model = run.open()
    traces = [_trace(run, model, prompt, where)]
    if second.other is None and (given := second.given()):
        raise LexrayError(f"{', '.join(given)} is about a second model; say which with --other")
    if second.compare is not None and is_shipped(second.compare):
        tell(f"{second.compare!r} is run as a prompt; the model of that name is --other's")
    if second.compare is not None or second.other is not None:
        another = model if second.other is None else second.open(second.other, run, model)
        text = prompt if second.compare is None else second.compare
        traces.append(_trace(replace(run, edits=None), another, text, where))
    return traces


def _trace(run: RunOptions, model: Model, prompt: str, where: WhereOptions) -> Trace:
    """A run of which only what the graph needs is kept: one position, with all keys and values."""
    from lexray.choice import choose

    asked = numbers("--layers", where.layers)
    n = (model.encoder if run.encoder else model).n_layers
    layers = choose(asked, n, "layer")
    blocks = model.architecture.blocks
    if any(part.sum_norm for block in blocks for part in (block.attention, block.ff)):
        layers = tuple(range(min(layers), n))
    return run.trace(model, prompt, layers=layers, positions=[where.position])


def _graph(traces: list[Trace], options: dict[str, Any]) -> Flow:
    if len(traces) == 1:
        return traces[0].flow(**options)
    from lexray.flow.compare import compare

    return compare(*traces, **options)


def _print(trace: Trace, graph: Flow, output: OutputOptions) -> None:
    from lexray.flow.summary import summarise

    if output.format in WHOLE:
        show(graph, output.format, output.output)
    else:
        show(summarise(trace, graph), output.format, output.output)
