"""What is not there for encoder–decoders, said once."""

from __future__ import annotations

from lexray.errors import LexrayError
from lexray.model.weights import Weights


def refuse_pair(model: Weights) -> None:
    """Raises for what runs one stack of layers."""
    if model.architecture.encoder is not None or model.decoder is not None:
        raise LexrayError(
            f"{model.name} is an encoder–decoder, for which this is not there: lexray reads its "
            "weights (model['L3H2'], model['L3X2'], model['enc.L3H2']) and traces a source and a "
            "target (model.trace(source, target=…): lens, contributions)"
        )
