"""Running transformers' own model and keeping what passes through it."""
