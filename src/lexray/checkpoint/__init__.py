"""Lazy named tensors: local files, the Hub, byte ranges over HTTP, live modules, adapters."""

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo

__all__ = ["Box", "Checkpoint", "TensorInfo"]
