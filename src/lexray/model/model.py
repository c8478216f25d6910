"""A model: a checkpoint, what its tensors mean, its vocabulary, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lexray.address import Address
from lexray.choice import Some
from lexray.edits.lasting import overlay
from lexray.edits.parse import read_edits
from lexray.edits.values import Edits
from lexray.effects.check import check
from lexray.effects.generate import Generation, generate
from lexray.effects.knowledge import work_out
from lexray.errors import LexrayError, Unknown, refuse_unknown
from lexray.find.aside import SetAside, set_aside
from lexray.find.given import is_vector, kind_named, read_given, rows_of
from lexray.find.heads import HeadLookup, Heads
from lexray.find.lookup import By, Lookup, lookup, lookup_vector
from lexray.find.nearest import Nearest, nearest
from lexray.find.related import Related, related
from lexray.model.info import Info, info
from lexray.model.opened import Opened
from lexray.result.check import Check
from lexray.result.links import Links
from lexray.result.readings import Reading, Readings
from lexray.roles.card import Card, describe
from lexray.roles.catalogue import Catalogue, catalogue
from lexray.roles.composition import Composition, composition
from lexray.roles.neurons import NeuronRelations, neuron_relations
from lexray.roles.path import Path as WordPath
from lexray.roles.path import path
from lexray.roles.relation import Given
from lexray.roles.relations import relations
from lexray.roles.scores import Relations
from lexray.roles.wires import wires
from lexray.roles.wiring import readers, writers
from lexray.trace.evidence.evidence import evidence as find_evidence
from lexray.trace.evidence.result import Evidence
from lexray.trace.read.typical import typical_inputs
from lexray.trace.trace import Trace, trace_prompt
from lexray.trace.traces import Traces
from lexray.vocabulary.chat import Message
from lexray.vocabulary.filters import FilterLike


class Model(Opened):
    """A language model whose parameters are read when they are asked for.

    >>> model = lx.Model.from_pretrained("demo")
    >>> model["L2H1"].W_V.shape                  # reads one head's slice, nothing else
    torch.Size([160, 32])
    >>> model.layers[3].ff.neurons[17].W_out     # the same as model["L3N17"].W_out
    """

    @property
    def heads(self) -> Heads:
        """All heads, and a search among them.

        >>> model.heads.top(5, rows=[" he", " his"], cols=[" she", " her"])
        """
        return Heads(self)

    @overload
    def lookup(self, words: Any, among: Literal["heads"]) -> HeadLookup: ...

    @overload
    def lookup(
        self,
        words: Any,
        among: str | Sequence[str] = "values",
        *,
        by: By = "standard",
        kind: str = "value",
    ) -> Lookup: ...

    def lookup(
        self,
        words: Any,
        among: str | Sequence[str] = "values",
        *,
        by: By = "standard",
        kind: str = "value",
    ) -> Lookup | HeadLookup:
        """Which parameters know about these words: `model.lookup(["cm", "kg", "inches"])`.

        `among` is values, keys, gates, Q, K, V or O, or several of them, or heads. A vector of the
        user's (see `read`) in place of words finds the parameters that read like it, as a `kind`.
        See `lexray.find.lookup.lookup`.
        """
        if among == "heads":
            return HeadLookup(self, [words] if isinstance(words, (str, int)) else words)
        if is_vector(words):
            rows, single = rows_of(self, words)
            if not single:
                raise LexrayError("lookup takes one vector at a time, not a matrix")
            return lookup_vector(self, self.place(rows[0]), among, kind=kind_named(kind), by=by)
        return lookup(self, words, among, by=by)

    def promotes(
        self, words: str | int | Sequence[str | int], among: str | Sequence[str] = ("values", "O")
    ) -> Lookup:
        """Which values and rows of W_O raise a word most, for their own lists: the largest scores.

        >>> model.promotes(" film").top(10)
        """
        return lookup(self, words, among)

    def suppresses(
        self, words: str | int | Sequence[str | int], among: str | Sequence[str] = ("values", "O")
    ) -> Lookup:
        """Which of them lower it most; where such a neuron is negative, it promotes the word."""
        return lookup(self, words, among, suppressed=True)

    def read(
        self,
        x: Any,
        kind: str = "value",
        layer: int | None = None,
        *,
        k: int = 30,
        filter: FilterLike = None,
    ) -> Reading | Readings:
        """Any direction of the residual stream as tokens: a probe, a steering vector, a difference.

        `x` is a tensor, an array or a list of d_model numbers, or a matrix with one such a row.
        `kind` says as what it is read: a value (what it writes) or a key (what it responds to), …

        >>> model.read(model["L2N3"].W_out - model["L2N4"].W_out, kind="value", layer=2)
        """
        return read_given(self, x, kind, layer, k=k, filter=filter)

    def related(
        self, k: int = 100, overlap: float = 0.15, *, read: Literal["key", "gate"] = "key"
    ) -> Related:
        """Feed-forward neurons whose key and value share tokens; see `lexray.find.related`."""
        return related(self, k, overlap, read=read)

    def nearest(self, address: str | Address, n: int = 20, *, among: Sequence[str] = ()) -> Nearest:
        """The most similar parameters anywhere in the model; see `lexray.find.nearest.nearest`."""
        return nearest(self, address, n, among=among)

    def relations(
        self,
        which: Given | Sequence[Given] | None = None,
        *,
        k: int | None = None,
        shuffled: int = 1000,
        seed: int = 0,
    ) -> Relations:
        """Which heads hold which relations between words; see `lexray.roles.relations`.

        `which` is some of those that come along ("capital", "past", …; all of them by default), a
        file, pairs as typed, or a mapping.

        >>> model.relations({"big": "bigger", "old": "older", "good": "better"}).best
        """
        return relations(self, which, k=k, shuffled=shuffled, seed=seed)

    def find_links(self, address: Address, n: int, via: str | None, *, reading: bool) -> Links:
        """What reads a part, or what writes for it: `model["L1N5"].readers()`, `.writers()`."""
        return (writers if reading else readers)(self, address, n, via=via)

    def describe_part(self, address: Address, *, measure: bool) -> Card:
        """One card for a head or neuron: `model["L2H1"].describe()`."""
        return describe(self, address, measure=measure)

    def catalogue(
        self, *, measure: bool = True, relations: Relations | None = None, seed: int = 0
    ) -> Catalogue:
        """All heads with their roles, from weights and (`measure`) from repeated random tokens.

        >>> model.catalogue(measure=False).having("previous token")
        """
        return catalogue(self, measure=measure, relations=relations, seed=seed)

    def wires(self, n: int = 100, *, via: Sequence[str] = ("key", "gate")) -> Links:
        """The strongest links from neurons to later neurons in the whole model."""
        return wires(self, n, via=via)

    def composition(self, n: int = 100, *, via: Sequence[str] = ("Q", "K", "V")) -> Composition:
        """Which heads feed which: all pairs, as matrices, and the n strongest."""
        return composition(self, n, via=via)

    def path(self, token: str | int, *chain: str, k: int = 10) -> WordPath:
        """What a token becomes along a chain of parameters.

        >>> model.path(" her", "L0H1", "L2H3.K")
        """
        return path(self, token, chain, k=k)

    def neuron_relations(self, which: Given | Sequence[Given] | None = None) -> NeuronRelations:
        """Which neurons read a relation's sources and write its targets."""
        return neuron_relations(self, which)

    def __repr__(self) -> str:
        a = self.architecture
        return (
            f"<Model {self.name}: {self.family.title}, {self.n_layers} layers × {a.n_heads} heads, "
            f"width {a.d_model}, {a.d_vocab} tokens, {self.options}: "
            '["L0H0"], .trace(prompt), .lookup(words), .info()>'
        )

    def untrained(self, text: str | None = None) -> SetAside:
        """The tokens that the standard view sets aside, and why; with a text's counts, to check.

        >>> model.untrained().counts
        {...}
        """
        return set_aside(self, text)

    def lone_states(
        self, *, entering: bool, finish: Callable[[Tensor], Tensor] | None = None
    ) -> Float[Tensor, "d_vocab d_model"]:
        """Each token alone, as it enters transformers' own first block or leaves it; `finish` says
        what is kept of some of them at a time."""
        from lexray.trace.record.lone import lone_states  # imports transformers

        return lone_states(self, entering=entering, finish=finish)

    def typical_inputs(self) -> Float[Tensor, "n d_model"]:
        """What reaches the prediction head at masked tokens of lexray's own text."""
        return typical_inputs(self)

    def evidence(self, address: str | Address, text: str | None = None, n: int = 10) -> Evidence:
        """What a neuron, head, matrix or subhead does on running text, and whether its reading
        tells it; `model["L2N77"].evidence()` is the same.

        `text` is lexray's own unless one is given. The result has the `n` strongest places, with
        what followed, and how well each reading of the parameter tells the tokens there from the
        text's others (the area under the curve; 0.5 says nothing), against its layer.

        >>> model.evidence("L2N77", n=3).agreement > 0.5
        True
        """
        return find_evidence(self, address, text, n)

    def info(self) -> Info:
        """What it is, where its parameters live, and what reading one head costs."""
        return info(self)

    def module(
        self,
        device_map: str | Mapping[str, str | int] | None = None,
        offload: str | Path | None = None,
    ) -> nn.Module:
        """transformers' own model with this checkpoint's weights; a live one as it is.

        `device_map`: "auto", or a place for each part, for models larger than one device (needs
        accelerate); parts on "disk" lie in the folder `offload`. Traces from then on run there.

        >>> model.module()
        """
        from lexray.trace.record.module import stored_module  # imports transformers

        if device_map is None:
            return stored_module(self)
        from lexray.trace.record.spread import spread_module

        return spread_module(self, device_map, offload)

    def generate(
        self,
        prompt: Any,
        n: int = 20,
        edits: Edits | None = None,
        *,
        special: bool = True,
        target: Any = None,
    ) -> Generation:
        """Continues a prompt by n of the most probable tokens, with and without edits.

        Each token comes with its probability in either run. Of an encoder–decoder the prompt is
        the source, and `target` how the target begins.

        >>> model.generate("This movie was", 3, edits=["scale L2.mlp by 0"]).text
        """
        return generate(self, prompt, n, edits, special=special, target=target)

    def check(
        self,
        addresses: str | Sequence[str],
        prompts: str | Sequence[str],
        *,
        k: int = 20,
        how: str = "remove",
        places: int = 4,
        others: int = 8,
        seed: int = 0,
    ) -> Check:
        """Do readings predict effects? What neurons and heads promise, and what really moves.

        - `prompts`: a text, which is run in pieces, or a list of prompts.
        - `how`: "remove" (what falls?) or "amplify" (doubled: what rises?).
        - `k`: how many tokens that move most are held against the reading.
        - `places`: at how many of the places where it is strongest it is changed.
        - `others`: how many other parameters of each one's layer are checked likewise.

        >>> model.check(["L3N17", "L3H2"], "This movie was a very good film.", others=2)
        """
        wanted = [addresses] if isinstance(addresses, str) else list(addresses)
        return check(self, wanted, prompts, k=k, how=how, places=places, others=others, seed=seed)

    def check_part(self, address: str, prompts: str | Sequence[str], **options: Any) -> Check:
        """`model["L2N77"].check(prompts)`."""
        return self.check(address, prompts, **options)

    def edited(self, edits: Edits, *, text: str | None = None) -> Model:
        """The same model with other weights: `scale`, `ablate`, `replace`, `rank_one`, in order.

        Nothing is copied: what is read is changed on its way. It reads, traces and compares like
        any other; `save` and `save_lora` write it. A fact (`rank_one` with a prompt and an answer)
        is worked out first; `text` is what its covariance is taken over.

        >>> model.edited(["scale L3N17 by 0"]).trace("This movie was").logits
        """
        lasting = work_out(self, read_edits(edits), text)
        other = type(self)(
            overlay(self, lasting),
            vocabulary=self.vocabulary,
            family=self.family.name,
            config=self.config,
            device=self.device,
            dtype=self.dtype,
        )
        return other.with_view(self.options)

    def save(self, folder: str | Path) -> Path:
        """Writes safetensors, config and tokenizer to a new folder, which transformers opens."""
        from lexray.trace.record.save import save_model  # imports transformers

        return save_model(self, folder)

    def save_lora(self, folder: str | Path) -> Path:
        """Writes the edits of an edited model as a PEFT adapter, where they are of low rank."""
        from lexray.trace.record.save import save_lora  # imports transformers

        return save_lora(self, folder)

    @overload
    def trace(
        self,
        prompt: str | Sequence[int] | Tensor | Sequence[Message],
        *,
        new_tokens: int = 0,
        layers: Some = None,
        positions: Some = None,
        what: str | Iterable[str] | None = None,
        device: str | torch.device | None = None,
        special: bool = True,
        edits: Edits | None = None,
        target: str | Sequence[int] | None = None,
    ) -> Trace: ...

    @overload
    def trace(
        self,
        prompt: list[str] | tuple[str, ...] | list[list[int]] | list[Tensor],
        *,
        new_tokens: int = 0,
        layers: Some = None,
        positions: Some = None,
        what: str | Iterable[str] | None = None,
        device: str | torch.device | None = None,
        special: bool = True,
        edits: Edits | None = None,
    ) -> Traces: ...

    def trace(
        self,
        prompt: Any,
        *,
        new_tokens: int = 0,
        layers: Some = None,
        positions: Some = None,
        what: str | Iterable[str] | None = None,
        device: str | torch.device | None = None,
        special: bool = True,
        edits: Edits | None = None,
        target: Any = None,
        **unknown: Unknown,
    ) -> Trace | Traces:
        """Runs a prompt through transformers' own model and records it.

        `prompt` is a text, its token ids, or messages (`[{"role": "user", "content": "…"}]`), which
        go through the tokenizer's own chat template; a list of these is run as one batch and gives
        a list with means over prompts (`lexray.trace.traces.Traces`).

        - `new_tokens=n` first continues the prompt by up to n of the most probable tokens.
        - `layers`, `positions` choose where: numbers (negative: from the end) or slices.
        - `what` chooses what is kept: some of "residual", "attention", "heads", "mlp", "logits".
        - `device` is where it is kept (the model's own by default).
        - `special=False` leaves out the tokens that a tokenizer adds (BOS, [CLS]).
        - `edits` change the run (`lexray.edits`): the trace is that of the changed run.
        - `target`: of an encoder–decoder, how the target begins; the prompt is then the source. A
          batch of sources has a list of targets; or the prompt is a list of (source, target).

        >>> model.trace("This movie was", edits=["ablate L2H3", "scale L3N17 by 2"])
        """
        refuse_unknown("a trace", unknown, self.trace)
        traced = trace_prompt(
            self,
            prompt,
            new_tokens=new_tokens,
            layers=layers,
            positions=positions,
            what=what,
            device=device,
            special=special,
            edits=edits,
            target=target,
        )
        return traced if isinstance(traced, Trace) else Traces(traced)
