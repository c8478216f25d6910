"""An independent reference: transformers' own tensors, dense float64 products, no line of lexray.

Everything is written the long way round: token-by-token matrices are built whole, rotations are
complex numbers, norms are matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

Kind = Literal["value", "key", "gate", "Q", "K", "V", "O"]
READS: tuple[Kind, ...] = ("key", "gate", "Q", "K", "V")


@dataclass(frozen=True)
class Gain:
    """A norm before or after a sub-block: γ, and whether it centres."""

    gamma: Tensor
    centres: bool

    @property
    def matrix(self) -> Tensor:
        """C diag(γ)."""
        d = len(self.gamma)
        C = torch.eye(d, dtype=torch.float64) - (1 / d if self.centres else 0)
        return C @ self.gamma.diag()


@dataclass(frozen=True)
class Unit:
    """A feed-forward or an expert; keys and gates d×f, values f×d."""

    address: str
    key: Tensor
    gate: Tensor | None
    value: Tensor


@dataclass(frozen=True)
class Block:
    """One layer; Q, K, V are d×(heads·r), O is (heads·r)×d, as the model uses them."""

    Q: Tensor
    K: Tensor
    V: Tensor
    O: Tensor  # noqa: E741
    n_heads: int
    n_kv: int
    units: tuple[Unit, ...]
    attn_norm: Gain | None = None
    attn_post: Gain | None = None
    ff_norm: Gain | None = None
    ff_post: Gain | None = None
    q_norm: tuple[Tensor, float, bool] | None = None
    """γ, ε, and whether it runs over all heads jointly."""
    k_norm: tuple[Tensor, float, bool] | None = None
    rotary: tuple[float, Literal["half", "pair"]] | None = None
    """θ, and which dimensions turn together."""

    def columns(self, kind: Kind, head: int, folded: bool) -> Tensor:
        """One head's d×r matrix of queries, keys or values, or r×d of outputs."""
        r = self.O.shape[0] // self.n_heads
        if kind == "O":
            rows = self.O[head * r : (head + 1) * r]
            return rows @ self.attn_post.matrix if folded and self.attn_post else rows
        at = head if kind == "Q" else head * self.n_kv // self.n_heads
        W = self.whole(kind, folded)
        return W[:, at * r : (at + 1) * r]

    def whole(self, kind: Kind, folded: bool) -> Tensor:
        W: Tensor = getattr(self, kind)
        return self.attn_norm.matrix @ W if folded and self.attn_norm else W

    def asked(self, kind: Literal["Q", "K"], head: int, X: Tensor, folded: bool) -> Tensor:
        """Queries or keys (without bias) of the rows of X, normed as the model norms them."""
        norm = self.q_norm if kind == "Q" else self.k_norm
        r = self.O.shape[0] // self.n_heads
        at = head if kind == "Q" else head * self.n_kv // self.n_heads
        Y = X @ self.whole(kind, folded)
        if norm is None:
            return Y[:, at * r : (at + 1) * r]
        gamma, eps, jointly = norm
        if jointly:
            Y = Y / (Y.square().mean(1, keepdim=True) + eps).sqrt() * gamma
            return Y[:, at * r : (at + 1) * r]
        y = Y[:, at * r : (at + 1) * r]
        return y / (y.square().mean(1, keepdim=True) + eps).sqrt() * gamma

    def turned(self, Y: Tensor, position: int) -> Tensor:
        """Y at a position, as complex numbers times e^{iθ·position}, real and imaginary parts."""
        if self.rotary is None:
            return Y
        theta, kind = self.rotary
        half = Y.shape[1] // 2
        angles = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        real, imaginary = (Y[:, :half], Y[:, half:]) if kind == "half" else (Y[:, 0::2], Y[:, 1::2])
        z = torch.complex(real.contiguous(), imaginary.contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat([z.real, z.imag], 1)


@dataclass(frozen=True)
class Dense:
    """A whole model; E is d×e."""

    blocks: tuple[Block, ...]
    E_out: Tensor
    E_in: Tensor
    final: Gain | None
    scale: float = 1.0

    def vectors(self, kind: Kind, folded: bool) -> dict[str, Tensor]:
        """All vectors of a kind by address; keys and values that heads share are there once."""
        found: dict[str, Tensor] = {}
        for n, block in enumerate(self.blocks):
            if kind in ("key", "gate", "value"):
                for unit in block.units:
                    W = getattr(unit, kind)
                    if W is None:
                        continue
                    if kind == "value":
                        rows = W @ block.ff_post.matrix if folded and block.ff_post else W
                    else:
                        rows = (block.ff_norm.matrix @ W if folded and block.ff_norm else W).T
                    found |= {f"{unit.address}N{i}.{kind}": row for i, row in enumerate(rows)}
                continue
            step = block.n_heads // block.n_kv if kind in ("K", "V") else 1
            for head in range(0, block.n_heads, step):
                W = block.columns(kind, head, folded)
                rows = W if kind == "O" else W.T
                found |= {f"L{n}H{head}.{kind}{i}": row for i, row in enumerate(rows)}
        return found

    def columns(
        self,
        kind: Kind,
        *,
        folded: bool = False,
        centred: bool = False,
        inverse: str = "transpose",
        calibrated: bool = False,
        reading: str = "output",
        tokens: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """The d×e matrix onto which vectors of a kind are projected; `tokens`: rows that count."""
        E = self.E_in if kind in READS and reading == "input" else self.E_out
        counted = torch.arange(E.shape[1]) if tokens is None else tokens
        if centred:
            E = E - E[:, counted].mean(1, keepdim=True)
        if kind in READS and inverse == "pinv":
            some = E[:, counted]
            E = torch.linalg.pinv(some @ some.T, rcond=1e-12) @ E
        if kind not in READS and folded and self.final is not None:
            E = self.final.matrix @ E
        if kind not in READS and folded:
            E = E * self.scale
        if calibrated:
            X = torch.stack(list(self.vectors(kind, folded).values()))
            S = X.T @ X / len(X)
            sigma = torch.stack([(e @ S @ e).sqrt() for e in E.T])
            E = E / sigma.clamp(min=1e-3 * float(sigma.median()))
        return E

    def vo(self, layer: int, head: int, **view: Any) -> Tensor:
        """The e×e matrix of VO."""
        block, folded = self.blocks[layer], view.get("folded", False)
        W = block.columns("V", head, folded) @ block.columns("O", head, folded)
        return self.columns("V", **view).T @ W @ self.columns("O", **view)

    def qk(self, layer: int, head: int, **view: Any) -> Tensor:
        """The e×e matrix of QK, queries at position 7, keys at 7 + offset."""
        block, folded = self.blocks[layer], view.get("folded", False)
        queries = block.asked("Q", head, self.columns("Q", **view).T, folded)
        keys = block.asked("K", head, self.columns("K", **view).T, folded)
        return block.turned(queries, 7) @ block.turned(keys, 7 + view.get("offset", 0)).T


def dense(module: PreTrainedModel) -> Dense:
    """The reference of one of the zoo's models."""
    tensors = {name: tensor.detach().double() for name, tensor in module.state_dict().items()}
    return FAMILIES[module.config.model_type](tensors, module.config)


Tensors = dict[str, Tensor]


def gpt2(t: Tensors, c: Any) -> Dense:
    blocks = []
    for n in range(c.n_layer):
        stem = f"transformer.h.{n}."
        Q, K, V = t[f"{stem}attn.c_attn.weight"].split(c.n_embd, dim=1)
        key, value = t[f"{stem}mlp.c_fc.weight"], t[f"{stem}mlp.c_proj.weight"]
        blocks.append(
            Block(
                *(Q, K, V, t[f"{stem}attn.c_proj.weight"]),
                *(c.n_head, c.n_head, (Unit(f"L{n}", key, None, value),)),
                attn_norm=Gain(t[f"{stem}ln_1.weight"], True),
                ff_norm=Gain(t[f"{stem}ln_2.weight"], True),
            )
        )
    final = Gain(t["transformer.ln_f.weight"], True)
    return Dense(tuple(blocks), t["lm_head.weight"].T, t["transformer.wte.weight"].T, final)


def bloom(t: Tensors, c: Any) -> Dense:
    blocks, r = [], c.hidden_size // c.n_head
    for n in range(c.n_layer):
        stem = f"transformer.h.{n}."
        fused = t[f"{stem}self_attention.query_key_value.weight"].view(c.n_head, 3, r, -1)
        Q, K, V = (fused[:, part].flatten(0, 1).T for part in range(3))
        key = t[f"{stem}mlp.dense_h_to_4h.weight"].T
        value = t[f"{stem}mlp.dense_4h_to_h.weight"].T
        blocks.append(
            Block(
                *(Q, K, V, t[f"{stem}self_attention.dense.weight"].T),
                *(c.n_head, c.n_head, (Unit(f"L{n}", key, None, value),)),
                attn_norm=Gain(t[f"{stem}input_layernorm.weight"], True),
                ff_norm=Gain(t[f"{stem}post_attention_layernorm.weight"], True),
            )
        )
    E = t["transformer.word_embeddings.weight"].T
    return Dense(tuple(blocks), E, E, Gain(t["transformer.ln_f.weight"], True))


def opt_350m(t: Tensors, c: Any) -> Dense:
    """Norms follow the sums, so nothing is folded; embeddings are narrower than the model."""
    blocks = []
    for n in range(c.num_hidden_layers):
        stem = f"model.decoder.layers.{n}."
        Q, K, V, O = (  # noqa: E741
            t[f"{stem}self_attn.{name}.weight"].T
            for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        unit = Unit(f"L{n}", t[f"{stem}fc1.weight"].T, None, t[f"{stem}fc2.weight"].T)
        blocks.append(Block(Q, K, V, O, c.num_attention_heads, c.num_attention_heads, (unit,)))
    E_out = t["model.decoder.project_out.weight"].T @ t["lm_head.weight"].T
    E_in = t["model.decoder.project_in.weight"] @ t["model.decoder.embed_tokens.weight"].T
    return Dense(tuple(blocks), E_out, E_in, None)


def bert(t: Tensors, c: Any) -> Dense:
    blocks = []
    for n in range(c.num_hidden_layers):
        stem = f"bert.encoder.layer.{n}."
        Q, K, V, O = (  # noqa: E741
            t[f"{stem}attention.{name}.weight"].T
            for name in ("self.query", "self.key", "self.value", "output.dense")
        )
        key, value = t[f"{stem}intermediate.dense.weight"].T, t[f"{stem}output.dense.weight"].T
        unit = Unit(f"L{n}", key, None, value)
        blocks.append(Block(Q, K, V, O, c.num_attention_heads, c.num_attention_heads, (unit,)))
    E = t["bert.embeddings.word_embeddings.weight"].T
    return Dense(tuple(blocks), E, E, None)


def llama(t: Tensors, c: Any) -> Dense:
    """Llama and all that names its tensors like it."""
    blocks = tuple(llama_block(t, c, n) for n in range(c.num_hidden_layers))
    final = Gain(t["model.norm.weight"] + plus(c), c.model_type == "cohere2")
    scale = c.logit_scale if c.model_type == "cohere2" else 1.0
    E_in = t["model.embed_tokens.weight"].T
    E_out = E_in if c.tie_word_embeddings else t["lm_head.weight"].T
    return Dense(blocks, E_out, E_in, final, scale)


def plus(c: Any) -> int:
    """Gemma stores γ − 1."""
    return 1 if c.model_type.startswith("gemma") else 0


def llama_block(t: Tensors, c: Any, n: int) -> Block:
    stem = f"model.layers.{n}."

    def gain(name: str) -> Gain | None:
        found = t.get(f"{stem}{name}.weight")
        return None if found is None else Gain(found + plus(c), c.model_type == "cohere2")

    def qk_norm(name: str) -> tuple[Tensor, float, bool] | None:
        found = t.get(f"{stem}self_attn.{name}_norm.weight")
        if found is None:
            return None
        return found + plus(c), c.rms_norm_eps, c.model_type == "olmo2"

    Q, K, V, O = (t[f"{stem}self_attn.{name}_proj.weight"].T for name in "qkvo")  # noqa: E741
    before, after = gain("post_attention_layernorm"), None
    names = {"attn_norm": gain("input_layernorm"), "ff_norm": before, "ff_post": after}
    if c.model_type.startswith("gemma"):
        names |= {
            "attn_post": before,
            "ff_norm": gain("pre_feedforward_layernorm"),
            "ff_post": gain("post_feedforward_layernorm"),
        }
    elif c.model_type == "olmo2":
        names = {"attn_post": before, "ff_post": gain("post_feedforward_layernorm")}
    elif c.model_type == "cohere2":
        names |= {"ff_norm": gain("input_layernorm")}
    return Block(
        *(Q, K, V, O, c.num_attention_heads, c.num_key_value_heads, llama_units(t, c, n)),
        **names,
        q_norm=qk_norm("q"),
        k_norm=qk_norm("k"),
        rotary=llama_rotary(c, n),
    )


def llama_rotary(c: Any, n: int) -> tuple[float, Literal["half", "pair"]] | None:
    if c.model_type == "cohere2":
        return None if c.layer_types[n] == "full_attention" else (10_000.0, "pair")
    parameters = c.rope_parameters
    if c.model_type == "gemma3_text":
        parameters = parameters[c.layer_types[n]]
    return parameters["rope_theta"], "half"


def llama_units(t: Tensors, c: Any, n: int) -> tuple[Unit, ...]:
    stem = f"model.layers.{n}.mlp."

    def gated(address: str, at: str) -> Unit:
        up, gate, down = (t[f"{at}{name}_proj.weight"].T for name in ("up", "gate", "down"))
        return Unit(address, up, gate, down)

    if f"{stem}up_proj.weight" in t:
        return (gated(f"L{n}", stem),)
    units = []
    for e, both in enumerate(t[f"{stem}experts.gate_up_proj"]):
        gate, up = both.chunk(2)
        units.append(Unit(f"L{n}E{e}", up.T, gate.T, t[f"{stem}experts.down_proj"][e].T))
    if f"{stem}shared_expert.up_proj.weight" in t:
        units.append(gated(f"L{n}S", f"{stem}shared_expert."))
    return tuple(units)


FAMILIES: dict[str, Callable[[Tensors, Any], Dense]] = {
    "gpt2": gpt2,
    "bloom": bloom,
    "opt": opt_350m,
    "bert": bert,
    **dict.fromkeys(
        (
            *("llama", "gemma2", "gemma3_text", "qwen3", "olmo2"),
            *("cohere2", "mixtral", "qwen2_moe"),
        ),
        llama,
    ),
}

NAMES = [
    *("gpt2", "gpt2-untied-wide", "llama", "gemma2", "gemma3", "qwen3", "olmo2", "cohere2"),
    *("opt-350m", "bloom", "mixtral", "qwen2-moe", "bert"),
]
"""The zoo's models that have a reference."""
