"""Are norms semantic filters?

At the last position of each prompt, the logit lens before and after the norms in front of the
attention (ln_1) and of the feed-forward (ln_2): the n tokens whose probability falls most, and the
n whose probability rises most, in every layer. Of these tokens: how probable they are on average in
the model's output over all prompts, and how many are function words. The control are random vectors
through the same norms, with mean and spread of the hidden states that they stand for. All is done
once more without the final norm in the lens.

The paper shows tokens; here its claims are counted. A token's change in the tables is its mean over
all prompts, where prompts in whose lists it is not count as no change. Function words are English,
from a list of our own, and tokens without letters and digits count as such. Parallel blocks with
one norm have no ln_2; models without norms in front of their sub-blocks cannot be tested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families import Block, Norm
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Dots, Panel
from lexray.result.format import show_percent
from lexray.result.table import Table
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.vectors import members, multiply
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Outcome
from lexray.studies.shared.last_position import (
    Curves,
    average,
    curve,
    curves_table,
    require_next_token,
)
from lexray.studies.shared.measures import n_tokens, require_more_tokens, seed_generator
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, Numbers, each_prompt
from lexray.studies.shared.study import VISIT, PromptOptions, Study, option
from lexray.studies.shared.words import function_words
from lexray.studies.verdicts.norm_filters import ENDS, Measured, judge
from lexray.trace.read.project import LastStep
from lexray.trace.recording import LayerTrace

NORMS = ("ln_1", "ln_2")
KINDS = {"real": "hidden states", "bare": "without the final norm", "random": "random vectors"}
PAIRS_AT_ONCE = 16
"""So many vectors before and after a norm are held over the whole vocabulary."""
SHOWN = 5


@dataclass(frozen=True)
class NormFilters(PromptOptions):
    n: int = option(10, "So many falling and so many rising tokens of each layer.", min=1)


def run(model: Model, options: NormFilters) -> Outcome:
    require_next_token(model)
    require_more_tokens(model, 2 * options.n)
    norms = norms_of(model)
    done = each_prompt("norm-filters", model, options, lambda p: measure_prompt(model, p, options))
    usual = usual_probabilities(model, done)
    words = function_words(model)
    measured = {
        norm: {kind: sum_up(done, norm, kind, usual, words) for kind in KINDS} for norm in norms
    }
    changes = {norm: mean_changes(done, norm, "real") for norm in norms}
    bare = {norm: mean_changes(done, norm, "bare") for norm in norms}
    admitted = model.vocabulary.mask(model.space.n_rows)
    base = {"words": float(words[admitted].double().mean()), "random": 1 / n_tokens(model)}
    return Outcome(
        {"prompts": len(done), "n": options.n, "vocabulary": base, "measured": measured},
        (
            *(curves_table(measured[norm]["real"], norm) for norm in norms),
            *(_tokens(model, changes[norm], usual, norm) for norm in norms),
            *(_tokens(model, bare[norm], usual, f"{norm}, {KINDS['bare']}") for norm in norms),
        ),
        tuple(judge(measured, base["words"])),
        lambda: draw(model, measured, changes, usual),
        (
            f"{len(done)} prompts",
            f"{show_percent(base['words'], 1)} of the vocabulary are function words",
        ),
    )


class NormStep(NamedTuple):
    """A norm of a block, and the names of what goes in and comes out in a trace."""

    norm: Norm
    before: str
    after: str


def filters(block: Block) -> dict[str, NormStep]:
    """The norms in front of a block's sub-blocks; one that both share counts once."""
    first, second = block.attention.pre_norm, block.ff.pre_norm
    norms = {} if first is None else {"ln_1": NormStep(first, "resid_in", "attn_in")}
    if second is not None and not (block.parallel and second == first):
        norms["ln_2"] = NormStep(second, "resid_in" if block.parallel else "resid_mid", "mlp_in")
    return norms


def norms_of(model: Model) -> list[str]:
    """The norms that all blocks have."""
    blocks = [filters(block) for block in model.architecture.blocks]
    shared = [norm for norm in NORMS if all(norm in block for block in blocks)]
    if not shared:
        raise LexrayError(
            f"{model.name} has no norms in front of its sub-blocks, which read the residual stream "
            "as it is; there is nothing to filter"
        )
    return shared


