"""Do the parameters that are active say what the hidden state says?

For each text, layer and position, the m vectors of the layer with the largest coefficients: R_k is
the share of the hidden state's top k tokens that are among the top k of at least one of them.
Groups are feed-forward keys and values (coefficients after the non-linearity, times up in gated
ones, times the routing weight of experts) and the columns of W_V and rows of W_O (coefficients: the
entries of W_O's input). The hidden state is the layer's output, or (Fig. 7) the final one; it
passes the final norm, parameters are read as they are. The control is another hidden state, drawn
from those of all layers, texts and positions.

Two more controls are ours: as many random vectors of the same kind, from anywhere in the model and
from the same layer. By the standard view parameters and hidden states are standardised, each by
what is usual for their kind and place, and keys, gates and W_V are read as what they expect.

The paper takes the first 1000 tokens of 60 texts; this takes a seeded sample of each text's
positions (--positions 0 takes all). Both figures are computed; --final draws Fig. 7. --absolute
takes the largest |coefficients|, and reads a vector with a negative one negated. The paper's code
draws the control from other positions of the same layer: --same-layer does so, inside each text.
Encoders answer nothing: for them --right makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel, StandingBars
from lexray.result.table import Table
from lexray.space.kinds import Kind
from lexray.space.topk.vectors import members
from lexray.studies.shared import figures
from lexray.studies.shared.active import Active, TopLists, active_neurons, active_subheads
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.measures import derange, require_more_tokens, sample, seed_generator
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, Numbers, each_prompt
from lexray.studies.shared.study import ES, PromptOptions, Study, option
from lexray.trace.record.prompt import longest
from lexray.trace.trace import Trace

GROUPS: dict[str, Kind] = {
    "FF keys": "key",
    "FF gates": "gate",
    "FF values": "value",
    "W_V": "V",
    "W_O": "O",
}
OURS = ("FF gates",)
"""Not in the paper, whose models have no gates."""
TARGETS = {"layer": "the layer's output", "final": "the final hidden state"}
NAME = "hidden-vs-parameters"
KEPT = f"{NAME}, three controls"
"""What a prompt's numbers are kept under."""
POOLED = 16
"""So many hidden states of each prompt can be drawn for the control."""
DRAWN = 32
"""So many vectors of each layer and group can be drawn as random ones."""
SIDES = {
    "random": "for a random hidden state",
    "anywhere": "for random vectors of the kind",
    "neighbours": "for random ones of the layer",
}


@dataclass(frozen=True)
class HiddenVsParameters(PromptOptions):
    right: bool = option(
        False, "Only prompts that the model answers rightly, or all.", flag="--right/--all"
    )
    k: int = option(100, "Compare so many top tokens.", min=1)
    m: int = option(5, "How many vectors of a layer are active.", min=1)
    tokens: int = option(1000, "Of each text the first so many tokens.", min=1)
    positions: int = option(16, "How many positions of each text; 0 for all.", min=0)
    final: bool = option(False, "Draw the comparison with the final hidden state (Fig. 7).")
    absolute: bool = option(False, "Largest |coefficient|; negative ones are read negated.")
    same_layer: bool = option(False, "The control: other positions of the same layer and text.")


@dataclass(frozen=True)
class WithPool(HiddenVsParameters):
    """What a prompt's numbers depend on besides: the hidden states that the control draws from."""

    pool: str = option("", "Their digest.")


def run(model: Model, options: HiddenVsParameters) -> Outcome:
    require_more_tokens(model, options.k)
    causal = model.architecture.causal
    options = replace(options, right=options.right and causal)
    pool, done = compute_all(model, replace(options, final=False))
    groups = {target: summaries(done, target) for target in TARGETS}
    shown = "final" if options.final else "layer"
    numbers = {"k": options.k, "m": options.m, "prompts": len(done)}
    return Outcome(
        numbers | {"pool": len(pool) if pool else None, "groups": groups},
        tuple(_table(groups[target], target) for target in TARGETS),
        tuple(f for target in TARGETS for f in findings(groups[target], target)),
        lambda: draw(groups[shown], shown, options.k),
        (f"{len(done)} prompts",),
    )


def compute_all(model: Model, options: HiddenVsParameters) -> tuple[Pool | None, list[Done]]:
    """Each prompt's numbers; the control's hidden states first, as they come from all prompts."""
    lists = TopLists(
        model.view(reading=model.options.expects.reading), options.k, both_ends=options.absolute
    )
    if options.same_layer:
        return None, each_prompt(
            KEPT, model, options, lambda prompt: compare(model, prompt, options, lists, None)
        )
    states = each_prompt(
        f"{NAME} (control)", model, options, lambda prompt: some_states(model, prompt, options)
    )
    pool = Pool.of(states)
    chosen = WithPool(**options.to_dict() | {"prompts": options.prompts, "pool": pool.digest})
    return pool, each_prompt(
        KEPT, model, chosen, lambda prompt: compare(model, prompt, options, lists, pool)
    )


