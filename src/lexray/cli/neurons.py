"""`lexray neuron`, `subhead`, `vector` and `feature`: single vectors as tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexray.address import Address
from lexray.cli.groups import expand, option
from lexray.cli.options import (
    AddressArg,
    DictionaryArg,
    K,
    Limit,
    ReadingOptions,
    TokenOptions,
)
from lexray.cli.output import OutputOptions
from lexray.cli.parse import names
from lexray.errors import LexrayError


def register(app: typer.Typer) -> None:
    for command in (neuron, subhead, vector, feature):
        app.command()(expand(command))


def _parse(address: str, kind: str, example: str) -> Address:
    at = Address.parse(address)
    if getattr(at, kind) is None:
        raise LexrayError(f"{at} is no {kind}; {kind}s look like {example}")
    return at


def neuron(
    model: ReadingOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 30,
) -> None:
    """A feed-forward neuron as tokens: its key, gate and value, or one: L23N907.value.

    lexray neuron smollm2 L26N777 -k 10
    """
    at = _parse(address, "neuron", "L23N907 or L23N907.value")
    part = model.open()[at]
    read = part.top if at.vector is None else part.every
    output.show(read(k, filter=tokens.filter()))


def subhead(
    model: ReadingOptions,
    address: AddressArg,
    tokens: TokenOptions,
    output: OutputOptions,
    k: K = 30,
) -> None:
    """A subhead as tokens: a column of a head's Q, K or V, or a row of its O, as L3H7.V12.

    lexray subhead smollm2 L25H1.O3 --ascii
    """
    at = _parse(address, "subhead", "L3H7.V12 (Q, K, V or O)")
    output.show(model.open()[at].every(k, filter=tokens.filter()))


def vector(
    model: ReadingOptions,
    where: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS|FILE",
            help="L3N7.value, L3H7.V12, L3.b_out …; or a file of your own vectors, one a row: "
            ".npy, .safetensors, .json, .csv or .txt.",
        ),
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    kind: Annotated[
        str, option("Of a file: read it as a value, key, gate, Q, K, V or O.", metavar="KIND")
    ] = "value",
    layer: Annotated[int | None, option("Of a file: the layer it belongs to.", min=0)] = None,
    name: Annotated[str | None, option("Of a .safetensors file: which tensor.")] = None,
    k: K = 30,
) -> None:
    """Any vector as tokens: biases (L3.b_O), norms (L3.attn_norm), or your own from a file.

    lexray vector smollm2 L29.mlp_norm -k 10
    lexray vector smollm2 probe.npy --kind value --layer 12
    """
    from lexray.checkpoint.vectors import is_vector_file, load_vectors
    from lexray.model.vectors import Vector

    if is_vector_file(where):
        x = load_vectors(Path(where), name)
        output.show(model.open().read(x, kind, layer, k=k, filter=tokens.filter()))
        return
    part = model.open()[where]
    if not isinstance(part, Vector):
        raise LexrayError(
            f"{where} is no single vector; those look like L3N7.value (.key, .gate), L3H7.V12, "
            "L3.b_out or L3.attn_norm"
        )
    output.show(part.every(k, filter=tokens.filter()))


def feature(
    model: ReadingOptions,
    dictionary: DictionaryArg,
    address: Annotated[
        str, typer.Argument(metavar="FEATURE", help="L12F345, or L12F345.key, L12F345.value.")
    ],
    tokens: TokenOptions,
    output: OutputOptions,
    nearest: Annotated[
        str | None,
        option(
            "What reads most like it: features, or the model's values, keys, gates, Q, K, V, O; "
            "several with commas.",
            metavar="GROUPS",
        ),
    ] = None,
    limit: Limit = 20,
    k: K = 30,
) -> None:
    """A feature of a sparse autoencoder or transcoder as tokens: its encoder and its decoder.

    lexray feature smollm2 saes/blocks.12.hook_resid_pre L12F345
    """
    from lexray.dictionary.dictionary import Dictionary

    features = Dictionary.open(dictionary, model.open())
    if nearest is not None:
        output.show(features.nearest(address, limit, among=names([nearest])))
    else:
        output.show(features[address].top(k, filter=tokens.filter()))
