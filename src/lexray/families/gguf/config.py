"""A GGUF file's metadata in the words of Llama's `config.json`.

Everything comes from an untrusted file: keys are checked while they are read, and sizes against the
tensors before anything is counted or built by them.
"""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

import numpy as np

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError

Config = dict[str, Any]
MOST_LAYERS = 4096
MOST_ROWS = 1 << 22
"""Of all heads together: many times what models have."""


class Keys:
    """The metadata of a file under the prefix of its architecture, checked while it is read."""

    def __init__(self, file: GGUFCheckpoint) -> None:
        self.file = file

    @property
    def kind(self) -> str:
        """What the file is, if it says that it is no model; else the model's architecture."""
        said = self.file.metadata.get("general.type")
        return said if isinstance(said, str) and said != "model" else self.file.architecture

    def get(self, key: str, default: Any = None) -> Any:
        """A number or a truth value."""
        value = self.file.metadata.get(self._full(key), default)
        if value is None or isinstance(value, (int, float)):
            return value
        if isinstance(value, str):
            raise LexrayError(f"{self.file.name}: {self._full(key)} should be a number")
        raise self.uneven(key)

    def uneven(self, key: str) -> LexrayError:
        return LexrayError(
            f"{self.file.name}: {self._full(key)} differs from layer to layer, which lexray does "
            "not read from GGUF; try the model's safetensors"
        )

    def each(self, key: str) -> list[int] | None:
        """Whole numbers or truth values, one for each layer; None where there is no such array."""
        values = self.file.metadata.get(self._full(key))
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iub":
            return None
        return [int(value) for value in values[:MOST_LAYERS]]

    def numbers(self, key: str) -> list[float] | None:
        """Numbers, one for each layer; None where there is no such array."""
        values = self.file.metadata.get(self._full(key))
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
            return None
        return [float(value) for value in values[:MOST_LAYERS]]

    def even(self, key: str, default: int | None = None) -> int:
        """A positive whole number, which may be an array whose layers have it or nothing."""
        values = self.each(key)
        if values is None:
            return self.size(key, default)
        kinds = {value for value in values if value}
        if len(kinds) != 1 or min(kinds) < 1:
            raise self.uneven(key)
        return kinds.pop()

    def need(self, key: str, default: Any = None) -> Any:
        """The same, of a key without which the model cannot be understood."""
        value = self.get(key, default)
        if value is None:
            raise self.lacks(key)
        return value

    def lacks(self, key: str) -> LexrayError:
        return LexrayError(
            f"{self.file.name} lacks the metadata {self._full(key)}, which llama.cpp's "
            "converter writes; convert the model again, or try its safetensors"
        )

    def size(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.need(key, default)
        if type(value) is not int or value < 1:
            raise LexrayError(f"{self.file.name}: {self._full(key)} cannot be {value!r}")
        return value

    def length(self, key: str) -> int | None:
        """A positive whole number, or None where there is none; some files say 0 for that."""
        return self.size(key) if self.get(key) else None

    def above_one(self, key: str, default: float) -> float:
        """A base, whose logarithm has to be positive."""
        value = self.get(key, default)
        if not value > 1:
            raise LexrayError(f"{self.file.name}: {self._full(key)} cannot be {value!r}")
        return float(value)

    def text(self, key: str) -> str | None:
        value = self.file.metadata.get(self._full(key))
        return value if isinstance(value, str) else None

    def _full(self, key: str) -> str:
        return f"{self.file.architecture}.{key}"


def common_config(
    keys: Keys, model_type: str, *, n_kv: int | None = None, d_value: int | None = None
) -> Config:
    """The keys that llama.cpp writes for every architecture, in the words of Llama's config.

    `n_kv`: the heads of keys and values, where layers differ in them; `d_value`: how wide values
    are, where a family knows that they are not as wide as keys.
    """
    file = keys.file
    d_model, n_heads = keys.size("embedding_length"), keys.even("attention.head_count")
    d_head = head_length(keys, "key", max(d_model // n_heads, 1))
    turned = keys.size("rope.dimension_count", d_head)
    config = {
        "model_type": model_type,
        "hidden_size": d_model,
        "num_hidden_layers": n_layers(keys),
        "intermediate_size": mlp_width(keys),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv or keys.even("attention.head_count_kv", n_heads),
        "head_dim": d_head,
        "vocab_size": file.info("token_embd.weight").shape[0],
        "max_position_embeddings": keys.length("context_length"),
        "rope_theta": keys.above_one("rope.freq_base", 10_000.0),
        "partial_rotary_factor": share(turned, d_head),
        "rope_scaling": rope_scaling(keys, turned),
        "tie_word_embeddings": "output.weight" not in file.names(),
        **norm_eps(keys),
    }
    router = find_tensor(keys, "ffn_gate_inp")
    if router is not None:
        config["num_experts"] = keys.size("expert_count")
        config["num_experts_per_tok"] = keys.size("expert_used_count")
    check_shapes(keys, config, router, d_value)
    return config


def n_layers(keys: Keys) -> int:
    """How many layers the model has without those that guess further tokens (nextn)."""
    count, extra = keys.size("block_count"), keys.get("nextn_predict_layers") or 0
    if type(extra) is not int or not 0 <= extra < count:
        raise LexrayError(
            f"{keys.file.name}: {keys.file.architecture}.nextn_predict_layers cannot be {extra!r} "
            f"of {count} layers"
        )
    return count - extra


def head_length(keys: Keys, what: str, default: int) -> int:
    """How wide a head's keys or values are: of latent attention, outside the latent."""
    inside = keys.length(f"attention.{what}_length_mla")
    return inside or keys.size(f"attention.{what}_length", default)


def first_layer_with(keys: Keys, stem: str, wanted: str) -> str | None:
    """The weight `wanted` of the first layer that has a weight `stem`."""
    name = find_tensor(keys, stem)
    return None if name is None else name.replace(f".{stem}.", f".{wanted}.")


def find_tensor(keys: Keys, stem: str) -> str | None:
    """The weight of this name in the first layer that has one."""
    count = min(keys.size("block_count"), len(keys.file.names()))
    names = (f"blk.{n}.{stem}.weight" for n in range(count))
    return next((name for name in names if name in keys.file.names()), None)


def mlp_width(keys: Keys) -> int:
    """From the tensor: as metadata GPT-2, Phi-2 and Falcon get 4 d_model, whatever it really is."""
    down = find_tensor(keys, "ffn_down")
    if down is not None:
        return keys.file.info(down).shape[-1]
    return keys.even("feed_forward_length")


def norm_eps(keys: Keys) -> Config:
    """The one of the two that a model's kind of norm needs; most files have just that."""
    rms = keys.get("attention.layer_norm_rms_epsilon")
    layer = keys.get("attention.layer_norm_epsilon")
    if layer is None:
        rms = keys.need("attention.layer_norm_rms_epsilon")
    return {"rms_norm_eps": rms, "layer_norm_eps": layer, "layer_norm_epsilon": layer}


def share(part: int, whole: int) -> float:
    """A fraction that gives `part` back when int() cuts off its product with `whole`."""
    exact = part / whole
    return exact if int(whole * exact) == part else nextafter(exact, inf)


def check_shapes(keys: Keys, c: Config, router: str | None, narrow: int | None = None) -> None:
    """Refuses sizes that the tensors contradict, before anything is counted or built by them.

    `narrow`: how wide values are where that may differ from keys. Of hybrids a layer with a latent
    is looked at: others may be of any width.
    """
    d_model, n_heads, d_head = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    attends = first_layer_with(keys, "attn_kv_a_mqa", "attn_output")
    output = attends or find_tensor(keys, "attn_output") or "blk.0.attn_output.weight"
    d_value = narrow or head_length(keys, "value", d_head)
    expect(keys, "token_embd.weight", (c["vocab_size"], d_model))
    expect(keys, output, (d_model, n_heads * d_value))
    if router is not None:
        expect(keys, router, (c["num_experts"], d_model))
    latent = keys.get("attention.kv_lora_rank")
    if (
        c["num_hidden_layers"] > len(keys.file.names())
        or c.get("num_experts_per_tok", 0) > c.get("num_experts", 0)
        or n_heads % c["num_key_value_heads"]
        or (d_value != d_head and not latent and narrow is None)
        or d_head * n_heads > MOST_ROWS
        or keys.size("rope.dimension_count", d_head) > d_head
    ):
        raise LexrayError(f"{keys.file.name}: the sizes in its metadata do not fit together")


def expect(keys: Keys, name: str, shape: tuple[int, ...]) -> None:
    """Raises unless a tensor has the shape that the metadata give it."""
    if (stored := keys.file.info(name).shape) != shape:
        raise LexrayError(
            f"{keys.file.name}: by its metadata {name} should have the shape {shape}, not {stored}"
        )


def rope_scaling(keys: Keys, turned: int) -> Config | None:
    """Llama 3's and Phi-3's frequencies are stored as factors, linear and YaRN as keys."""
    factors = next((name for name in FACTORS if name in keys.file.names()), None)
    if factors is not None:
        return per_dimension(keys, factors, turned)
    factor = keys.get("rope.scaling.factor") or keys.get("rope.scale_linear")
    kind = keys.text("rope.scaling.type") or "linear"
    if not factor or kind not in ("linear", "yarn"):
        return None
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": keys.size(
            "rope.scaling.original_context_length", keys.length("context_length")
        ),
        "attention_factor": keys.get("rope.scaling.yarn_attn_factor"),
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
    }


def rope_parameters(c: Config, **more: Any) -> Config:
    """The rotary embedding in transformers 5's words, for families whose default has these."""
    scaling = c["rope_scaling"] or {"rope_type": "default"}
    whole = scaling | {"rope_theta": c["rope_theta"], **more}
    return {"rope_parameters": whole, "rope_scaling": None}


FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")


def per_dimension(keys: Keys, name: str, turned: int) -> Config:
    """One factor for each pair of turned dimensions, by which its frequency is divided."""
    if (stored := keys.file.info(name).shape) != (turned // 2,):
        raise LexrayError(
            f"{keys.file.name}: {name} should have {turned // 2} factors, one for each pair of "
            f"rotary dimensions; its shape is {stored}"
        )
    return {
        "rope_type": "longrope",
        "short_factor": keys.file.read(name).tolist(),
        "factor": 1.0,
        "attention_factor": keys.get("rope.scaling.attn_factor", 1.0),
    }
