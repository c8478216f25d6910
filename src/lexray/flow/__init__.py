"""The flow graph: one forward pass as a picture of words. Build, prune, lay out, draw."""

from lexray.flow.graph import (
    Edge,
    EdgeKind,
    FlowGraph,
    Node,
    NodeKind,
    Place,
    Projection,
    Run,
    Static,
    Weighed,
    Word,
)

__all__ = [
    "Edge",
    "EdgeKind",
    "FlowGraph",
    "Node",
    "NodeKind",
    "Place",
    "Projection",
    "Run",
    "Static",
    "Weighed",
    "Word",
]
