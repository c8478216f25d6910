"""The table of what opens: families from the registry, formats from the checkpoint room."""

from __future__ import annotations

from lexray.families import registry


def families_page() -> str:
    """Every family that lexray knows, with the model types that open by it."""
    by_title: dict[str, list[str]] = {}
    for model_type, family in sorted(registry.families().items()):
        by_title.setdefault(family.title, []).append(f"`{model_type}`")
    rows = [f"| {title} | {', '.join(types)} |" for title, types in sorted(by_title.items())]
    return "\n".join(
        [
            "# Families",
            "",
            "Each is proven against transformers' own modules on tiny random models, from the file "
            "and live: attention outputs, attention weights with rotation, feed-forwards, logits, "
            "folding. What is not here is refused by name, with the family that it resembles.",
            "",
            "| family | `model_type` |",
            "|---|---|",
            *rows,
            "",
        ]
    )
