"""The flow graph: one forward pass as a picture of words. Build, prune, lay out, draw."""

from lexray.flow.flow import Flow
from lexray.flow.graph import (
    Edge,
    EdgeKind,
    FlowGraph,
    Node,
    NodeKind,
    Projection,
    Run,
    Standing,
    Static,
    Weighed,
    Word,
)

__all__ = [
    "Edge",
    "EdgeKind",
    "Flow",
    "FlowGraph",
    "Node",
    "NodeKind",
    "Projection",
    "Run",
    "Standing",
    "Static",
    "Weighed",
    "Word",
]
