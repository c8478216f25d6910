"""Experts that are watched: transformers keeps them in one module, whose inside no hook sees.

So the coefficients come from a function registered with transformers' experts interface, which
computes the experts itself, one after the other, out of the module's own weights and activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ExpertsInterface

from lexray.trace.record.attention import configure

NAME = "lexray_recording"
SETTING = "_experts_implementation_internal"

Watch = Callable[[nn.Module, Tensor, Tensor, Tensor], None]
"""Told the experts' module, and for each token and choice the expert, its weight and its
coefficients (token, choice, neuron)."""


@runtime_checkable
class ChangesExperts(Protocol):
    """Who may change what experts do."""

    def expert_weights(self, module: nn.Module, chosen: Tensor, weights: Tensor) -> Tensor: ...

    def expert_coefficients(
        self, module: nn.Module, expert: int, tokens: Tensor, active: Tensor
    ) -> Tensor: ...


class Inside(NamedTuple):
    """One expert at the tokens that reach it: where they are, and what it computes there."""

    token: Tensor
    choice: Tensor
    weight: Tensor
    pre: Tensor
    """Its key's (and gate's) products."""
    active: Tensor
    """Its coefficients."""
    start: int | None = None
    """Where keys begin in `pre`; None: where they do in the weights."""


Look = Callable[[nn.Module, int, Inside], None]
"""Told the experts' module and each expert's inside, with its graph."""


@contextmanager
def watch_experts(
    root: nn.Module,
    watch: Watch | None,
    change: ChangesExperts | None = None,
    look: Look | None = None,
) -> Iterator[None]:
    """Inside, every mixture of experts of `root` is computed here and shown to `watch`, as
    `change` left it; each expert by itself to `look`."""

    def experts(
        module: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor, inside: Any = None
    ) -> Tensor:
        if change is not None:
            weights = change.expert_weights(module, chosen, weights)
        out, coefficients = run_experts(module, x, chosen, weights, change, look, inside)
        if watch is not None:
            watch(module, chosen, weights, coefficients)
        return out

    with ExitStack() as undo:
        for mixture in root.modules():
            if scales_inputs(mixture):
                undo.enter_context(watch_scaled(mixture, watch, change, look))
            if lies_end_to_end(mixture):
                handle = mixture.register_forward_hook(partial(_run_joined, experts))
                undo.callback(handle.remove)
        undo.callback(ExpertsInterface._global_mapping.pop, NAME, None)
        ExpertsInterface.register(NAME, experts)
        undo.enter_context(configure(root, SETTING, NAME))
        yield


def lies_end_to_end(module: nn.Module) -> bool:
    """Whether these are the experts of DBRX, whose matrices are one, and not in the interface."""
    return type(module).__name__ == "DbrxExperts"


def _run_joined(
    run: Callable[..., Tensor], module: Any, args: tuple[Tensor, ...], out: Tensor
) -> Tensor:
    """What such experts give, computed as those of the interface are."""
    x, chosen, weights = args
    return run(module, x.flatten(0, -2), chosen, weights, JoinedExperts(module.mlp)).view_as(out)


class JoinedExperts:
    """Experts that lie end to end, with what the interface's have: keys first, then gates."""

    has_gate, has_bias, is_transposed, keys_first = True, False, False, True

    def __init__(self, inside: Any) -> None:
        shape = (-1, inside.ffn_hidden_size, inside.hidden_size)
        self.gates, self.keys, self.values = (
            getattr(inside, name).view(shape) for name in ("w1", "v1", "w2")
        )
        self.act_fn = inside.activation_fn

    def weight(self, name: str, expert: int) -> Tensor:
        if name == "down_proj":
            values: Tensor = self.values[expert]
            return values.T
        return torch.cat([self.keys[expert], self.gates[expert]])

    def _apply_gate(self, pre: Tensor) -> Tensor:
        up, gate = pre.chunk(2, dim=-1)
        active: Tensor = self.act_fn(gate) * up
        return active


