"""A recorded forward pass, and everything that can be asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from lexray.choice import Some
from lexray.edits.values import Edits
from lexray.effects.backward import Backward, backward
from lexray.effects.effect import Effect, effect
from lexray.effects.removals import Effects, effects
from lexray.errors import LexrayError, Unknown, refuse_unknown
from lexray.flow.build.build import build
from lexray.flow.flow import Flow
from lexray.flow.options import BlockOptions, Measure, Ranking
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Token
from lexray.trace.attribute.contributions import Contributions, contributions
from lexray.trace.keep import load_recording, read_about, read_origin, save_recording
from lexray.trace.read.attention import AttentionPatterns, attention_patterns
from lexray.trace.read.lens import Lens
from lexray.trace.read.look import lens
from lexray.trace.read.score import WordScore, score
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording
from lexray.vocabulary.filters import FilterLike, read_filter


class Trace(Recording):
    """Everything that was kept of one sequence's forward pass, with all that it can be asked.

    >>> trace = model.trace("This movie was")
    >>> trace[2].pattern[3, -1]               # where head L2H3 looks from the last position
    >>> trace.logits[-1].topk(5)
    """

    @property
    def encoder(self) -> Trace:
        """Of an encoder–decoder: the encoder's pass over the source, a trace of its own."""
        if self.source is None:
            raise LexrayError(f"{self.model.name} has no encoder beside it: this is its whole pass")
        return Trace.of(self.source)

    @classmethod
    def of(cls, recording: Recording) -> Trace:
        """A recording, with all that can be asked of one."""
        return cls(**{field.name: getattr(recording, field.name) for field in fields(recording)})

    def save(self, path: str | Path) -> Path:
        """Writes the pass to a file, as safetensors with JSON inside; `Trace.load` opens it.

        >>> trace.save("film.safetensors")              # doctest: +SKIP
        """
        return save_recording(self, path)

    @classmethod
    def load(cls, path: str | Path, model: Anatomy | None = None) -> Trace:
        """A pass from a file. Its model is opened from where it came, unless it is given.

        >>> lx.Trace.load("film.safetensors").lens()    # doctest: +SKIP
        """
        file, about = read_about(path)
        if model is None:
            opened = import_module("lexray.model.model").Model  # a floor up
            model = opened.reopen(*read_origin(about, path))
        return cls.of(load_recording(path, file, about, model))

    def lens(
        self,
        of: str | Sequence[str] = "residual",
        *,
        target: Wanted | None = None,
        first: bool = False,
        layers: Some = None,
        positions: Some = None,
        heads: Some = None,
        neurons: int = 10,
        query: int = -1,
        offset: int | None = None,
        k: int = 5,
        norm: bool = True,
        transform: bool = False,
        filter: FilterLike = None,
        text: str | None = None,
        **unknown: Unknown,
    ) -> Lens:
        """The logit lens: vectors of the pass as tokens, line by line and position by position.

        `of` names one or several of: `residual` (the embedding and every layer's output), `pre`,
        `mid`, `post` (the residual stream in a block), `attention`, `mlp` (what they add),
        `attn_in`, `mlp_in` (what they read), `heads` and `values` (through W_O), `queries` and
        `keys` (through the QK circuit), `neurons` (the strongest at one position, with the sign of
        their coefficients). Of a decoder beside an encoder also `self` (the stream before attention
        to the source), `cross`, `cross_in` and `cross_heads`.

        - `target`: a token whose probability and rank are wanted.
        - `first=True`: of a target of several tokens the first is taken.
        - `layers`, `positions`, `heads`: which; by default all that were kept.
        - `neurons`: how many of the strongest in each layer.
        - `query`: the position from which keys are read.
        - `offset`: key position less query position for queries and keys in rotary models; by
          default the actual one (a query's is that of the key it looks at most).
        - `k`: how many tokens of each vector.
        - `norm=False` leaves the final norm out, and for queries and keys the attention's norm.
        - `transform=True` passes the non-linear LM head of encoders such as BERT.
        - `filter` restricts which tokens are listed; probabilities and ranks are among all.
        - `text`: over which text it is measured what places usually carry; else one of lexray's.

        Under the standard view a vector's words are those that it holds more than its place usually
        does (`lexray.trace.read.usual`); probabilities and ranks are the model's own, and what
        leaves the last block is its prediction, read as it is. `model.view("raw")` reads all so.

        >>> trace.lens(target=" great", positions=-1)
        >>> trace.lens("values", layers=2, heads=[3])
        """
        refuse_unknown("a lens", unknown, self.lens)
        return lens(
            self,
            of,
            target=target,
            first=first,
            layers=layers,
            positions=positions,
            heads=heads,
            neurons=neurons,
            query=query,
            offset=offset,
            k=k,
            norm=norm,
            transform=transform,
            filter=read_filter(filter),
            text=text,
        )

    def attention(
        self,
        *,
        layers: Some = None,
        heads: Some = None,
        position: int = -1,
        k: int = 5,
        filter: FilterLike = None,
        cross: bool = False,
        **unknown: Unknown,
    ) -> AttentionPatterns:
        """Where every head looks over the whole prompt, and what it writes at one position.

        - `layers`, `heads`: which; by default all that were kept.
        - `position`: where heads are read as words; -1 is the last.
        - `k`: how many words; `filter` restricts which.
        - `cross=True`: of an encoder–decoder, where the target's positions look in the source;
          `trace.encoder.attention()` is the encoder's own.

        >>> trace.attention().to_html()
        >>> trace.attention(layers=2)["L2H3"].weights
        """
        refuse_unknown("attention patterns", unknown, self.attention)
        return attention_patterns(
            self,
            layers=layers,
            heads=heads,
            position=position,
            k=k,
            filter=read_filter(filter),
            cross=cross,
        )

    def contributions(
        self,
        target: Wanted | Sequence[Wanted] | None = None,
        position: int = -1,
        *,
        against: Wanted | None = None,
        first: bool = False,
        sources: bool = False,
        shown: int = 10,
        text: str | None = None,
        **unknown: Unknown,
    ) -> Contributions:
        """What each head, neuron, bias and embedding added to the logit of a token.

        - `target`: the token; by default the most probable one. Two tokens mean the difference of
          their logits.
        - `position`: where it is predicted; -1 is the last.
        - `against`: another token; the difference of the two logits is explained.
        - `first=True`: of a target of several tokens the first is taken.
        - `sources=True` splits each head by the positions it looked at.
        - `shown`: how many components tables and plots list at either end.
        - `text`: over which text it is measured what places usually carry; see `lens`.

        >>> trace.contributions(" great", against=" bad").top(5, kind="head")
        """
        refuse_unknown("a list of contributions", unknown, self.contributions)
        return contributions(
            self,
            target,
            position,
            against=against,
            first=first,
            sources=sources,
            shown=shown,
            text=text,
        )

    def flow(
        self,
        *,
        layers: Some = None,
        position: int = -1,
        target: Wanted | None = None,
        candidates: Sequence[Wanted] = (),
        heads: int | None = None,
        memories: int | None = None,
        neurons: tuple[int, int] | None = None,
        by: Ranking = "signed",
        keep: float | None = None,
        keep_by: Measure = "sum",
        merge_qk: bool = False,
        merge_neurons: bool = False,
        norm: bool = True,
        transform: bool = False,
        rotary: bool = True,
        static: bool | None = None,
        k: int = 10,
        filter: FilterLike = None,
        text: str | None = None,
        **unknown: Unknown,
    ) -> Flow:
        """What flowed at one position, block by block, as a graph that shows itself.

        - `layers`: which blocks; by default all that were kept.
        - `position`: whose flow; -1 is the last.
        - `target`: the token that is looked for; by default the model's own prediction.
        - `candidates`: more words that can become the target in the page.
        - `heads`: how many heads, those that write most (10).
        - `memories`: how many keys and values per head, those it attends to most (2).
        - `neurons`: how many of the largest and of the most negative ones (18, 7).
        - `by`: neurons by coefficient times norm ("signed"), or by |coefficient| ("absolute").
        - `keep`: instead of counts, the share (0 to 1) of each sum that what is shown carries.
        - `keep_by`: the share of the sum itself ("sum") or of the target's logit ("target").
        - `merge_qk=True`: values without queries and keys.
        - `merge_neurons=True`: neurons without keys and gates.
        - `norm=False`: vectors are read without the norms.
        - `transform=True`: the stream through the non-linear LM head of encoders such as BERT.
        - `rotary=False`: queries and keys at distance 0, not at their actual one.
        - `static`: also read the parameters behind nodes by themselves; by default of few blocks.
        - `k`: how many tokens at either end of a reading.
        - `filter` restricts which tokens are listed; probabilities and ranks are among all.
        - `text`: over which text it is measured what places usually carry; see `lens`.

        >>> trace.flow(layers=[2], target=" great").to_html("flow.html")
        >>> trace.flow(keep=0.5, keep_by="target", merge_qk=True)
        """
        refuse_unknown("a flow graph", unknown, self.flow)
        options = BlockOptions.check(
            heads=heads,
            memories=memories,
            neurons=neurons,
            by=by,
            keep=keep,
            keep_by=keep_by,
            merge_qk=merge_qk,
            merge_neurons=merge_neurons,
            norm=norm,
            transform=transform,
            rotary=rotary,
            static=static,
            k=k,
            filter=read_filter(filter),
            text=text,
        )
        graph = build(
            self,
            options,
            layers=layers,
            position=position,
            target=target,
            candidates=candidates,
        )
        return Flow.of(graph)

    def effect(
        self,
        edits: Edits,
        target: Wanted | None = None,
        position: int = -1,
        *,
        against: Wanted | None = None,
        first: bool = False,
        k: int = 10,
    ) -> Effect:
        """What a change does to the answer: logit, probability, rank, and what rose and fell.

        - `edits`: values of `lexray.edits`, or their text.
        - `target`: the token; by default the most probable one. `position`: where it is predicted.
        - `against`: another token; the difference of the two logits is looked at.
        - `first=True`: of a target of several tokens the first is taken.
        - `k`: how many tokens at either end.

        >>> trace.effect("ablate L2H3; scale L3N17 by 2", " great").change
        """
        return effect(self, edits, target, position, against=against, first=first, k=k)

    def effects(
        self,
        what: str = "heads",
        target: Wanted | None = None,
        position: int = -1,
        *,
        against: Wanted | None = None,
        first: bool = False,
        layers: Some = None,
        positions: Some = None,
        to: Any = "zero",
        direct: bool = True,
    ) -> Effects:
        """Every head (or neuron, layer, position) removed in turn, beside what it added directly.

        - `what`: "heads", "neurons", "layers" (what each adds), "attention" and "mlps" (its two
          sub-blocks), or "positions" (all attention to a token is cut).
        - `target`, `position`, `against`, `first`: as in `effect`.
        - `layers`: only those of these layers; `positions`: removed only there.
        - `to`: "zero", "mean" (over the prompt's other positions), or a trace whose mean is put.
        - `direct=False` leaves the direct contributions out.

        Only the layers from a removal on are run again, removals of one layer as one batch.

        >>> trace.effects("heads", " great").by_change()[0]
        """
        return effects(
            self,
            what,
            target,
            position,
            against=against,
            first=first,
            layers=layers,
            positions=positions,
            to=to,
            direct=direct,
        )

    def backward(
        self,
        target: Wanted | None = None,
        position: int = -1,
        *,
        first: bool = False,
        layers: Some = None,
        positions: Some = None,
        k: int = 5,
    ) -> Backward:
        """The backward lens: what a step down the loss of a target would put into feed-forwards.

        For each layer and position the words that would be written into the values, and those that
        the keys would come to read, with the size of the gradient there.

        - `target`: the token that should have followed; by default the most probable one.
        - `layers`, `positions`: only these. `k`: how many words of each vector.

        >>> trace.backward(" bad", layers=[2]).at(2, -1).written.tokens
        """
        return backward(
            self, target, position, first=first, layers=layers, positions=positions, k=k
        )

    def score(self, word: str | int | Token | Sequence[int]) -> WordScore:
        """How probable a word of one or several tokens is after the sequence.

        >>> trace.score(" masterpiece").probability
        """
        return score(self, word)
