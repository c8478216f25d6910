"""Parts of a transformers model: its states after some layers, and its last layers on their own.

Both run the model's own forward pass, which makes masks and positions and picks each layer's kind
of attention; hooks are in place only while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.cache import Drawer
from lexray.model.model import Model
from lexray.trace.record.module import block_modules, final_norm_path
from lexray.trace.record.refuse import refuse_pair, refuse_streams
from lexray.trace.record.running import EnoughError
from lexray.trace.record.skip import begin_at, count_outputs, lowest_needed, skip

States = Float[Tensor, "batch n d_model"]


class CutRunner:
    """A model's module, cut between its layers."""

    def __init__(self, model: Model) -> None:
        refuse_pair(model)
        refuse_streams(model)
        self.model = model
        self.module = model.module()
        self.blocks = block_modules(model, self.module)
        self._norm = final_norm_path(model, self.module)
        self._extra: int | None = None

    @classmethod
    def of(cls, model: Model) -> CutRunner:
        """The model's runner, made once: finding the layers by their names takes a while."""
        known = RUNNER.peek(model.cache, None)
        if known is None or known.module is not model.module():
            known = cls(model)
            RUNNER.put(model.cache, None, known)
        return known

    def states(
        self,
        ids: Int[Tensor, "batch n"],
        mask: Int[Tensor, "batch n"] | None,
        after: Collection[int],
    ) -> dict[int, States]:
        """The residual stream after these layers, in one pass that ends after the last of them."""
        states: dict[int, States] = {}
        with ExitStack() as stack:
            for layer in after:

                def keep(_: Any, __: Any, out: Any, layer: int = layer) -> None:
                    states[layer] = (out[0] if isinstance(out, tuple | list) else out).clone()
                    if len(states) == len(after):
                        raise EnoughError

                stack.callback(self.blocks[layer].register_forward_hook(keep).remove)
            try:
                self.module(input_ids=ids, attention_mask=mask, use_cache=False)
            except EnoughError:
                return states
        raise LexrayError(f"{self.model.name} left out layers {sorted(set(after) - set(states))}")

    def entering(self, ids: Int[Tensor, "batch n"], mask: Any, layer: int) -> States:
        """What the model's own layers give to `layer`."""
        caught: list[States] = []

        def catch(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append((args[0] if args else kwargs["hidden_states"]).clone())
            raise EnoughError

        handle = self.blocks[layer].register_forward_pre_hook(catch, with_kwargs=True)
        try:
            self.module(input_ids=ids, attention_mask=mask, use_cache=False)
        except EnoughError:
            pass
        finally:
            handle.remove()
        return caught[0]

    def last(
        self, n: int, states: States, ids: Int[Tensor, "batch n"], mask: Any, **rest: Any
    ) -> Any:
        """The model's output if these states enter its last n layers."""
        first = len(self.blocks) - n
        self._refuse_borrowed(first)

        extra = self._count(ids) if first else None
        with begin_at(self.blocks, first, extra, lambda: states):
            return self.module(input_ids=ids, attention_mask=mask, use_cache=False, **rest)

    def _refuse_borrowed(self, first: int) -> None:
        """Raises where the layers from here on need keys and values of an earlier one."""
        lent = lowest_needed(self.model.architecture.blocks, first)
        if lent < first:
            raise LexrayError(
                f"the layers of {self.model.name} from {first} on cannot be run without layer "
                f"{lent}, whose keys and values (or choice of positions) they use; begin "
                "there or before"
            )

    def _count(self, ids: Int[Tensor, "batch n"]) -> int | None:
        if self._extra is None:
            with torch.no_grad():
                given = {"input_ids": ids[:1, :1]}
                self._extra = count_outputs(self.module, self.blocks[0], given) or 0
        return self._extra or None

    def normalise(self, states: States) -> States:
        """The states after the model's final norm."""
        norm = self.model.architecture.final_norm
        if self._norm is not None:
            out: States = self.module.get_submodule(self._norm)(states)
            return out
        return states if norm is None else norm.bare(states)

    @contextmanager
    def without_final_norm(self) -> Iterator[None]:
        """Inside, the final norm is the identity."""
        if self._norm is None:
            raise LexrayError(f"{self.model.name} has no final norm with a gain to leave out")
        with skip(self.module.get_submodule(self._norm), None):
            yield


RUNNER: Drawer[None, CutRunner] = Drawer(most=1)