def measure_prompt(model: Model, prompt: Prompt, options: NormFilters) -> Numbers:
    """Each norm's lists, and the final hidden state, from which the output is computed again."""
    trace = model.trace(prompt.text, what="residual", positions=-1)
    layers = [trace[layer] for layer in trace.layers]
    generator = seed_generator(options.seed, prompt.text)
    numbers: Numbers = {"final": at_least_float32(trace.final[-1]).tolist()}
    for norm in norms_of(model):
        before, after = (
            at_least_float32(
                torch.cat([getattr(x, getattr(filters(x.spec)[norm], at))[-1:] for x in layers])
            ).to(model.device)
            for at in ("before", "after")
        )
        drawn = torch.randn(before.shape, generator=generator).to(before)
        random = before.mean(1, keepdim=True) + before.std(1, keepdim=True) * drawn
        numbers[norm] = {
            "real": lists(model, before, after, options.n),
            "bare": lists(model, before, after, options.n, norm=False),
            "random": lists(model, random, _apply_norm(layers, norm, random), options.n),
        }
    return numbers


def _apply_norm(
    layers: Sequence[LayerTrace], norm: str, X: Float[Tensor, "layers d_model"]
) -> Float[Tensor, "layers d_model"]:
    """Each row through its layer's norm."""
    rows = zip(layers, X, strict=True)
    return torch.stack(
        [filters(x.spec)[norm].norm(row, x.trace.weights.checkpoint) for x, row in rows]
    )


def lists(
    model: Model,
    before: Float[Tensor, "layers d_model"],
    after: Float[Tensor, "layers d_model"],
    n: int,
    *,
    norm: bool = True,
) -> Numbers:
    """The tokens that fall and rise most, by how much, how much probability moves in all, and
    how many of the n first tokens are new."""
    ends: dict[str, list[Tensor]] = defaultdict(list)
    for some in torch.split(torch.arange(len(before)), PAIRS_AT_ONCE):
        old, new = (probabilities(model, x[some], norm=norm) for x in (before, after))
        change = new - old
        for end, sign in zip(ENDS, (-1, 1), strict=True):
            best = (sign * change).topk(n, dim=1)
            ends[end].append(best.indices)
            ends[f"{end}_by"].append(sign * best.values)
        ends["moved"].append(change.abs().sum(1) / 2)
        kept = members(new.topk(n, dim=1).indices, old.topk(n, dim=1).indices)
        ends["new"].append(1 - kept.float().mean(1))
    return {name: torch.cat(parts).tolist() for name, parts in ends.items()}


def probabilities(
    model: Model, X: Float[Tensor, "n d_model"], *, norm: bool = True
) -> Float[Tensor, "n rows"]:
    """The logit lens over the whole vocabulary; rows that stand for no token have none."""
    step = LastStep.of(model, "writing")
    with full_precision():
        H = step.prepare(X, norm=norm, transform=False)
        scores = H.new_empty(len(H), step.columns.count)
        multiply(H, step.columns, scores)
    if step.bias is not None:
        scores += step.bias
    if step.cap is not None:
        scores.div_(step.cap).tanh_().mul_(step.cap)
    shares = scores.softmax(1)
    shares[:, step.holes()] = 0
    return shares


def usual_probabilities(model: Model, done: Sequence[Done]) -> Float[Tensor, "rows"]:
    """How probable each token is in the model's output, over all prompts."""
    finals = torch.tensor([d.numbers["final"] for d in done], device=model.device)
    parts = [
        probabilities(model, x).sum(0).cpu().double() for x in torch.split(finals, PAIRS_AT_ONCE)
    ]
    return torch.stack(parts).sum(0) / len(finals)


def sum_up(
    done: Sequence[Done],
    norm: str,
    kind: str,
    usual: Float[Tensor, "rows"],
    words: Bool[Tensor, "rows"],
) -> Curves:
    """By layer: the lists' mean probability in the output and share of function words."""
    rows = [d.numbers[norm][kind] for d in done]
    curves: Curves = {}
    for end in ENDS:
        ids: Int[Tensor, "prompts layers n"] = torch.tensor([row[end] for row in rows])
        curves[f"{end}: usual probability"] = usual[ids].mean((0, 2)).tolist()
        curves[f"{end}: function words"] = words[ids].double().mean((0, 2)).tolist()
        curves[f"{end}: change"] = average([[sum(x) for x in row[f"{end}_by"]] for row in rows])
    for name in ("moved", "new"):
        curves[name] = average([row[name] for row in rows])
    return curves


