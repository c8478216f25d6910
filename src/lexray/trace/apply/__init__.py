"""Changing a run while it runs: from edits to hooks on the transformers module."""
