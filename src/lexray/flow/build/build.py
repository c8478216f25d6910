"""`trace.flow`: what flowed at one position of a forward pass, block by block, as a graph.

Per block (sequential, pre-norm): input → norm → one node for queries, keys and values → per head a
query → its best keys → their values → the head → the concatenation → rows of W_O → the attention's
output → with the skip, the middle of the stream → norm → keys (and gates) → values → the
feed-forward's output → with the skip, the next block's input. Parallel blocks fork at the norm,
post-norm ones norm the sums, sandwich ones norm what is added. What is left out of a sum is one
node, the exact rest.

Queries and keys are read through the QK circuit at their actual distance, as
`lexray.trace.read.vectors` says: a QK-norm's gain is in their reading, its scale, which no rank
depends on, is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lexray.families import Norm
from lexray.flow.build.attention import AttentionDrawing
from lexray.flow.build.draft import Draft
from lexray.flow.build.feedforward import FeedForwardDrawing
from lexray.flow.build.prune import Chosen, choose
from lexray.flow.build.pull import pulls
from lexray.flow.build.read import read_draft
from lexray.flow.build.step import Step, live
from lexray.flow.build.words import Words, find_words
from lexray.flow.graph import EdgeKind, FlowGraph, NodeKind, Run, Word, memory_name
from lexray.flow.options import Options
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.result.readings import Token
from lexray.trace.record.plan import Some, chosen
from lexray.trace.trace import Trace


def flow(
    trace: Trace,
    *,
    layers: Some = None,
    position: int = -1,
    target: str | int | Token | None = None,
    candidates: Sequence[str | int | Token] = (),
    **options: Any,
) -> FlowGraph:
    """The flow graph of one position.

    - `layers`: which blocks (all that were kept); `target`: the token that is looked for (the
      model's own prediction); `candidates`: more words that can become the target in the page.
    - all others are fields of `lexray.flow.options.Options`: `heads`, `memories`, `neurons`,
      `merge_qk`, `merge_neurons`, `keep`, …

    >>> trace.flow(layers=[2], target=" great").to_html("flow.html")
    >>> trace.flow(keep=0.5, keep_by="target", merge_qk=True)
    """
    how = Options.checked(**options)
    at = absolute(trace, position)
    words = find_words(trace, at, target, candidates)
    shown = choose_all(trace, kept_layers(trace, layers), at, words.target.id, how)
    return graph_of(trace, at, words, shown, how)


def absolute(trace: Trace, position: int) -> int:
    """A position counted from the start; one that was kept."""
    return trace.positions[trace.row(position)]


def kept_layers(trace: Trace, layers: Some) -> tuple[int, ...]:
    """The blocks that are asked for, each of which was kept."""
    asked = trace.layers if layers is None else chosen(layers, trace.model.n_layers, "layer")
    return tuple(trace[layer].index for layer in asked)


def choose_all(
    trace: Trace, layers: Sequence[int], position: int, target: int, options: Options
) -> dict[int, Chosen]:
    """What is shown of each block."""
    weights = live(trace.model)
    by_target = options.keep is not None and options.keep_by == "target"
    pull = pulls(trace, weights, target, position, layers) if by_target else {}
    return {
        layer: choose(Step(trace, weights.layers[layer], position), options, pull.get(layer))
        for layer in layers
    }


def graph_of(
    trace: Trace, position: int, words: Words, shown: Mapping[int, Chosen], options: Options
) -> FlowGraph:
    """The graph of what is shown."""
    made = draft(trace, position, shown, options)
    nodes, edges = read_draft(trace.model, made, words.candidates, options)
    notes = {"note": words.note} if words.note else {}
    return FlowGraph(
        run=run_of(trace, position),
        target=Word(words.target.id, words.target.shown),
        candidates=words.candidates,
        d_vocab=trace.model.space.n_rows,
        layers=made.layers,
        nodes=nodes,
        edges=edges,
        options=options.to_dict() | notes,
    )


def run_of(trace: Trace, position: int) -> Run:
    prompt = trace.model.vocabulary.decode(trace.ids.tolist())
    tokens = tuple(token.shown for token in trace.tokens)
    return Run(trace.model.name, prompt, tokens, position)


def draft(trace: Trace, position: int, shown: Mapping[int, Chosen], options: Options) -> Draft:
    """All nodes and edges of some blocks, with their vectors."""
    made = Draft(tuple(sorted(shown)), position)
    drawing = BlockDrawing(trace, made, live(trace.model), options)
    for layer in made.layers:
        drawing.draw(layer, shown[layer])
    return made.finished()


class BlockDrawing:
    """Draws blocks into a draft, one after the other."""

    def __init__(self, trace: Trace, draft: Draft, weights: Anatomy, options: Options) -> None:
        self.trace, self.draft, self.weights, self.options = trace, draft, weights, options
        tokens = tuple(token.shown for token in trace.tokens)
        self.name = cache(partial(memory_name, tokens))

    def draw(self, layer: int, shown: Chosen) -> None:
        step = Step(self.trace, self.weights.layers[layer], self.draft.position)
        spec, recorded, at = step.spec, step.recorded, f"L{layer}"
        if layer == 0:
            self._embedding()
        before = self._stream(layer, step.at(recorded.resid_pre))
        attn_in = self._normed(
            step, before, spec.attention.pre_norm, recorded.attn_in, f"{at}.attn_norm"
        )
        written = AttentionDrawing(self.draft, step, shown, self.options, self.name).draw(attn_in)
        attended = self._normed(
            step, written, spec.attention.post_norm, recorded.attn_out, f"{at}.attn_out.normed"
        )
        if spec.parallel:
            same = spec.ff.pre_norm == spec.attention.pre_norm
            middle, ff_in = before, attn_in if same else None
        else:
            middle, ff_in = self._middle(step, before, attended), None
        ff_in = ff_in or self._normed(
            step, middle, spec.ff.pre_norm, recorded.mlp_in, f"{at}.ff_norm"
        )
        written = FeedForwardDrawing(self.draft, step, shown, self.options).draw(ff_in)
        added = self._normed(
            step, written, spec.ff.post_norm, recorded.mlp_out, f"{at}.ff_out.normed"
        )
        parts = [attended, added] if spec.parallel else [added]
        self._after(step, middle, parts)

    def _embedding(self) -> None:
        """What the first block's input is made of."""
        row = self.trace.row(self.draft.position)
        parts = {
            name: at_least_float32(part[row].to(self.weights.device))
            for name, part in self.trace.embed_parts.items()
        }
        if self.weights.architecture.embed_norm is not None:
            whole = sum(parts.values(), start=next(iter(parts.values())) * 0)
            self.draft.node("embed", NodeKind.EMBED, 0, "embedding", whole)
            self.draft.link("embed", "L0.in", EdgeKind.NORM)
            return
        for name, part in parts.items():
            id = self.draft.node(f"embed.{name}", NodeKind.EMBED, 0, name.replace("_", " "), part)
            self.draft.link(id, "L0.in", EdgeKind.SUM, factor=1.0)

    def _stream(self, layer: int, vector: Float[Tensor, "d_model"]) -> str:
        """The input of a block, which the block before it may have drawn."""
        id = f"L{layer}.in"
        if id not in self.draft.sketches:
            last = layer == self.weights.n_layers
            label = "output" if last else f"into {layer}"
            self.draft.node(id, NodeKind.RESIDUAL, layer, label, vector)
        return id

    def _normed(self, step: Step, source: str, norm: Norm | None, recorded: Tensor, id: str) -> str:
        """What a norm makes of a node; without a norm, the node itself."""
        if norm is None:
            return source
        label = "normed" if id.endswith("normed") else "norm"
        self.draft.node(id, NodeKind.NORM, step.index, label, step.at(recorded))
        self.draft.link(source, id, EdgeKind.NORM)
        return id

    def _middle(self, step: Step, before: str, attended: str) -> str:
        norm, recorded = step.spec.attention.sum_norm, step.recorded
        id = f"L{step.index}.mid"
        self.draft.node(id, NodeKind.MID, step.index, "mid", step.at(recorded.resid_mid))
        total = id
        if norm is not None:
            whole = step.at(recorded.resid_pre) + step.at(recorded.attn_out)
            total = self._sum(step, "attn", whole, id)
        self.draft.link(attended, total, EdgeKind.SUM, factor=1.0)
        self.draft.link(before, total, EdgeKind.RESIDUAL_ATTN, factor=1.0)
        return id

    def _after(self, step: Step, middle: str, added: Sequence[str]) -> None:
        norm, recorded = step.spec.ff.sum_norm, step.recorded
        id = self._stream(step.index + 1, step.at(recorded.resid_post))
        total = id
        if norm is not None:
            whole = step.at(recorded.resid_mid) + step.at(recorded.mlp_out)
            total = self._sum(step, "ff", whole, id)
        for part in added:
            self.draft.link(part, total, EdgeKind.SUM, factor=1.0)
        self.draft.link(middle, total, EdgeKind.RESIDUAL_FF, factor=1.0)

    def _sum(self, step: Step, name: str, whole: Float[Tensor, "d_model"], after: str) -> str:
        """Post-norm models: a sum before its norm."""
        id = f"L{step.index}.{name}_sum"
        self.draft.node(id, NodeKind.SUM, step.index, "sum", whole)
        self.draft.link(id, after, EdgeKind.NORM)
        return id