def mean_changes(done: Sequence[Done], norm: str, kind: str) -> list[dict[int, float]]:
    """In each layer every listed token's change, over all prompts."""
    layers: list[dict[int, float]] = []
    for layer in range(len(done[0].numbers[norm][kind]["moved"])):
        total: dict[int, float] = defaultdict(float)
        for d in done:
            row = d.numbers[norm][kind]
            for end in ENDS:
                for token, by in zip(row[end][layer], row[f"{end}_by"][layer], strict=True):
                    total[token] += by / len(done)
        layers.append(total)
    return layers


def _tokens(
    model: Model, changes: Sequence[Mapping[int, float]], usual: Float[Tensor, "rows"], title: str
) -> Table:
    """The tokens that fall and rise most on average, with their mean probability in the output."""

    def said(ids: Sequence[int], layer: Mapping[int, float]) -> str:
        return ", ".join(
            f"{model.space.token(i).shown} {show_percent(layer[i], 1, sign=True)} "
            f"({show_percent(float(usual[i]), 2)})"
            for i in ids
        )

    rows = []
    for at, layer in enumerate(changes):
        order = sorted(layer, key=layer.__getitem__)
        falling = [i for i in order[:SHOWN] if layer[i] < 0]
        rising = [i for i in order[: -SHOWN - 1 : -1] if layer[i] > 0]
        rows.append((at, said(falling, layer), said(rising, layer)))
    columns = ("layer", "falls (mean probability in the output)", "rises")
    return Table(columns, tuple(rows), f"{title}: tokens")


STYLES = (
    ("fall", "real", figures.CONTROL, "solid"),
    ("rise", "real", figures.OURS, "solid"),
    ("fall", "random", figures.CONTROL, "dot"),
    ("rise", "random", figures.OURS, "dot"),
)
"""Of a curve: which end, of which tokens, its colour and its dash."""


def draw(
    model: Model,
    measured: Measured,
    changes: Mapping[str, Sequence[Mapping[int, float]]],
    usual: Float[Tensor, "rows"],
) -> Panels:
    """Usual probabilities and function words by layer; the tokens of all layers together."""
    panels = []
    for norm, kinds in measured.items():
        for title, what, log in (
            ("mean probability in the output", "usual probability", True),
            ("function words", "function words", False),
        ):
            lines = tuple(
                curve(kinds[kind][f"{end}: {what}"], f"{end}, {KINDS[kind]}", colour, dash=dash)
                for end, kind, colour, dash in STYLES
            )
            panels.append(Panel(f"{norm}: {title}", lines, figures.LAYER, Axis(log=log)))
        cloud = _cloud(model, changes[norm], usual)
        across = Axis("mean probability in the output", log=True)
        panels.append(Panel(f"{norm}: tokens, mean of layers", (cloud,), across, Axis("change")))
    return figures.panels(*panels, across=3)


def _cloud(
    model: Model, changes: Sequence[Mapping[int, float]], usual: Float[Tensor, "rows"]
) -> Dots:
    """Like the paper's Fig. 7: what falls and rises, over how probable it usually is."""
    total: dict[int, float] = defaultdict(float)
    for layer in changes:
        for token, by in layer.items():
            total[token] += by / len(changes)
    ids = sorted(total, key=lambda i: -abs(total[i]))[:200]
    return Dots(
        [max(float(usual[i]), 1e-9) for i in ids],
        [total[i] for i in ids],
        "",
        [figures.CONTROL if total[i] < 0 else figures.OURS for i in ids],
        [f"{model.space.token(i).shown}: {show_percent(total[i], 2, sign=True)}" for i in ids],
    )


STUDY = Study(
    "norm-filters",
    "Are norms semantic filters?",
    VISIT,
    "Fig. 7, 21–23 and Tables 1–6",
    __doc__,
    NormFilters,
    run,
    "none",
)
