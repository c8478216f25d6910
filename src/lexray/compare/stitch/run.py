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
from lexray.trace.apply.rerun import skip
from lexray.trace.record.module import block_modules, final_norm_path
from lexray.trace.record.refuse import refuse_pair

States = Float[Tensor, "batch n d_model"]


class Reached(Exception):  # noqa: N818  not an error: all that was wanted is there
    """Ends a forward pass."""


class CutRunner:
    """A model's module, cut between its layers."""

    def __init__(self, model: Model) -> None:
        refuse_pair(model)
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
                    states[layer] = (out[0] if isinstance(out, tuple) else out).clone()
                    if len(states) == len(after):
                        raise Reached

                stack.callback(self.blocks[layer].register_forward_hook(keep).remove)
            try:
                self.module(input_ids=ids, attention_mask=mask, use_cache=False)
            except Reached:
                return states
        raise LexrayError(f"{self.model.name} left out layers {sorted(set(after) - set(states))}")

    def entering(self, ids: Int[Tensor, "batch n"], mask: Any, layer: int) -> States:
        """What the model's own layers give to `layer`."""
        caught: list[States] = []

        def catch(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append((args[0] if args else kwargs["hidden_states"]).clone())
            raise Reached

        handle = self.blocks[layer].register_forward_pre_hook(catch, with_kwargs=True)
        try:
            self.module(input_ids=ids, attention_mask=mask, use_cache=False)
        except Reached:
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

        def enter(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (states, *args[1:]), kwargs
            return args, kwargs | {"hidden_states": states}

        with ExitStack() as stack:
            for block in self.blocks[:first]:
                stack.enter_context(skip(block, self._tuple(ids) if first else None))
            hook = self.blocks[first].register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(hook.remove)
            return self.module(input_ids=ids, attention_mask=mask, use_cache=False, **rest)

    def _refuse_borrowed(self, first: int) -> None:
        """Raises where the layers from here on need keys and values of an earlier one."""
        rest = [block.attention for block in self.model.architecture.blocks[first:]]
        lent = [layer for x in rest for layer in (x.shares, x.chosen_by) if layer is not None]
        if lent and min(lent) < first:
            raise LexrayError(
                f"the layers of {self.model.name} from {first} on cannot be run without layer "
                f"{min(lent)}, whose keys and values (or choice of positions) they use; begin "
                "there or before"
            )

    def _tuple(self, ids: Int[Tensor, "batch n"]) -> int | None:
        """How many things a layer of this model returns as a tuple; None if it returns a tensor."""
        if self._extra is None:

            def look(_: Any, __: Any, out: Any) -> None:
                self._extra = len(out) if isinstance(out, tuple) else 0
                raise Reached

            handle = self.blocks[0].register_forward_hook(look)
            try:
                with torch.no_grad():
                    self.module(input_ids=ids[:1, :1], use_cache=False)
            except Reached:
                pass
            finally:
                handle.remove()
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
