"""The table of figures in docs/speed.md, made from results.json."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
ROWS = [
    (
        "pairs.median_ratio",
        "top 50 pairs of a SmolLM2 head, raw and folded: faster than tiles with row "
        "maxima first, median over all heads",
        "{:.0f}×",
    ),
    ("pairs.sum_ratio", "… summed over all heads", "{:.0f}×"),
    ("pairs.worst_ratio", "… the worst head", "{:.1f}×"),
    (
        "pairs.flat_topk_ratio",
        "… than the full product and a flat top-k, the way of today's toolkits",
        "{:.0f}×",
    ),
    ("pairs.gaussian_ratio", "… on Gaussian factors, where there is nothing to prune", "{:.2f}×"),
    (
        "large.qwen_raw_median_ratio",
        "… at Qwen's shape (151,665 tokens, width 64; SmolLM2's heads widened), raw, median",
        "{:.0f}×",
    ),
    ("large.qwen_standard_median_ratio", "… the same in the standard view", "{:.0f}×"),
    (
        "large.gemma_raw_median_ratio",
        "… at Gemma's shape (width 256, four heads side by side), raw, median",
        "{:.0f}×",
    ),
    ("large.gemma_standard_median_ratio", "… the same in the standard view", "{:.0f}×"),
    ("large.gemma_standard_worst_ratio", "… its worst head", "{:.1f}×"),
    ("large.gemma_random_ratio", "… Gaussian factors of that width", "{:.1f}×"),
    ("large.doubling", "… time for twice the vocabulary, a head that prunes", "{:.1f}×"),
    ("pairs.median_work", "share of a head's entries that are multiplied, median", "{:.2%}"),
    ("pairs.median_ms", "time for one head's top 50 pairs, one thread, median", "{:.0f} ms"),
    ("pairs.peak_mb", "memory for one head's search, factors included", "{:.0f} MB"),
    (
        "vectors.ratio",
        "top and bottom 100 tokens of many vectors, over the bare matrix product",
        "{:.2f}×",
    ),
    (
        "lens.ratio",
        "logit lens of SmolLM2 over all layers and positions, over the bare matrix product",
        "{:.2f}×",
    ),
    (
        "effects.ratio",
        "all 270 heads of SmolLM2 removed in turn: faster than a loop of whole forward passes",
        "{:.1f}×",
    ),
    (
        "align.gpt2_ratio",
        "align the FF keys of two models of GPT-2 small's size: faster than projecting them",
        "{:.0f}×",
    ),
    ("align.demo_ratio", "… of `demo`'s size, whose ceiling e/d is 28×", "{:.0f}×"),
    ("align.peak_mb", "… memory for two layers of GPT-2 small's size", "{:.0f} MB"),
    ("align.projected_peak_mb", "… the same, projected", "{:.0f} MB"),
    (
        "cold_start.ratio",
        "`lexray head smollm2 L25H1` from a cold process, over `import torch`",
        "{:.2f}×",
    ),
    ("heads.seconds", "`lexray heads smollm2`: all 540 matrices, standard view", "{:.0f} s"),
    ("heads.peak_mb", "… peak memory of the process", "{:.0f} MB"),
    ("heads.raw_seconds", "… the same raw", "{:.0f} s"),
    (
        "opening.time_ratio",
        "open a 0.5-GB model and read one head: faster than transformers' "
        "`from_pretrained`, imports included",
        "{:.1f}×",
    ),
    ("opening.read_mb", "… bytes read", "{:.2f} MB"),
    (
        "flow.layer_ratio",
        "flow graph of all 24 layers at GPT-2 medium's size: faster per layer than reading each "
        "node by itself",
        "{:.0f}×",
    ),
    ("flow.static_layer_ratio", "… with every parameter also read by itself", "{:.0f}×"),
    ("flow.forward_ratio", "… over the bare forward pass of the prompt", "{:.0f}×"),
]


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| what | figure |", "|---|---|"]
    for key, label, form in ROWS:
        group, name = key.split(".")
        if name in results.get(group, {}):
            lines.append(f"| {label} | {form.format(results[group][name])} |")
    return "\n".join(lines)


def update(results: dict[str, dict[str, float]]) -> None:
    """Writes the table between the page's marks."""
    marks = r"(<!-- benchmarks -->\n).*?(<!-- /benchmarks -->)"
    text = PAGE.read_text(encoding="utf-8")
    filled = re.sub(marks, lambda m: f"{m[1]}{table(results)}\n{m[2]}", text, flags=re.DOTALL)
    PAGE.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    update(json.loads((Path(__file__).parent / "results.json").read_text()))
