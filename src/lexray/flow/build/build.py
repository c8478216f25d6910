"""`trace.flow`: what flowed at one position of a forward pass, block by block, as a graph.

Per block (sequential, pre-norm): input → norm → one node for queries, keys and values → per head a
query → its best keys → their values → the head → the concatenation → rows of W_O → the attention's
output → with the skip, the middle of the stream → norm → keys (and gates) → values → the
feed-forward's output → with the skip, the next block's input. Parallel blocks fork at the norm,
post-norm ones norm the sums, sandwich ones norm what is added. What is left out of a sum is one
node, the exact rest. A hybrid's mixer is one node: it is no sum over positions. A decoder beside an
encoder has a third sub-block between the two, whose keys and values are those of source tokens.
Of several residual streams (Gemma 3n) the stations read what the last step would make of all, and
below them stands the one that a block works on.

Queries and keys are read through the QK circuit at their actual distance, as
`lexray.trace.read.vectors` says: a QK-norm's gain is in their reading, its scale, which no rank
depends on, is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from lexray.choice import Some
from lexray.choice import choose as which
from lexray.families import Attention, Mixer, Norm
from lexray.families.streams import SHRUNK
from lexray.flow.build.attention import CrossAttentionDrawing, OwnAttentionDrawing
from lexray.flow.build.draft import Carried, Draft
from lexray.flow.build.feedforward import FeedForwardDrawing
from lexray.flow.build.prune import Shown, choose
from lexray.flow.build.read import read_draft
from lexray.flow.build.weigh import ACTIVE, weigh_edges
from lexray.flow.build.words import ChosenWords, find_words, predictions
from lexray.flow.graph import EdgeKind, FlowGraph, NodeKind, Run, Weighed, Word, memory_name
from lexray.flow.options import BlockOptions
from lexray.trace.attribute.heads import SubBlock
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.walk import Pull, pulls
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording


def build(
    recording: Recording,
    options: BlockOptions,
    *,
    layers: Some = None,
    position: int = -1,
    target: Wanted | None = None,
    candidates: Sequence[Wanted] = (),
) -> FlowGraph:
    """The flow graph of one position; see `lexray.trace.trace.Trace.flow`."""
    moment = Moment.of(recording, position)
    words = find_words(recording, moment.position, target, candidates)
    asked = choose_layers(recording, layers)
    return make_graph(moment, words, draw_draft(moment, asked, words.target.id, options), options)


def choose_layers(recording: Recording, layers: Some) -> tuple[int, ...]:
    """The blocks that are asked for, each of which was kept."""
    n = recording.model.n_layers
    asked = recording.layers if layers is None else which(layers, n, "layer")
    return tuple(recording[layer].index for layer in asked)


def draw_draft(moment: Moment, layers: Sequence[int], target: int, options: BlockOptions) -> Draft:
    """All nodes and edges of some blocks, with their vectors."""
    drawing = BlockDrawing(moment, layers, options)
    pull = find_pulls(moment, layers, target, options)
    for layer in layers:
        step = Step.of(moment, layer)
        drawing.draw(step, choose(step, options, pull.get(layer)))
    return drawing.draft.finish()


def find_pulls(
    moment: Moment, layers: Sequence[int], target: int, options: BlockOptions
) -> dict[int, Pull]:
    """The directions towards the target, if they are what decides on what is shown."""
    decides = options.keep is not None and options.keep_by == "target"
    return pulls(moment, target, layers) if decides else {}


def make_graph(
    moment: Moment, words: ChosenWords, draft: Draft, options: BlockOptions
) -> FlowGraph:
    """The graph of a draft: its vectors read as words."""
    nodes, edges = read_draft(moment.recording, draft, words.candidates, options)
    edges = weigh_edges(moment, draft, edges, words.candidates)
    notes = {"note": words.note} if words.note else {}
    return FlowGraph(
        run=describe_run(moment, options),
        target=Word(words.target.id, words.target.shown),
        candidates=words.candidates,
        d_vocab=moment.recording.model.space.n_rows,
        layers=draft.layers,
        nodes=nodes,
        edges=edges,
        options=options.to_dict() | notes,
    )


def describe_run(moment: Moment, options: BlockOptions) -> Run:
    recording, model = moment.recording, moment.recording.model
    source = model.space.source("flow", options.filter)
    n, decode = count_source(recording), model.vocabulary.decode
    texts = [] if recording.source is None else [decode(recording.source.ids.tolist())]
    best, p = predictions(recording, moment.position)[0]
    return Run(
        source,
        " → ".join([*texts, decode(recording.ids.tolist())]),
        list_tokens(recording),
        n + moment.position,
        Weighed(best, model.vocabulary.shown(best), float(f"{p:.4g}")),
        n,
    )


def count_source(recording: Recording) -> int:
    """How many tokens stand before the pass's own: those of a source."""
    return 0 if recording.source is None else len(recording.source)


