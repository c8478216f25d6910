"""What is not there for encoder–decoders, and for models of several streams, said once."""

from __future__ import annotations

from lexray.errors import LexrayError
from lexray.model.weights import Weights


def refuse_pair(model: Weights) -> None:
    """Raises for what runs one stack of layers on one text, of either stack of a pair."""
    if model.architecture.encoder is not None or model.decoder is not None:
        raise LexrayError(
            f"{model.name} is an encoder–decoder, and this is for models of one stack, which run "
            "one text; with a source and a target there are model.trace(source, target=…), its "
            "lens, contributions, flow and effects, and model.generate(source, target=…)"
        )


def refuse_streams(model: Weights) -> None:
    """Raises for what cuts a model in two, where several residual streams would have to go on."""
    if (streams := model.architecture.streams) is not None:
        raise LexrayError(
            f"{model.name} has {streams.count} residual streams, which every layer mixes anew, and "
            "this joins one stream of a model to one of another; model.trace(…), its lens, "
            "contributions, flow and effects are there"
        )
