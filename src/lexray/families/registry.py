"""Which family a config belongs to, and how a user adds one.

A family is a function from a config and the checkpoint's tensor names to an `Architecture`:

>>> @lx.family("my_model", defaults={"tie_word_embeddings": True})
... def describe(c, names):
...     return llama.describe(c, names)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lexray.checkpoint.fields import brief, check
from lexray.checkpoint.plain import without_collector
from lexray.errors import LexrayError
from lexray.families.kinds import KINDS
from lexray.families.linear import Linear, Norm
from lexray.families.spec import Architecture

CORRECT = "correct config.json (GGUF: the metadata), pass config={...}, or another family=…"


class Config(Mapping[str, Any]):
    """A `config.json` over the family's defaults.

    `c[key]` needs a value: a missing or null key falls back to the default, and without one it is
    an error. `c.get(key)` leaves null as it is, since null can mean "none" (Mistral's window).
    """

    def __init__(self, raw: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._raw = dict(raw)
        self._defaults = dict(defaults or {})

    def __getitem__(self, key: str) -> Any:
        value = self._with_type(key)
        if value is None:
            value = self._defaults.get(key)
        if value is None:
            kind = brief(self._raw.get("model_type"))
            raise LexrayError(
                f"the config lacks {key!r}, which models of type {kind} "
                "need; add it to config.json or pass config={...}"
            )
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self._with_type(key) if key in self._raw else self._defaults.get(key, default)

    def _with_type(self, key: str) -> Any:
        """The value as the kind that it should be: a size given as a text is no size."""
        value, kind = self._raw.get(key), KINDS.get(key)
        return value if value is None or kind is None else check(value, kind, key, "the config")

    def each(self, key: str, n: int) -> list[Any]:
        """A value for each of n layers: a list of so many, or one for all."""
        given = self._raw.get(key, self._defaults.get(key))
        if not isinstance(given, list | tuple):
            return [self[key]] * n
        if len(given) != n:
            raise ValueError(f"it has {len(given)} entries in {key}, but {n} layers")
        kind = KINDS.get(key)
        return [x if kind is None else check(x, kind, key, "the config") for x in given]

    def with_entries(self, **entries: Any) -> Config:
        """The same with other values."""
        return Config(self._raw | entries, self._defaults)

    def first(self, *keys: str) -> Any:
        """The value of the first key that has one: configs of one family differ in their words."""
        return self[next((key for key in keys if self.get(key) is not None), keys[0])]

    def __iter__(self) -> Iterator[str]:
        return iter(self._defaults | self._raw)

    def __len__(self) -> int:
        return len(self._defaults | self._raw)


OTHER_SENSES = ("vision", "visual", "image", "audio", "speech", "talker", "code2wav", "mtp.")
"""In names of what a multimodal checkpoint has besides its language model."""


class Names:
    """The tensor names of a checkpoint, asked about while a family describes it."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def pick(self, *candidates: str) -> str | None:
        """The first candidate that exists."""
        return next((name for name in candidates if name in self._names), None)

    def prefix(self, probe: str, *prefixes: str) -> str:
        """The first prefix under which `probe` exists, or the shortest other one: a multimodal
        checkpoint keeps its language model inside; the first of all if none does."""
        for prefix in prefixes:
            if prefix + probe in self._names:
                return prefix
        beginnings = (n.removesuffix(probe) for n in self._names if n.endswith(f".{probe}"))
        inside = [
            prefix for prefix in beginnings if not any(word in prefix for word in OTHER_SENSES)
        ]
        return min(inside, key=len, default=prefixes[0])

    def linear(self, stem: str, **layout: Any) -> Linear:
        """`stem.weight`, with `stem.bias` if the checkpoint has one."""
        return Linear(f"{stem}.weight", self.pick(f"{stem}.bias"), **layout)

    def norm(
        self,
        kind: Literal["layer", "rms"],
        stem: str,
        eps: float,
        *,
        plus_one: bool = False,
        part: tuple[int, int] | None = None,
    ) -> Norm:
        """`stem.weight` (in old files `stem.gamma`), with its bias if the checkpoint has one."""
        gain = self.pick(f"{stem}.weight", f"{stem}.gamma") or f"{stem}.weight"
        bias = self.pick(f"{stem}.bias", f"{stem}.beta")
        return Norm(kind, gain, bias, eps, plus_one, part)


Describe = Callable[[Config, Names], Architecture]


@dataclass(frozen=True)
class Family:
    """A way of naming and laying out parameters."""

    name: str
    describe: Describe
    title: str
    model_types: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    runs_as: str | None = None
    """The `model_type` whose class of transformers runs it, where none of its own does: it is the
    language part of a multimodal model, and built like a model of text."""

    def architecture(self, config: Mapping[str, Any], names: Collection[str]) -> Architecture:
        """What this family's rules make of a config and a checkpoint's names."""
        try:
            for part in (config, *_stacks(config)):
                _refuse_endless(Config(part, self.defaults), len(names))
            with without_collector():
                architecture = self.describe(Config(config, self.defaults), Names(names))
            _refuse_absurd(architecture)
            return architecture
        except NONSENSE as error:
            raise LexrayError(
                f"the rules of {self.title} cannot make sense of this config: "
                f"{repr(error)[:200]}; {CORRECT}"
            ) from error


LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    *("num_decoder_layers", "encoder_layers", "decoder_layers"),
)
HEADS = (
    *("num_attention_heads", "num_heads", "n_head", "n_heads", "num_key_value_heads"),
    *("encoder_attention_heads", "decoder_attention_heads"),
)
WIDTHS = ("hidden_size", "n_embd", "d_model")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
PARTS = 500_000
"""Heads and experts in all layers: several times what the largest models have."""
MANY_LAYERS = 1000
"""So many may be described even without tensors; more must have some each."""
LARGEST = 10_000_000
"""Tokens, dimensions, neurons: many times what models have."""


