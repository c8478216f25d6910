"""Where each node's vector comes from: by what that place usually carries, it is read as words."""

from __future__ import annotations

from lexray.flow.build.draft import Sketch
from lexray.flow.graph import NodeKind, is_crossing
from lexray.trace.read.usual import LIKE, Place

KINDS = {
    NodeKind.EMBED: "pre",
    NodeKind.RESIDUAL: "pre",
    NodeKind.MID: "mid",
    NodeKind.QKV: "attention",
    NodeKind.CONCAT: "attention",
    NodeKind.ATTN_OUT: "attention",
    NodeKind.MIXER: "mixer",
    NodeKind.ATTN_BIAS: "attention",
    NodeKind.FF_OUT: "mlp",
    NodeKind.FF_BIAS: "mlp",
    NodeKind.HEAD: "heads",
    NodeKind.VALUE: "values",
    NodeKind.QUERY: LIKE["queries"],
    NodeKind.KEY: LIKE["keys"],
}
CROSS = {
    NodeKind.CONCAT: "cross",
    NodeKind.CROSS_OUT: "cross",
    NodeKind.ATTN_BIAS: "cross",
    NodeKind.HEAD: "cross_heads",
    NodeKind.VALUE: "cross_heads",
}
"""The same in a decoder's attention to its source."""
NAMES = {
    "cross_norm": "cross_in",
    "cross_sum": "mid",
    "cross_out.normed": "cross",
    "attn_norm": "attn_in",
    "laurel.normed": "laurel",
    "mixer_norm": "mixer_in",
    "mixer.normed": "mixer",
    "ff_norm": "mlp_in",
    "attn_out.normed": "attention",
    "ff_out.normed": "mlp",
    "attn_sum": "mid",
    "ff_sum": "pre",
}
"""Norms and sums, by the ends of their ids."""


def place_of(sketch: Sketch, n_layers: int) -> Place | None:
    """The place of a node; None for the last one, which is the prediction.

    What is left out of a sum is read as the sum is, a parameter as a parameter.
    """
    layer = sketch.layer
    if sketch.kind == NodeKind.RESIDUAL and layer == n_layers:
        return None
    if sketch.parameter is not None and sketch.parameter[0] != "bias":
        of, _, sign = sketch.parameter
        return Place(of, layer, float(sign))
    if sketch.kind == NodeKind.MIXER and sketch.id.endswith(".laurel"):
        return Place("laurel", layer)
    crosses = is_crossing(sketch.id)
    if sketch.kind == NodeKind.OTHERS:
        if sketch.place.get("head") is not None:
            return Place("cross_heads" if crosses else "heads", layer)
        written = "cross" if crosses else "attention"
        return Place("mlp" if sketch.id.endswith("ff.others") else written, layer)
    if sketch.kind == NodeKind.MID and sketch.id.endswith(".self"):
        return Place("self", layer)
    if crosses and sketch.kind == NodeKind.QUERY:  # what leaves the encoder, not its first block
        return Place(LIKE["queries"], 1)
    kind = (
        (CROSS.get(sketch.kind) if crosses else None)
        or KINDS.get(sketch.kind)
        or next(kind for name, kind in NAMES.items() if sketch.id.endswith(name))
    )
    if sketch.id.endswith("ff_sum"):  # before the norm that gives the next block's input
        return Place(kind, layer + 1) if layer + 1 < n_layers else None
    return Place(kind, layer)