def scales_inputs(module: nn.Module) -> bool:
    """Whether this is a mixture of Llama 4, whose experts are not in the interface: they are given
    every token once for each expert, times its score, which is zero for those not chosen."""
    return type(module).__name__ == "Llama4TextMoe"


@contextmanager
def watch_scaled(
    mixture: Any, watch: Watch | None, change: ChangesExperts | None, look: Look | None
) -> Iterator[None]:
    """The same for such a mixture, from hooks on its router and on its experts."""
    module, caught = mixture.experts, {}

    def route(_: nn.Module, __: Any, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        weights, chosen = out[0].topk(mixture.top_k, dim=1)
        if change is not None:
            weights = change.expert_weights(module, chosen, weights)
        caught["chosen"], caught["weights"] = chosen, weights
        return torch.zeros_like(out[0]).scatter(1, chosen, weights), out[1]

    def run(_: nn.Module, args: tuple[Tensor], __: Tensor) -> Tensor:
        chosen, weights = caught["chosen"], caught["weights"]
        out, coefficients = _run_scaled(module, args[0], chosen, weights, change, look)
        if watch is not None:
            watch(module, chosen, weights, coefficients)
        return out

    hooks = [
        mixture.router.register_forward_hook(route),
        module.register_forward_hook(run),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run_scaled(
    module: Any,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    change: ChangesExperts | None,
    look: Look | None,
) -> tuple[Tensor, Tensor]:
    """What the chosen experts write at x (expert and token, d_model), and their coefficients."""
    tokens, out, coefficients = len(chosen), torch.zeros_like(x), None
    for expert in sorted(set(chosen.flatten().tolist())):
        token, choice = (chosen == expert).nonzero(as_tuple=True)
        pre = x[expert * tokens + token] @ module.gate_up_proj[expert]
        gate, up = pre.chunk(2, dim=-1)
        active = up * module.act_fn(gate)
        if change is not None:
            active = change.expert_coefficients(module, expert, token, active)
        if look is not None:
            look(module, expert, Inside(token, choice, weights[token, choice], pre, active))
        out = out.index_copy(0, expert * tokens + token, active @ module.down_proj[expert])
        if coefficients is None:
            coefficients = active.new_zeros(*chosen.shape, active.shape[-1])
        coefficients[token, choice] = active.detach()
    assert coefficients is not None
    return out, coefficients


def run_experts(
    module: Any,
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    change: ChangesExperts | None = None,
    look: Look | None = None,
    inside: Any = None,
) -> tuple[Tensor, Tensor]:
    """What the chosen experts write at x (token, d_model), and their coefficients; `inside` has
    the module's weights as the interface's experts have them, where it does not itself."""
    inside = module if inside is None else inside
    first = "gate_up_proj" if inside.has_gate else "up_proj"
    start = 0 if getattr(inside, "keys_first", False) else None
    out, parts = torch.zeros_like(x), []
    experts = sorted(set(chosen.flatten().tolist()))
    places = [(chosen == expert).nonzero(as_tuple=True) for expert in experts]
    for expert, (token, choice) in zip(experts, places, strict=True):
        up = _linear(inside, first, expert, x[token])
        active = inside._apply_gate(up) if inside.has_gate else inside.act_fn(up)
        if change is not None:
            active = change.expert_coefficients(module, expert, token, active)
        if look is not None:
            seen = Inside(token, choice, weights[token, choice], up, active, start)
            look(module, expert, seen)
        written = _linear(inside, "down_proj", expert, active)
        out.index_add_(0, token, (written * weights[token, choice, None]).to(out.dtype))
        parts.append(active)
    coefficients = parts[0].new_zeros(*chosen.shape, parts[0].shape[-1])
    for place, active in zip(places, parts, strict=True):
        coefficients[place] = active
    return out, coefficients


def _linear(module: Any, name: str, expert: int, x: Tensor) -> Tensor:
    """One expert's slice of a stack of linear maps."""
    weight = (
        module.weight(name, expert)
        if isinstance(module, JoinedExperts)
        else getattr(module, name)[expert]
    )
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return functional.linear(x, weight.T if module.is_transposed else weight, bias)
