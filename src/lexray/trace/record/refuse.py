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
    refuse_streams(model)


def refuse_streams(model: Weights) -> None:
    """Raises for a model whose layers mix several residual streams: what is recorded of one would
    not add up."""
    if (n := model.architecture.streams) > 1:
        raise LexrayError(
            f"{model.name} has {n} residual streams, which every layer mixes anew, so that its "
            "passes are not recorded: lexray reads its weights (model['L3H2'], model['L3N17'], "
            "model.lookup(…)); model.module() is transformers' own model, to be run by itself"
        )
