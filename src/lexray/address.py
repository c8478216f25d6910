"""Addresses: the names by which the parts of a model are called.

| address     | what it is                                                             |
|-------------|------------------------------------------------------------------------|
| `L3`        | a layer                                                                |
| `L3H7`      | an attention head                                                      |
| `L3H7.VO`   | its value-output matrix W_V W_O; `L3H7.QK` its query-key matrix        |
| `L3H7.V12`  | a subhead: column 12 of W_V (also Q, K), or row 12 of W_O              |
| `L12N345`   | a feed-forward neuron; `L12N345.key`, `.gate`, `.value` its vectors    |
| `L3.b_O`    | a layer's bias (`b_O`, `b_out`) or norm (`attn_norm`, `mlp_norm`, `…_bias`) |
| `L5E2`      | an expert; `L5E2N17` a neuron in it; `L5SN17` one in the shared expert |
| `L3.mixer`  | what stands for attention in hybrids; `L3.mixer.in17`, `L3.mixer.out5` |
|             | a column by which it reads, a row by which it writes                   |
| `enc.L3H7` | a part of the encoder, where a model has one; without `enc.` the decoder's |
| `L3X2`      | a head of a decoder's cross-attention; `L3X2.QK`, `L3X2.K12` as other heads |
| `L12F345`   | a feature of a dictionary; `L12F345.key`, `.value` its vectors         |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from lexray.errors import LexrayError

Matrix = Literal["VO", "QK"]
Subhead = Literal["Q", "K", "V", "O"]
Vector = Literal["key", "gate", "value"]
Port = Literal["in", "out"]
LayerVector = Literal["b_O", "b_out", "attn_norm", "attn_norm_bias", "mlp_norm", "mlp_norm_bias"]

_PATTERN = re.compile(
    r"(?P<encoder>enc\.)?L(?P<layer>\d{1,9})"
    r"(?:(?P<attention>[HX])(?P<head>\d{1,9})(?:\.(?:(?P<matrix>VO|QK)|(?P<subhead>[QKVO])(?P<index>\d{1,9})))?"
    r"|F(?P<feature>\d{1,9})(?:\.(?P<side>key|value))?"
    r"|\.(?P<mixer>mixer)(?:\.(?P<port>in|out)(?P<channel>\d{1,9}))?"
    r"|\.(?P<part>b_O|b_out|(?:attn|mlp)_norm(?:_bias)?)"
    r"|(?:E(?P<expert>\d{1,9})|(?P<shared>S))?(?:N(?P<neuron>\d{1,9})(?:\.(?P<vector>key|gate|value))?)?)",
    re.IGNORECASE | re.ASCII,
)

EXAMPLES = (
    "addresses look like L3H7 (a head), L12N345 (a neuron), L5E2N17 (an expert's neuron), "
    "L3H7.V12 (a subhead: Q, K, V or O), L3H7.VO, L3H7.QK, L12N345.value; in encoder–decoders also "
    "enc.L3H7 and L3X2 (cross-attention)"
)


@dataclass(frozen=True)
class Address:
    """A place in a model.

    >>> Address.parse("L3H7.V12")
    Address(layer=3, head=7, subhead='V', index=12)
    >>> str(Address(12, neuron=345))
    'L12N345'
    """

    layer: int
    head: int | None = None
    matrix: Matrix | None = None
    subhead: Subhead | None = None
    index: int | None = None
    expert: int | None = None
    shared: bool = False
    neuron: int | None = None
    vector: Vector | None = None
    part: LayerVector | None = None
    feature: int | None = None
    """Of a dictionary of the layer, not of the model itself."""
    mixer: bool = False
    port: Port | None = None
    channel: int | None = None
    """Of a mixer: which column of what reads the stream, or row of what writes to it."""
    cross: bool = False
    """The head is one of a decoder's cross-attention."""
    encoder: bool = False
    """In the encoder, where a model has one."""

    def __post_init__(self) -> None:
        inside_head = (self.matrix, self.subhead, self.index)
        inside_ff = (self.expert, self.neuron, self.vector)
        if (
            (self.head is None and inside_head != (None, None, None))
            or (self.head is not None and (self.shared or inside_ff != (None, None, None)))
            or (self.subhead is None) != (self.index is None)
            or (self.matrix is not None and self.subhead is not None)
            or (self.shared and self.expert is not None)
            or (self.vector is not None and self.neuron is None and self.feature is None)
            or (self.cross and (self.head is None or self.encoder))
            or (self.feature is not None and str(self) != f"L{self.layer}F{self._named}")
            or (self.port is None) != (self.channel is None)
            or (self.port is not None and not self.mixer)
            or (self.mixer and str(self) != f"L{self.layer}{self._in_mixer}")
            or (self.part is not None and str(self) != f"{self._layer}.{self.part}")
        ):
            raise LexrayError(f"{self!r} names no one place; {EXAMPLES}")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address; upper and lower case alike."""
        if not isinstance(text, str):
            raise LexrayError(f"an address is a text such as L3H7, not {text!r}")
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise LexrayError(f"{text!r} is no address; {EXAMPLES}")
        fields = match.groupdict()
        numbers = {
            key: int(fields[key])
            for key in ("layer", "head", "index", "expert", "neuron", "feature", "channel")
            if fields[key]
        }
        names = {key: fields[key].upper() for key in ("matrix", "subhead") if fields[key]}
        names |= {key: fields[key].lower() for key in ("vector", "part", "port") if fields[key]}
        names |= {"vector": fields["side"].lower()} if fields["side"] else {}
        if names.get("part") == "b_o":
            names["part"] = "b_O"
        flags = {key: fields[key] is not None for key in ("shared", "mixer", "encoder")}
        flags["cross"] = (fields["attention"] or "").upper() == "X"
        return cls(**numbers, **names, **flags)  # type: ignore[arg-type]

    @property
    def attention(self) -> str:
        """Which of an encoder–decoder's three it is in: "" for a stack's own."""
        return "encoder" if self.encoder else "cross-attention" if self.cross else ""

    @property
    def _in_mixer(self) -> str:
        return f".mixer.{self.port}{self.channel}" if self.port else ".mixer"

    @property
    def _layer(self) -> str:
        return f"{'enc.' * self.encoder}L{self.layer}"

    @property
    def _named(self) -> str:
        """A feature's number, and its vector's name if it is one."""
        return f"{self.feature}.{self.vector}" if self.vector else str(self.feature)

    def __str__(self) -> str:
        text = self._layer
        if self.head is not None:
            text += f"{'X' if self.cross else 'H'}{self.head}"
        if self.expert is not None:
            text += f"E{self.expert}"
        if self.shared:
            text += "S"
        if self.neuron is not None:
            text += f"N{self.neuron}"
        if self.feature is not None:
            text += f"F{self.feature}"
        if self.matrix is not None:
            text += f".{self.matrix}"
        if self.subhead is not None:
            text += f".{self.subhead}{self.index}"
        if self.vector is not None:
            text += f".{self.vector}"
        if self.part is not None:
            text += f".{self.part}"
        if self.mixer:
            text += self._in_mixer
        return text

    def __repr__(self) -> str:
        given = [f"layer={self.layer}"] + [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if name != "layer" and value is not None and value is not False
        ]
        return f"Address({', '.join(given)})"
