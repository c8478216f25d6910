"""Where an edit acts: an address, and which of its parts.

| site            | what is changed there                                                  |
|-----------------|------------------------------------------------------------------------|
| `L18`           | the residual stream as it leaves the layer; `L18.pre` as it enters     |
| `L18.attn`      | what the attention writes; `L18.mlp` what the feed-forward writes      |
| `L18.mixer`     | what a mixer writes, in hybrids                                        |
| `L18.laurel`    | what the narrow map beside attention writes, in Gemma 3n               |
| `L18.cross`     | what cross-attention writes, in a decoder with an encoder beside it    |
| `L18H3`         | a head: its weighted sum of values, and so what it writes              |
| `L18H3.q`       | its queries; `.k`, `.v` keys and values (of all heads that share them) |
| `L18H3.pattern` | its attention weights                                                  |
| `L29N50`        | a neuron's coefficient; `L5E2N17`, `L5SN17` an expert's                |
| `L5E2`          | an expert: the weight with which it writes; `L5S` the shared one       |
| `enc.L3H2`      | all of these in the encoder of an encoder–decoder                      |
| `L3X2`          | a head of cross-attention; of `L3X2.k` and `.v` positions are those of |
|                 | the source, of all else in the decoder those of the target             |

Of a layer, `ablate` and `scale` mean what it adds: its attention (or mixer), its cross-attention
and its feed-forward. Of several residual streams (Gemma 3n) `L18` and `L18.pre` are all of them:
what is patched is patched in each, and a direction is added to each, as layers write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, cast

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families import Block
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward, Mixture, Neuron
from lexray.model.head import Head
from lexray.model.layer import Layer
from lexray.model.mixer import Mixer

Part = Literal["", "pre", "attn", "laurel", "cross", "mlp", "q", "k", "v", "pattern"]
OF_LAYERS: tuple[Part, ...] = ("", "pre", "attn", "laurel", "cross", "mlp")
OF_HEADS: tuple[Part, ...] = ("", "q", "k", "v", "pattern")
Kind = (
    Literal["layer", "pre", "attn", "cross", "mixer", "mlp", "head", "q", "k", "v", "pattern"]
    | Literal["laurel", "neuron", "expert", "shared"]
)
_PATTERN = re.compile(
    r"(?P<address>.+?)(?:\.(?P<part>pre|post|attn|laurel|cross|mlp|q|k|v|pattern))?", re.I
)
EXAMPLES = (
    "edits act on L3 (the residual stream after a layer), L3.pre, L3.attn, L3.mlp, L3H7 (a head), "
    "L3.mixer (in hybrids), L3H7.q, .k, .v or .pattern, L12N345 (a neuron), L5E2 (an expert); in "
    "encoder–decoders also on L3.cross, L3X2 (cross-attention) and enc.L3H7"
)


@dataclass(frozen=True)
class Site:
    """A place where a run can be changed.

    >>> Site.parse("L3H7.pattern").kind
    'pattern'
    """

    address: Address
    part: Part = ""

    def __post_init__(self) -> None:
        a = self.address
        inner = (a.matrix, a.subhead, a.vector, a.part, a.feature or a.port)
        of_layer = a == Address(a.layer, encoder=a.encoder)
        allowed = OF_LAYERS if of_layer else OF_HEADS if a.head is not None else ("",)
        if inner != (None,) * 5 or self.part not in allowed:
            raise LexrayError(f"nothing can be changed at {self}; {EXAMPLES}")

    @classmethod
    def parse(cls, text: str) -> Site:
        if not isinstance(text, str):
            raise LexrayError(f"a place is a text such as L3H7, not {text!r}")
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise LexrayError(f"{text!r} is no place in a model; {EXAMPLES}")
        part = (match["part"] or "").lower()
        return cls(Address.parse(match["address"]), cast("Part", "" if part == "post" else part))

    @property
    def layer(self) -> int:
        return self.address.layer

    @property
    def kind(self) -> Kind:
        if self.part:
            return self.part
        a = self.address
        if a.mixer:
            return "mixer"
        if a.head is not None:
            return "head"
        if a.neuron is not None:
            return "neuron"
        return "expert" if a.expert is not None else "shared" if a.shared else "layer"

    @property
    def crosses(self) -> bool:
        """Whether it is cross-attention, or a head of it."""
        return self.address.cross or self.part == "cross"

    @property
    def group(self) -> str:
        """Where it is in an encoder–decoder: "encoder", "cross-attention", "" for the rest."""
        return "cross-attention" if self.part == "cross" else self.address.attention

    def check(self, model: Anatomy) -> Layer | Head | Mixer | Neuron | FeedForward | Mixture:
        """The part of the model that is meant; a LexrayError that says what there is, if none."""
        part: Layer | Head | Mixer | Neuron | FeedForward | Mixture = model[self.address]
        block = self._block(model)
        if (
            (self.part == "attn" and block.attention.absent)
            or (self.part == "cross" and block.cross is None)
            or (self.part == "laurel" and block.laurel is None)
            or (self.part == "mlp" and block.ff.absent)
        ):
            there = ", ".join(map(str, self.sub_blocks(model)))
            raise LexrayError(f"there is no {self}: layer {self.layer} has {there}")
        return part

    def sub_blocks(self, model: Anatomy) -> list[Site]:
        """What the layer adds to the stream."""
        block, here = self._block(model), Address(self.layer, encoder=self.address.encoder)
        sites = [] if block.attention.absent else [Site(here, "attn")]
        if block.laurel is not None:
            sites.append(Site(here, "laurel"))
        if block.cross is not None:
            sites.append(Site(here, "cross"))
        if block.mixer is not None:
            sites.append(Site(replace(here, mixer=True)))
        return sites if block.ff.absent else [*sites, Site(here, "mlp")]

    def _block(self, model: Anatomy) -> Block:
        return model.stack_at(self.address).architecture.blocks[self.layer]

    def __str__(self) -> str:
        return f"{self.address}.{self.part}" if self.part else str(self.address)