def trace_prompt(model: Model, prompt: Prompt, options: HiddenVsParameters, *what: str) -> Trace:
    """The text at the sampled positions."""
    most = min(options.tokens, longest(model) or options.tokens)
    ids = model.vocabulary.encode(prompt.text, special=True)[:most]
    generator = seed_generator(options.seed, prompt.text)
    positions = sample(options.positions or len(ids), len(ids), generator).tolist()
    return model.trace(ids, what=what, positions=positions)


def states_of(trace: Trace) -> Float[Tensor, "layers p d_model"]:
    return torch.stack([at_least_float32(trace[i].resid_post) for i in trace.layers])


@dataclass(frozen=True)
class Pool:
    """Hidden states of all prompts by their top tokens: any of all is drawn as often."""

    lists: Int[Tensor, "n k"]
    shares: Float[Tensor, "n"]
    """How many hidden states each stands for."""

    @classmethod
    def of(cls, done: list[Done]) -> Pool:
        lists = [torch.tensor(d.numbers["lists"]) for d in done]
        shares = [
            torch.full((len(x),), d.numbers["states"] / len(x))
            for x, d in zip(lists, done, strict=True)
        ]
        return cls(torch.cat(lists), torch.cat(shares))

    def __len__(self) -> int:
        return len(self.lists)

    @property
    def digest(self) -> str:
        data = self.lists.numpy().tobytes() + self.shares.numpy().tobytes()
        return sha256(data).hexdigest()[:16]

    def draw(self, n: int, generator: torch.Generator) -> Int[Tensor, "n k"]:
        return self.lists[self.shares.multinomial(n, replacement=True, generator=generator)]


def some_states(model: Model, prompt: Prompt, options: HiddenVsParameters) -> Numbers:
    """The top tokens of a few of the prompt's hidden states, and how many there are."""
    part = _as_part(states_of(trace_prompt(model, prompt, options, "residual")))
    n = len(part.vectors)
    at = sample(POOLED, n, seed_generator(options.seed, "control", prompt.text))
    some = PassVectors(part.vectors[at.to(part.vectors.device)], part.layers[at])
    lists = LISTS.tops(model, {"block": some}, options.k)["block"]
    return {"lists": lists.tolist(), "states": n}


def _as_part(X: Float[Tensor, "layers p d_model"]) -> PassVectors:
    return PassVectors(X.flatten(0, 1), torch.arange(len(X)).repeat_interleave(X.shape[1]))


LISTS = ListReader(NAME, ("residual",), lambda trace: {"block": _as_part(states_of(trace))})


def compare(
    model: Model,
    prompt: Prompt,
    options: HiddenVsParameters,
    lists: TopLists,
    pool: Pool | None,
) -> Numbers:
    """R_k of each group, averaged over positions, for each layer: of the hidden state, the final
    one, and the control of each."""
    trace = trace_prompt(model, prompt, options, "residual", "heads", "mlp")
    X = states_of(trace)
    size = X.shape[:2]
    hidden = LISTS.tops(model, {"block": _as_part(X)}, options.k)["block"].cpu().view(*size, -1)
    final = hidden[-1:].expand_as(hidden)
    generator = seed_generator(options.seed, "drawn", prompt.text)
    if pool is None:
        order = derange(size[1], generator)
        controls = {"layer": hidden[:, order], "final": final[:, order]}
    else:
        drawn = pool.draw(size[0] * size[1], generator).view(*size, -1)
        controls = {"layer": drawn, "final": drawn}
    numbers: Numbers = {}
    for name, active in active_vectors(trace, options).items():
        named = lists.of(GROUPS[name], active)
        others = random_vectors(model, GROUPS[name], lists, options, named.shape[:3], generator)
        numbers[name] = {
            target: {
                "aligned": coverage(state, named),
                "random": coverage(controls[target], named),
                **{control: coverage(state, drawn) for control, drawn in others.items()},
            }
            for target, state in (("layer", hidden), ("final", final))
        }
    return numbers


