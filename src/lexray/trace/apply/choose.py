"""Who changes a pass: by whether a stack stands alone, beside a source, or is one with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from lexray.families import Architecture
from lexray.trace.apply.actions import Action
from lexray.trace.apply.cross import CrossEditor
from lexray.trace.apply.editor import Editor
from lexray.trace.apply.merged import MergedEditor
from lexray.trace.record.attention import uses_interface
from lexray.trace.recording import Recording


def make_editor(
    recording: Recording, modules: Mapping[str, nn.Module], rows: Sequence[Sequence[Action]]
) -> Editor:
    """Who changes copies of a recorded run, each by its own actions."""
    ran, n = recording.weights, len(recording)
    interface = uses_interface(ran.architecture, modules)
    known = ran.architecture, modules, ran.checkpoint, rows, [n] * len(rows), interface
    if recording.source is None:
        return Editor(*known)
    sources = [len(recording.source)] * len(rows)
    return choose_editor(ran.architecture)(*known, sources=sources)


def choose_editor(a: Architecture) -> type[CrossEditor]:
    """Who changes a decoder beside a source."""
    return MergedEditor if is_merged(a) else CrossEditor


def is_merged(a: Architecture) -> bool:
    """Whether a decoder's attention is one with that to its source."""
    return any(block.merged for block in a.blocks)
