"""How far is EEᵀ from a multiple of the identity?

If the entries of E were independent with mean zero, EEᵀ would tend to Nσ²I as the number N of
tokens grows, with a deviation of order √N, so that the transpose would be a right inverse up to
scale. With G = EEᵀ·d / tr(EEᵀ), three figures say how far that is from the truth: ‖G − I‖_F / √d,
the cosine between G and I as vectors, and the range of G's eigenvalues; for E, for E less its mean
embedding, and for a Gaussian matrix of the same size, whose deviation is √((d + 1) / N).

The paper states the claim without measuring it; figure, table and rules are ours. The deviation is
also taken over growing random parts of the vocabulary, where independence would make it fall as
1 / √N.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.model import Model
from lexray.progress import track
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Curve, Panel
from lexray.result.table import Table
from lexray.space.side import Side
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.measures import seed_generator
from lexray.studies.shared.study import ES, Study, StudyOptions

ROWS_AT_ONCE = 2048
PARTS = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Of the vocabulary."""
EMBEDDING, CENTRED, GAUSSIAN = "E", "centred E", "Gaussian"
COLOURS = {EMBEDDING: figures.OURS, CENTRED: figures.THIRD, GAUSSIAN: figures.CONTROL}

Rows = Callable[[Int[Tensor, "n"]], Float[Tensor, "n d"]]
"""The embeddings of some tokens, on the CPU in float64."""


def run(model: Model, options: StudyOptions) -> Outcome:
    ids = model.space.list_ids(None)
    tokens = torch.arange(model.space.n_rows) if ids is None else ids.cpu()
    order = tokens[torch.randperm(len(tokens), generator=seed_generator(options.seed, "tokens"))]
    generator = seed_generator(options.seed, GAUSSIAN)
    sources: dict[str, Rows] = {
        EMBEDDING: of(model.space.whole("value")),
        CENTRED: of(model.view(centred=True).space.whole("value")),
        GAUSSIAN: lambda at: torch.randn(len(at), model.d_model, generator=generator).double(),
    }
    shapes = {
        name: measure(rows, order)
        for name, rows in track(sources.items(), len(sources), "isotropy")
    }
    d, N = model.d_model, len(order)
    return Outcome(
        {"d_model": d, "n_tokens": N, "expected": expected_deviation(d, N), "matrices": shapes},
        (_table(shapes),),
        tuple(findings(shapes, d, N)),
        lambda: draw(shapes, d),
    )


def of(side: Side) -> Rows:
    """The columns of a side, some tokens at a time."""

    def rows(at: Int[Tensor, "n"]) -> Float[Tensor, "n d"]:
        return torch.cat([block.cpu() for block in side.only(at).columns()]).double()

    return rows


def measure(rows: Rows, order: Int[Tensor, "n"]) -> dict[str, Any]:
    """All figures of one matrix, and its deviation over growing parts of the vocabulary."""
    stops = sorted({max(1, round(part * len(order))) for part in PARTS})
    total, start, path = None, 0, []
    for stop in stops:
        for part in torch.split(order[start:stop], ROWS_AT_ONCE):
            block = rows(part)
            total = block.T @ block if total is None else total.addmm_(block.T, block)
        assert total is not None
        start = stop
        path.append({"n": stop, "deviation": deviation(scale(total))})
    assert total is not None
    G = scale(total)
    eigenvalues = torch.linalg.eigvalsh(G).flip(0)
    return {
        "deviation": deviation(G),
        "cosine": float(G.trace() / (G.norm() * sqrt(len(G)))),
        "largest": float(eigenvalues[0]),
        "smallest": float(eigenvalues[-1]),
        "eigenvalues": eigenvalues.tolist(),
        "by_tokens": path,
    }


def scale(total: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """G: with mean eigenvalue 1."""
    return total * (len(total) / float(total.trace()))


def deviation(G: Float[Tensor, "d d"]) -> float:
    """‖G − I‖_F / √d."""
    return float((G - torch.eye(len(G), dtype=G.dtype)).norm() / sqrt(len(G)))


def expected_deviation(d: int, N: int) -> float:
    """The deviation of independent normal entries."""
    return sqrt((d + 1) / N)


def findings(shapes: dict[str, Any], d: int, N: int) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    plain, centred, gaussian = (
        shapes[name]["deviation"] for name in (EMBEDDING, CENTRED, GAUSSIAN)
    )
    path = shapes[GAUSSIAN]["by_tokens"]
    slope = _slope(path)
    theory = (
        None
        if slope is None
        else 0.8 < gaussian / expected_deviation(d, N) < 1.25 and -0.6 < slope < -0.4
    )
    return [
        finding(
            "A random embedding of this size is close to isotropic: the deviation falls as 1/√N.",
            "for the Gaussian matrix the deviation is within 25 % of √((d + 1) / N), "
            "and falls with N to a power between −0.6 and −0.4",
            theory,
            f"deviation {gaussian:.3f}, √((d + 1) / N) = {expected_deviation(d, N):.3f}"
            + ("" if slope is None else f", power {slope:.2f}"),
        ),
        finding(
            "Trained embeddings are substantially anisotropic.",
            "the deviation of E is more than twice the Gaussian's",
            plain > 2 * gaussian,
            f"E {plain:.2f}, Gaussian {gaussian:.2f}; the eigenvalues of G lie between "
            f"{shapes[EMBEDDING]['smallest']:.2g} and {shapes[EMBEDDING]['largest']:.3g}",
        ),
        finding(
            "The anisotropy is more than a common mean (our question, not the paper's).",
            "the deviation of centred E is more than twice the Gaussian's",
            centred > 2 * gaussian,
            f"centred E {centred:.2f}, E {plain:.2f}, Gaussian {gaussian:.2f}",
        ),
    ]


def _slope(path: list[dict[str, Any]]) -> float | None:
    """By which power of N the deviation changes; None for a vocabulary too small to tell."""
    if len(path) < 2 or path[0]["n"] < 8:
        return None
    first, last = path[0], path[-1]
    return log(last["deviation"] / first["deviation"]) / log(last["n"] / first["n"])


def _table(shapes: dict[str, Any]) -> Table:
    names = ("deviation", "cosine", "smallest", "largest")
    columns = ("matrix", "‖G − I‖ / √d", "cos(G, I)", "smallest eigenvalue", "largest eigenvalue")
    rows = tuple((name, *(shape[n] for n in names)) for name, shape in shapes.items())
    return Table(columns, rows, "how far G is from I")


def draw(shapes: dict[str, Any], d: int) -> Panels:
    """The eigenvalues of G, and its deviation over growing parts of the vocabulary."""
    eigenvalues, paths = [], []
    for name, shape in shapes.items():
        values, path = shape["eigenvalues"], shape["by_tokens"]
        eigenvalues.append(Curve(range(1, d + 1), values, name, COLOURS[name], dots=False))
        deviations = [p["deviation"] for p in path]
        paths.append(Curve([p["n"] for p in path], deviations, name, COLOURS[name]))
    log = Axis(log=True)
    return figures.panels(
        Panel("eigenvalues of G, mean 1", tuple(eigenvalues), Axis("rank"), log),
        Panel("‖G − I‖ / √d, by number of tokens", tuple(paths), Axis("tokens", log=True), log),
    )


STUDY = Study(
    "isotropy",
    "Is the embedding isotropic?",
    ES,
    "§3",
    __doc__,
    StudyOptions,
    run,
    "both",
)
