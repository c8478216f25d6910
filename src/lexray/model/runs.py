"""What a model can do when it is run, by transformers' own module of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

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
from lexray.errors import Unknown, refuse_unknown
from lexray.model.opened import Opened
from lexray.result.check import Check
from lexray.trace.evidence.evidence import evidence as find_evidence
from lexray.trace.evidence.result import Evidence
from lexray.trace.prompt import trace_prompt
from lexray.trace.read.typical import typical_inputs
from lexray.trace.trace import Trace
from lexray.trace.traces import Traces
from lexray.vocabulary.chat import Message

Same = TypeVar("Same", bound="Runs")


class Runs(Opened):
    """A model whose prompts can be run, recorded and changed; `Model` is what people open."""

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

    def edited(self: Same, edits: Edits, *, text: str | None = None) -> Same:
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