def list_tokens(recording: Recording) -> tuple[str, ...]:
    """All tokens as people read them: a source's, and then the pass's own."""
    before = () if recording.source is None else recording.source.tokens
    return tuple(token.shown for token in (*before, *recording.tokens))


class BlockDrawing:
    """Draws blocks into a draft, one after the other."""

    def __init__(self, moment: Moment, layers: Sequence[int], options: BlockOptions) -> None:
        self.moment, self.options = moment, options
        self.draft = Draft(tuple(sorted(layers)), moment.position)
        self.tokens = list_tokens(moment.recording)
        self.name = cache(partial(memory_name, self.tokens))

    def draw(self, step: Step, shown: Shown) -> None:
        layer, spec, recorded = step.index, step.spec, step.recorded
        at = f"L{layer}"
        if layer == 0:
            self._embedding()
        start = before = self._stream(layer, step.at(recorded.resid_pre))
        if spec.altup is not None:
            before = self._active(step, start)
        mixed, attn_in = [], None
        if not spec.attention.absent:
            attn_in = self._norm(
                step, before, spec.attention.pre_norm, recorded.attn_in, f"{at}.attn_norm"
            )
            heads = OwnAttentionDrawing(
                *(self.draft, step, shown, self.options, self.name, self.tokens),
                n_source=count_source(self.moment.recording),
            )
            norm, normed = spec.attention.post_norm, f"{at}.attn_out.normed"
            mixed.append(self._norm(step, heads.draw(attn_in), norm, recorded.attn_out, normed))
        if spec.mixer is not None and not spec.mixer.last:
            mixed.append(self._mixer(step, before, "mixer", spec.mixer))
        if spec.laurel is not None and attn_in is not None:
            mixed += [self._mixer(step, attn_in, "laurel", spec.laurel), attn_in]
        if spec.cross is not None and spec.merged and attn_in is not None:
            mixed.append(self._cross(step, shown, spec.cross, attn_in))
        elif spec.cross is not None:
            before = self._middle(step, before, mixed, "attention", "self")
            read = step.recorded.cross.read
            cross_in = self._norm(step, before, spec.cross.pre_norm, read, f"{at}.cross_norm")
            mixed = [self._cross(step, shown, spec.cross, cross_in)]
        if spec.parallel or not mixed:
            same = spec.ff.pre_norm == spec.attention.pre_norm
            middle, ff_in = before, attn_in if same else None
        else:
            part: SubBlock = "attention" if spec.cross is None else "cross"
            middle, ff_in = self._middle(step, before, mixed, part, "mid"), None
        added = [] if spec.ff.absent else [self._feed_forward(step, shown, middle, ff_in)]
        if spec.parallel:
            added = [*mixed, *added]
        if spec.altup is not None or (spec.mixer is not None and spec.mixer.last):
            middle = self._late(step, middle, added)
            last = spec.mixer
            added = [] if last is None else [self._mixer(step, middle, "mixer", last)]
        if spec.altup is not None:
            self._correct(step, start, middle, added)
        else:
            self._after(step, middle, added)

    def _active(self, step: Step, start: str) -> str:
        """Of several streams the one that the block works on, as it is predicted from all."""
        read = step.at(step.recorded.resid_in)
        id = self.draft.node(ACTIVE.format(step.index), NodeKind.MID, step.index, "active", read)
        self.draft.link(start, id, EdgeKind.RESIDUAL_ATTN, carries=Carried("active", read))
        return id

    def _correct(self, step: Step, start: str, late: str, added: Sequence[str]) -> None:
        """All streams as they leave a block: what it made of one of them, what stood last, and what
        was predicted without either."""
        recorded, streams = step.recorded, step.recorded.streams
        id = self._stream(step.index + 1, step.at(recorded.resid_post))
        made = Carried("ff", step.at(recorded.resid_late))
        self.draft.link(late, id, EdgeKind.RESIDUAL_FF, carries=made)
        for part in added:
            wrote = Carried("mixer", step.at(recorded.mixer_out))
            self.draft.link(part, id, EdgeKind.SUM, carries=wrote)
        past = step.at(streams.correct)[:, None] * step.at(streams.read)
        beside = Carried("leaving", (step.at(streams.predicted) - past).flatten())
        self.draft.link(start, id, EdgeKind.RESIDUAL_FF, carries=beside)

    def _cross(self, step: Step, shown: Shown, spec: Attention, read_from: str) -> str:
        """A decoder's attention to its source."""
        assert shown.cross is not None
        known = self.draft, step.cross, shown.cross, self.options, self.name, self.tokens
        written = CrossAttentionDrawing(*known).draw(read_from)
        normed, added = f"L{step.index}.cross_out.normed", step.recorded.cross
        return self._norm(step, written, spec.post_norm, added.out, normed)

    def _mixer(self, step: Step, before: str, part: Literal["mixer", "laurel"], spec: Mixer) -> str:
        """What a mixer wrote: one node, whose inside is no sum over positions. LAuReL reads what
        attention does."""
        recorded, at, norm = step.recorded, f"L{step.index}.{part}", before
        out = recorded.mixer_out if part == "mixer" else recorded.laurel_out
        if part == "mixer":
            norm = self._norm(step, before, spec.pre_norm, recorded.mixer_in, f"{at}_norm")
        vector = step.output_of(part)
        more: dict[str, Any] = {"behind": spec.post_norm, "address": at}
        self.draft.node(at, NodeKind.MIXER, step.index, spec.kind, vector, **more)
        self.draft.link(norm, at, EdgeKind.SUM)
        return self._norm(step, at, spec.post_norm, out, f"{at}.normed")

    def _feed_forward(self, step: Step, shown: Shown, middle: str, ff_in: str | None) -> str:
        spec, recorded, at = step.spec.ff, step.recorded, f"L{step.index}"
        ff_in = ff_in or self._norm(step, middle, spec.pre_norm, recorded.mlp_in, f"{at}.ff_norm")
        written = FeedForwardDrawing(self.draft, step, shown, self.options).draw(ff_in)
        return self._norm(step, written, spec.post_norm, recorded.mlp_out, f"{at}.ff_out.normed")

    def _embedding(self) -> None:
        """What the first block's input is made of."""
        if self.moment.weights.architecture.embed_norm is not None:
            self.draft.node("embed", NodeKind.EMBED, 0, "embedding", self.moment.embed_as_wide)
            self.draft.link("embed", "L0.in", EdgeKind.NORM)
            return
        for name, part in self.moment.embed_parts.items():
            id = self.draft.node(f"embed.{name}", NodeKind.EMBED, 0, name.replace("_", " "), part)
            if self.moment.weights.architecture.streams is not None:
                self.draft.link(id, "L0.in", EdgeKind.SUM, carries=Carried("embedding", part))
                continue
            self.draft.link(id, "L0.in", EdgeKind.SUM, factor=1.0)

    def _stream(self, layer: int, vector: Float[Tensor, "d_model"]) -> str:
        """The input of a block, which the block before it may have drawn."""
        id = f"L{layer}.in"
        if id not in self.draft.sketches:
            last = layer == self.moment.weights.n_layers
            label = "output" if last else f"into {layer}"
            self.draft.node(id, NodeKind.RESIDUAL, layer, label, vector)
        return id

    def _norm(self, step: Step, source: str, norm: Norm | None, recorded: Tensor, id: str) -> str:
        """What a norm makes of a node; without a norm, the node itself."""
        if norm is None:
            return source
        label = "normed" if id.endswith("normed") else "norm"
        self.draft.node(id, NodeKind.NORM, step.index, label, step.at(recorded))
        self.draft.link(source, id, EdgeKind.NORM)
        return id

    def _middle(
        self,
        step: Step,
        before: str,
        mixed: Sequence[str],
        part: SubBlock,
        name: Literal["self", "mid"],
    ) -> str:
        """The stream after a sub-block: `self` after a decoder's own attention, if it is not the
        last before the feed-forward."""
        norm, recorded = step.sub_block(part).sum_norm, step.recorded
        vector = recorded.resid_self if name == "self" else recorded.resid_mid
        id = f"L{step.index}.{name}"
        self.draft.node(id, NodeKind.MID, step.index, name, step.at(vector))
        total = id
        if norm is not None:
            total = self._sum(step, "cross" if part == "cross" else "attn", step.total(part), id)
        factor = 1.0 if step.spec.laurel is None else SHRUNK
        for written in mixed:
            self.draft.link(written, total, EdgeKind.SUM, factor=factor)
        self.draft.link(before, total, EdgeKind.RESIDUAL_ATTN, factor=factor)
        return id

    def _late(self, step: Step, middle: str, added: Sequence[str]) -> str:
        """The stream behind the feed-forward, where one more part stands last."""
        id, recorded = f"L{step.index}.late", step.recorded
        self.draft.node(id, NodeKind.MID, step.index, "late", step.at(recorded.resid_late))
        for part in added:
            self.draft.link(part, id, EdgeKind.SUM, factor=1.0)
        self.draft.link(middle, id, EdgeKind.RESIDUAL_FF, factor=1.0)
        return id

    def _after(self, step: Step, middle: str, added: Sequence[str]) -> None:
        norm, recorded = step.spec.ff.sum_norm or step.spec.factor, step.recorded
        id = self._stream(step.index + 1, step.at(recorded.resid_post))
        total = id
        if norm is not None:
            total = self._sum(step, "ff", step.total(step.parts[-1]), id)
        for part in added:
            self.draft.link(part, total, EdgeKind.SUM, factor=1.0)
        self.draft.link(middle, total, EdgeKind.RESIDUAL_FF, factor=1.0)

    def _sum(self, step: Step, name: str, whole: Float[Tensor, "d_model"], after: str) -> str:
        """Post-norm models: a sum before its norm."""
        id = f"L{step.index}.{name}_sum"
        self.draft.node(id, NodeKind.SUM, step.index, "sum", whole)
        self.draft.link(id, after, EdgeKind.NORM)
        return id