NONSENSE = (
    *(TypeError, ValueError, ArithmeticError, LookupError, AttributeError),
    *(RuntimeError, MemoryError),
)
"""What Python and torch raise when values of a config do not go together."""


def _stacks(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a config says of an encoder and of a decoder (T5Gemma)."""
    for side in ("encoder", "decoder"):
        if isinstance(own := config.get(side), Mapping):
            yield own
            if isinstance(inner := own.get("text_config"), Mapping):
                yield inner


def _refuse_endless(config: Config, n_tensors: int) -> None:
    """Raises for a config whose description alone would fill the memory."""
    layers, heads, experts, width = (
        max((n for key in keys if isinstance(n := config.get(key), int)), default=1)
        for keys in (LAYERS, HEADS, EXPERTS, WIDTHS)
    )
    if layers * max(heads + experts, 1) > PARTS:
        raise LexrayError(
            f"the config speaks of {layers} layers, {heads} heads and {experts} experts, which is "
            f"no model; {CORRECT}"
        )
    if heads > width > 1:
        raise LexrayError(f"the config speaks of {heads} heads in {width} dimensions; {CORRECT}")
    if layers > max(n_tensors, MANY_LAYERS):
        raise LexrayError(
            f"the config speaks of {layers} layers, but the checkpoint has only {n_tensors} "
            f"tensors; {CORRECT}"
        )


def _refuse_absurd(a: Architecture) -> None:
    """Raises for sizes that no model has."""
    sizes = {
        "layers": len(a.blocks),
        "heads": a.n_heads,
        "heads of keys and values": a.n_kv_heads,
        "tokens": a.d_vocab,
        "dimensions": a.d_model,
        "dimensions per head": a.d_head,
        "neurons per layer": a.d_mlp,
    }
    if wrong := [f"{n} {what}" for what, n in sizes.items() if not 1 <= n <= LARGEST]:
        raise ValueError(f"it speaks of {', '.join(wrong)}")
    if a.n_heads % a.n_kv_heads:
        raise ValueError(f"{a.n_heads} heads cannot share {a.n_kv_heads} heads of keys and values")
    for n, block in enumerate(a.blocks):  # whose sizes may be their own
        x = block.attention
        if not x.absent and not all(h.starts and h.d_head > 0 for h in (x.q, x.k, x.v)):
            raise ValueError(f"layer {n} has no heads of keys or values, or none with a width")


_FAMILIES: dict[str, Family] = {}

UNSUPPORTED = {
    "mamba": "a state-space model without attention or feed-forward",
    "mamba2": "a state-space model without attention or feed-forward",
    "falcon_mamba": "a state-space model without attention or feed-forward",
    "zamba2": "a hybrid of attention and state-space layers",
    "recurrent_gemma": "a hybrid of attention and recurrent layers",
    "rwkv": "a recurrent model",
    "xlstm": "a recurrent model",
    "minimax": "its stream is replaced by its norm before each sub-block, beside linear attention",
    "bitnet": "a norm over all heads, and one over all neurons, stand before what they write",
    "diffllama": "each head's weights are the difference of two softmaxes",
    "doge": "keys are masked by what values say, and the stream is scaled in each sub-block",
    "longcat_flash": "two attentions and two feed-forwards in each layer, with experts across",
    "deepseek_v4": "several residual streams, which every layer mixes anew",
    "esm": "a model of proteins; its embeddings are scaled by how many of them are masked",
    "qwen3_vl_moe": "its experts lie transposed in some files and not in others",
    "qwen3_vl_moe_text": "its experts lie transposed in some files and not in others",
    "longt5": "an encoder–decoder with attention of its own",
    "switch_transformers": "an encoder–decoder with experts",
    "blenderbot-small": "an encoder–decoder whose decoder norms embeddings before their positions",
    "led": "an encoder–decoder with windows and global tokens",
    "whisper": "a speech model",
}
"""Recognised, and refused by name."""


def family(
    *model_types: str,
    name: str | None = None,
    title: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    runs_as: str | None = None,
) -> Callable[[Describe], Describe]:
    """Registers the decorated function as the family of these `model_type`s.

    The function makes an `Architecture` of the config and the names of the tensors. `defaults` are
    the entries that a config may leave out; `runs_as` is the type whose class of transformers runs
    it, where that is another.

    >>> @lx.family("my_model")                          # doctest: +SKIP
    ... def describe(c, t): ...
    """

    if not model_types:
        raise LexrayError('a family needs a model_type: @lexray.family("my_model")')

    def register(describe: Describe) -> Describe:
        key = name or model_types[0]
        given = dict(defaults or {})
        _FAMILIES[key] = Family(key, describe, title or key, model_types, given, runs_as)
        return describe

    return register


def families() -> Mapping[str, Family]:
    """Every known family by name."""
    return _FAMILIES


def find_family(config: Mapping[str, Any], name: str | None = None) -> Family:
    """The family called `name`, or the one that the config's `model_type` belongs to."""
    known = families()
    by_type = {kind: f for f in known.values() for kind in f.model_types}
    asked = name or config.get("model_type")
    if asked is None:
        raise LexrayError(
            f"the config has no model_type; pass family=… (one of {', '.join(sorted(known))})"
        )
    asked = str(asked)
    for table in (known, by_type) if name else (by_type, known):
        if asked in table:
            return table[asked]
    if name:
        raise LexrayError(f"unknown family {brief(name)}; known: {', '.join(sorted(known))}")
    if asked in UNSUPPORTED:
        raise LexrayError(
            f"models of type {asked!r} are recognised but not supported: {UNSUPPORTED[asked]}. "
            f"Supported: {', '.join(sorted(by_type))}"
        )
    raise LexrayError(
        f"unknown model type {brief(asked)}; known: {', '.join(sorted(by_type))}. If it is built "
        "like one of these, pass family=…; else describe it and register it with lexray.family"
    )
