"""What is not there for encoder–decoders, and for models of several streams, said once."""

from __future__ import annotations

from lexray.errors import LexrayError
from lexray.model.weights import Weights


def refuse_pair(model: Weights) -> None:
    """Raises for what runs one stack of layers."""
    if model.architecture.encoder is not None:
        raise LexrayError(
            f"{model.name} is an encoder–decoder, for which this is not there: lexray reads its "
            "weights (model['L3H2'], model['L3X2'], model['enc.L3H2']) and traces a source and a "
            "target (model.trace(source, target=…): lens, contributions)"
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
