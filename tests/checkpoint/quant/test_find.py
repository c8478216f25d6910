"""Which format a config names; what is unknown is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.quant.find import METHODS, known_methods, method_name
from lexray.errors import LexrayError

ROOT = Path(__file__).parents[3]


def test_the_readme_lists_every_format() -> None:
    text = (ROOT / "docs" / "opens.md").read_text()
    table = text.split("| quantised by |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    assert sorted(row for row in rows if "---" not in row) == known_methods()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"bits": 4, "group_size": 64}, "mlx"),
        ({"config_groups": {}}, "compressed-tensors"),
        ({"quant_method": 7}, None),
        ({"a": 1}, None),
    ],
)
def test_names_of_methods(settings: dict[str, Any], name: str | None) -> None:
    assert method_name(settings) == name


def test_each_name_means_one_method() -> None:
    names = [name for method in METHODS for name in method.names]
    assert len(names) == len(set(names))


GROUPS = {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}
REFUSED = [
    (
        {"quant_method": "gptq", "checkpoint_format": "marlin"},
        "GPTQ with checkpoint_format 'marlin'",
    ),
    ({"quant_method": "gptq", "checkpoint_format": "gptq_p"}, "with checkpoint_format 'gptq_p'"),
    ({"quant_method": "gptq", "bits": 5}, "GPTQ with bits 5, of which lexray reads 2, 3, 4, 8"),
    ({"quant_method": "gptq", "pack_dtype": "int8"}, "GPTQ with pack_dtype 'int8'"),
    ({"quant_method": "awq", "version": "marlin"}, "AWQ with version 'marlin', .* gemm and gemv"),
    ({"quant_method": "awq", "bits": 3}, "AWQ with bits 3"),
    ({"bits": 7, "group_size": 64}, "MLX with bits 7"),
    ({"bits": 4, "group_size": 64, "mode": "odd"}, "MLX with mode 'odd'"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "ModelOpt with quant_algo 'W4A8_AWQ'"),
    (
        {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": GROUPS},
        "compressed-tensors with format 'marlin-24'",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "sparsity_config": {"format": "sparse-24-bitmask"},
            "config_groups": GROUPS,
        },
        "with sparsity_config an object of 1, .sparse-24-bitmask",
    ),
    (
        {"quant_method": "compressed-tensors", "quantization_status": "frozen"},
        "with quantization_status 'frozen'",
    ),
    ({"quant_method": "compressed-tensors"}, "without config_groups"),
    ({"quant_method": "gptq", "bits": "4"}, "bits should be a whole number"),
    ({"quant_method": "hqq"}, r"quantised by HQQ, but none of its tensors .* end in .W_q"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=lambda x: str(x)[:40])
def test_refused_by_name(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    save_file({"a.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(LexrayError, match=message):
        open_checkpoint(tmp_path)
