"""Opening a model and reading one head: lexray against transformers' `from_pretrained`, same files.

Each way runs in a process of its own, on a Llama-type model of random weights (about 0.5 GB in
half precision). Times include importing; peaks are of the whole process, torch included.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import largest

ROUNDS = 3
OURS = """
import lexray as lx
model = lx.Model.from_pretrained(FOLDER)
head = model["L5H3"]
tensors = [head.W_Q, head.W_K, head.W_V, head.W_O]
read = model.checkpoint.bytes_read
"""
THEIRS = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float16)
attention = model.model.layers[5].self_attn
d = attention.head_dim
rows = slice(3 * d, 4 * d)
tensors = [attention.q_proj.weight[rows], attention.o_proj.weight[:, rows]]
read = 0
"""
REPORT = """
import json
from benchmarks.pairs import status_mb
print(json.dumps({"peak_mb": status_mb("VmHWM"), "read": read}))
"""


def make(folder: Path) -> int:
    """A model of random weights; its size in bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    torch.set_default_dtype(torch.float16)
    try:
        LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="200MB")
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def timed(code: str, folder: Path) -> tuple[float, dict[str, float]]:
    """Wall time of a fresh process, and what it reports of itself."""
    script = f"FOLDER = {str(folder)!r}\n{code}\n{REPORT}"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    report: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return time.perf_counter() - start, report


def run() -> dict[str, float]:
    """`time_ratio` and `memory_ratio`: theirs over ours; `read_mb`: what we read of `size_mb`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make(folder)
        rounds = [(timed(OURS, folder), timed(THEIRS, folder)) for _ in range(ROUNDS)]
    ours, theirs = (min(column, key=lambda one: one[0]) for column in zip(*rounds, strict=True))
    return {
        **{f"largest_{figure}": value for figure, value in largest.run().items()},
        "time_ratio": theirs[0] / ours[0],
        "memory_ratio": theirs[1]["peak_mb"] / ours[1]["peak_mb"],
        "seconds": ours[0],
        "their_seconds": theirs[0],
        "peak_mb": ours[1]["peak_mb"],
        "their_peak_mb": theirs[1]["peak_mb"],
        "read_mb": ours[1]["read"] / 1e6,
        "size_mb": size / 1e6,
    }


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
