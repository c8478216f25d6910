"""Rotary embeddings against transformers' own frequencies, and against turning by hand."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lexray.errors import LexrayError
from lexray.families import Config, gemma
from lexray.families.rotary import Rotary, rotary

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SHORT = [1.0 + 0.05 * i for i in range(48)]
LONG = [1.0 + 1.3 * i for i in range(48)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3 narrow": LLAMA3 | {"high_freq_factor": 1.5, "factor": 32.0},
    "yarn": YARN,
    "yarn betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn not truncated": YARN | {"truncate": False},
    "yarn factor given": YARN | {"attention_factor": 0.8},
    "yarn mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn mscale alone": YARN | {"mscale": 0.7},
    "yarn does not stretch": YARN | {"factor": 1.0},
    "yarn short context": YARN | {"original_max_position_embeddings": 64},
}


def theirs(config: Any, d_head: int, layer_type: str | None = None) -> tuple[Tensor, float]:
    """Transformers' inverse frequencies and attention factor."""
    parameters = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    if parameters["rope_type"] == "default":
        dims = int(d_head * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, dims, 2, dtype=torch.float64) / dims
        return 1.0 / parameters["rope_theta"] ** exponents, 1.0
    init = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    frequencies, factor = init(config, torch.device("cpu"), layer_type=layer_type)
    return frequencies, factor


def agrees(ours: Rotary, frequencies: Tensor, factor: float) -> None:
    found = torch.tensor(ours.frequencies, dtype=torch.float64)
    torch.testing.assert_close(found, frequencies.double(), rtol=2e-6, atol=1e-12)
    assert ours.factor == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling", "type"])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_llama_configs(scaling: dict[str, Any], theta: float, style: str) -> None:
    """In transformers 5's words, in those of 4, and in those of early 4 (`type`)."""
    sizes = {
        "hidden_size": 512,
        "num_attention_heads": 4,
        "max_position_embeddings": 131_072,
        "model_type": "llama",
    }
    if style == "rope_parameters":
        raw = sizes | {"rope_parameters": scaling | {"rope_theta": theta}}
    else:
        if style == "type":
            scaling = {"type" if k == "rope_type" else k: v for k, v in scaling.items()}
        raw = sizes | {"rope_theta": theta, "rope_scaling": scaling}
    agrees(rotary(raw, 128), *theirs(AutoConfig.for_model(**raw), 128))


@pytest.mark.parametrize("missing", [{}, {"rope_scaling": None}, {"rope_parameters": None}])
def test_without_any_scaling(missing: dict[str, Any]) -> None:
    """Qwen2's and Llama 2's files: a base and nothing else; or not even that."""
    exponents = torch.arange(0, 128, 2, dtype=torch.float64) / 128
    agrees(rotary({"rope_theta": 1e6, **missing}, 128), 1e6**-exponents, 1.0)
    agrees(rotary(missing, 128), 1e4**-exponents, 1.0)
    agrees(rotary(missing, 128, theta=5e3), 5e3**-exponents, 1.0)


@pytest.mark.parametrize("where", ["config", "rope_parameters", "default"])
def test_partial_rotation(where: str) -> None:
    config: dict[str, Any] = {"rope_theta": 1e4}
    if where == "config":
        config["partial_rotary_factor"] = 0.4
    elif where == "rope_parameters":
        config = {"rope_parameters": {**config, "partial_rotary_factor": 0.4}}
    found = rotary(config, 80, partial=0.4 if where == "default" else 1.0)
    exponents = torch.arange(0, 32, 2, dtype=torch.float64) / 32
    agrees(found, 1e4**-exponents, 1.0)
    assert len(rotary(config, 80, dims=12).frequencies) == 6


PHI3 = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
}