def random_vectors(
    model: Model,
    kind: Kind,
    lists: TopLists,
    options: HiddenVsParameters,
    size: tuple[int, ...],
    generator: torch.Generator,
) -> dict[str, Int[Tensor, "layers p m k"]]:
    """The lists of random vectors of a kind in place of the active ones."""
    drawn: dict[int, Active] = {}
    for layer in model.layers:
        n = sum(group.n for group in layer.groups(kind))
        at = sample(DRAWN, n, seed_generator(options.seed, "parameters", kind, layer.index))
        at = at.repeat(-(-DRAWN // len(at)))[:DRAWN][None]
        drawn[layer.index] = Active(at, torch.zeros_like(at, dtype=torch.bool))
    known = lists.of(kind, drawn)[:, 0]
    layers, p, m = size
    at = torch.randint(known.shape[1], size, generator=generator)
    own = torch.arange(layers)[:, None, None].expand(size)
    any_layer = torch.randint(layers, (layers, p, m), generator=generator)
    return {"anywhere": known[any_layer, at], "neighbours": known[own, at]}


def active_vectors(trace: Trace, options: HiddenVsParameters) -> dict[str, dict[int, Active]]:
    """For each group that the model has, the active vectors of each layer."""
    by_group: dict[str, dict[int, Active]] = {name: {} for name in GROUPS}
    for layer in trace.layers:
        recorded, absolute = trace[layer], options.absolute
        neurons = active_neurons(recorded, options.m, absolute=absolute)
        subheads = active_subheads(recorded, options.m, absolute=absolute)
        for name, kind in GROUPS.items():
            if trace.weights.layers[layer].groups(kind):
                by_group[name][layer] = subheads.get(kind, neurons)
    return {name: active for name, active in by_group.items() if len(active) == len(trace.layers)}


def coverage(state: Int[Tensor, "layers p k"], named: Int[Tensor, "layers p m k"]) -> list[float]:
    """R_k, the mean over positions for each layer."""
    layers, p, k = state.shape
    inside = members(state.reshape(-1, k), named.reshape(layers * p, -1))
    means: list[float] = inside.double().mean(1).view(layers, p).mean(1).tolist()
    return means


def summaries(done: list[Done], target: str) -> dict[str, Any]:
    """By group: means by layer, and over all, and how sure the difference is."""
    groups = {}
    for name in done[0].numbers:
        rows = [d.numbers[name][target] for d in done]
        aligned, *controls = (
            torch.tensor([row[side] for row in rows], dtype=torch.float64)
            for side in ("aligned", *SIDES)
        )
        groups[name] = {"aligned": aligned.mean(0).tolist(), "mean_aligned": float(aligned.mean())}
        for side, control in zip(SIDES, controls, strict=True):
            gaps = (aligned - control).mean(1)
            error = float(gaps.std()) / sqrt(len(gaps)) if len(gaps) > 1 else None
            groups[name] |= {
                side: control.mean(0).tolist(),
                f"mean_{side}": float(control.mean()),
                f"error_{side}": error,
            }
    return groups


def findings(groups: dict[str, Any], target: str) -> list[Finding]:
    """The paper's claim for each group, by a rule that names no model."""
    names = [name for name in GROUPS if name in groups or name not in OURS]
    paper = [_finding(name, groups.get(name), target, "random") for name in names]
    ours = [
        _finding(name, groups[name], target, side)
        for side in ("anywhere", "neighbours")
        for name in names
        if name in groups
    ]
    return paper + ours


def _finding(name: str, group: dict[str, Any] | None, target: str, side: str) -> Finding:
    claim = f"{name}: active vectors cover the top tokens of {TARGETS[target]}"
    if side != "random":
        claim += f" better than {SIDES[side].removeprefix('for ')} (our control)"
    elif name in OURS:
        claim += " (our addition: the paper's models have no gates)"
    rule = (
        f"R_k is higher than {SIDES[side]} by more than 3 standard errors (over "
        "prompts), and higher in more than half of the layers"
    )
    if group is None:
        return finding(f"{claim}.", rule, None, "this model does not have them in every layer")
    a, r, error = group["mean_aligned"], group[f"mean_{side}"], group[f"error_{side}"]
    n = len(group["aligned"])
    won = sum(x > y for x, y in zip(group["aligned"], group[side], strict=True))
    holds = None if error is None else a - r > 3 * error and won > n / 2
    said = f"{a:.3f} against {r:.3f}; higher in {won} of {n} layers"
    sure = f", {(a - r) / error:+.1f} standard errors" if error else ""
    alone = "; one prompt only" if error is None else ""
    return finding(f"{claim}.", rule, holds, f"{said}{sure}{alone}")


def _table(groups: dict[str, Any], target: str) -> Table:
    rows = tuple(
        (name, layer, *row)
        for name, group in groups.items()
        for layer, row in enumerate(
            zip(*(group[side] for side in ("aligned", *SIDES)), strict=True)
        )
    )
    columns = ("group", "layer", "R_k", *(said.removeprefix("for ") for said in SIDES.values()))
    return Table(columns, rows, f"R_k with {TARGETS[target]}")


def draw(groups: dict[str, Any], target: str, k: int) -> Panels:
    """A pair of bars for each layer, as in the paper: blue the hidden state, orange another."""
    styles = {
        "aligned": ("hidden state", figures.OURS),
        "random": ("random hidden state", figures.CONTROL),
    }
    panels = []
    for group, curves in groups.items():
        columns = [
            StandingBars(range(len(curves[name])), curves[name], label, colour)
            for name, (label, colour) in styles.items()
        ]
        title = f"{group}, {TARGETS[target]}"
        panels.append(Panel(title, tuple(columns), figures.LAYER, Axis(f"R_{k}", zero=True)))
    return figures.panels(*panels)


STUDY = Study(
    NAME,
    "Do active parameters say what the hidden state says?",
    ES,
    "Fig. 2 and 7",
    __doc__,
    HiddenVsParameters,
    run,
    "both",
)
