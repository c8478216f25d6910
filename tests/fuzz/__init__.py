"""Fuzzers: files as others write them, spoiled, opened as a user opens them.

`pytest tests/fuzz` is a short seeded run; `make fuzz` (`python -m tests.fuzz`) a long one, in
processes of its own with bounds of time and memory.
"""