@pytest.mark.parametrize(
    "scaling",
    [
        LONGROPE,
        {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        LONGROPE | {"attention_factor": 1.1},
        LONGROPE | {"factor": 16.0},
    ],
)
def test_phi3_longrope(scaling: dict[str, Any]) -> None:
    """As in the files of Phi-3-mini-128k: the original context stands outside `rope_scaling`."""
    raw = PHI3 | {"rope_scaling": scaling}
    agrees(rotary(raw, 96), *theirs(AutoConfig.for_model(**raw), 96))
    new = {k: v for k, v in raw.items() if k not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = scaling | {"rope_theta": 10_000.0}
    agrees(rotary(new, 96), *theirs(AutoConfig.for_model(**new), 96))


def test_early_phi3_calls_it_su() -> None:
    """Phi-3-mini-128k's first config.json."""
    early = PHI3 | {"rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG}}
    now = PHI3 | {"rope_scaling": LONGROPE}
    assert rotary(early, 96) == rotary(now, 96)


def test_a_saved_config_gives_what_the_original_gave(tmp_path: Any) -> None:
    """transformers 5 rewrites the words; the meaning stays."""
    for raw in (
        PHI3 | {"rope_scaling": LONGROPE},
        {
            "model_type": "llama",
            "hidden_size": 256,
            "num_attention_heads": 2,
            "max_position_embeddings": 131_072,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3,
        },
    ):
        d_head = raw["hidden_size"] // raw["num_attention_heads"]
        rewritten = AutoConfig.for_model(**raw).to_dict()
        assert "rope_scaling" not in rewritten
        assert rotary(rewritten, d_head) == rotary(raw, d_head)


GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "hidden_size": 2560,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}


@pytest.mark.parametrize("style", ["published", "transformers 5"])
def test_gemma3_has_two(style: str) -> None:
    """Gemma 3 4B's file says nothing of the two bases: they are the family's defaults."""
    config = Gemma3TextConfig(**{k: v for k, v in GEMMA3.items() if k != "model_type"})
    raw = GEMMA3 if style == "published" else config.to_dict()
    c = Config(raw, gemma.GEMMA3)
    for slides, layer_type in ((True, "sliding_attention"), (False, "full_attention")):
        expected = theirs(config, 256, layer_type)
        agrees(gemma.layer_rotary(c, 256, slides), *expected)
    local, full = gemma.layer_rotary(c, 256, True), gemma.layer_rotary(c, 256, False)
    assert local.frequencies[1] == pytest.approx(1e4 ** (-1 / 128))
    assert full.frequencies[1] == pytest.approx(1e6 ** (-1 / 128) / 8)


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(LexrayError, match=r"rotary embedding 'spiral'; known: default, .*yarn"):
        rotary({"rope_scaling": {"type": "spiral"}}, 16)


# ---------------------------------------------------------------------- the rotation


def turned(x: Tensor, position: int, rope: Rotary) -> Tensor:
    """One vector at one position, as models do it: x cos + rotated(x) sin."""
    n = len(rope.frequencies)
    rest, x = x[2 * n :], x[: 2 * n]
    angles = torch.tensor(rope.frequencies, dtype=torch.float64) * position
    if rope.kind == "half":
        angles = torch.cat((angles, angles))
        rotated = torch.cat((-x[n:], x[:n]))
    else:
        angles = angles.repeat_interleave(2)
        rotated = torch.stack((-x[1::2], x[::2]), -1).flatten()
    return torch.cat(((x * angles.cos() + rotated * angles.sin()) * rope.factor, rest))


@given(
    kind=st.sampled_from(["half", "pair"]),
    frequencies=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=5),
    extra=st.integers(0, 4),
    factor=st.sampled_from([1.0, 1.19]),
    query_at=st.integers(0, 5000),
    key_at=st.integers(0, 5000),
    seed=st.integers(0, 2**16),
)
def test_matrix_is_the_score_of_turned_queries_and_keys(
    kind: Literal["half", "pair"],
    frequencies: list[float],
    extra: int,
    factor: float,
    query_at: int,
    key_at: int,
    seed: int,
) -> None:
    rope = Rotary(tuple(frequencies), kind, factor)
    d_head = 2 * len(frequencies) + extra
    random = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, d_head, dtype=torch.float64, generator=random)
    score = turned(q, query_at, rope) @ turned(k, key_at, rope)
    R = rope.matrix(key_at - query_at, d_head)
    torch.testing.assert_close(q @ R @ k, score, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["half", "pair"])
def test_offsets_add_up(kind: Literal["half", "pair"]) -> None:
    rope = Rotary((1.0, 0.3, 0.01), kind)
    torch.testing.assert_close(rope.matrix(0, 8), torch.eye(8, dtype=torch.float64))
    torch.testing.assert_close(rope.matrix(5, 8) @ rope.matrix(-2, 8), rope.matrix(3, 8))
    torch.testing.assert_close(rope.matrix(-4, 8), rope.matrix(4, 8).T)
