"""Writing parameters of our own into random models of every family."""

from __future__ import annotations

import torch
from torch import Tensor

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families import Latent, Linear
from lexray.families.linear import ALL, Heads
from lexray.families.rotary import Rotary
from lexray.families.spec import Attention
from lexray.model.model import Model
from lexray.roles.induction import sample
from lexray.roles.patterns import lone_of, repeated_tokens, states_of
from tests.families.zoo import find, make
from tests.vocabulary.vocabularies import vocabulary

SHARP = 400.0
"""How far the score of the place that a planted head looks at stands out, in units of softmax."""


def fresh(name: str) -> Model:
    """A model of its own, whose weights a test may change."""
    module = make(find(name))
    return Model(ModuleCheckpoint(module), vocabulary=vocabulary()).view("raw")


def reopened(model: Model) -> Model:
    """The same weights, nothing remembered."""
    assert isinstance(model.checkpoint, ModuleCheckpoint)
    return Model(model.checkpoint, vocabulary=vocabulary()).with_view(model.options)


def stored(model: Model, name: str) -> Tensor:
    """A tensor to write into."""
    assert isinstance(model.checkpoint, ModuleCheckpoint)
    return model.checkpoint.module.state_dict()[name]


def write(
    model: Model, linear: Linear, W: Tensor, *, inputs: slice = ALL, outputs: slice = ALL
) -> None:
    """W[inputs, outputs] = W, wherever and however it lies on disk."""
    part = stored(model, linear.weight)[linear.index(inputs, outputs)]
    part = part[0] if linear.expert is not None else part
    with torch.no_grad():
        (part if linear.in_first else part.T).copy_(W.to(part))


def projections(spec: Attention) -> dict[str, Heads]:
    return {"Q": spec.q, "K": spec.k, "V": spec.v}


def write_head(model: Model, layer: int, head: int, **matrices: Tensor) -> None:
    """Q, K and V as d×r, O as r×d."""
    spec = model.architecture.blocks[layer].attention
    for kind, W in matrices.items():
        if kind == "O":
            r = spec.v.d_head
            write(model, spec.o, W, inputs=slice(head * r, (head + 1) * r))
        else:
            heads = projections(spec)[kind]
            write(model, heads.linear, W, outputs=heads.outputs(shared(spec, heads, head)))


def shared(spec: Attention, heads: Heads, head: int) -> int:
    """Which of the keys or values a query head has."""
    return head * len(heads.starts) // len(spec.q.starts)


def solve(
    model: Model, layer: int, head: int, kind: str, X: Tensor, Y: Tensor, *, normed: bool = False
) -> None:
    """Writes the matrix that makes rows Y of rows X; through a latent, what stands behind it, with
    the latent's norm or its gain alone, as matrices are read."""
    spec = model.architecture.blocks[layer].attention
    heads = projections(spec)[kind]
    linear, at = heads.linear, heads.outputs(shared(spec, heads, head))
    X, Y = X.double(), Y.double()
    if not isinstance(linear, Latent):
        write(model, linear, invert(X) @ Y, outputs=at)
        return
    own, tail = linear.parts(at)
    latent, norm = X @ linear.down.read(model.checkpoint).double(), linear.norm
    if normed and (bias := linear.down.read_bias(model.checkpoint)) is not None:
        latent = latent + bias.double()
    if normed and norm is not None:
        latent = norm(latent, model.checkpoint)
    elif norm is not None and (gain := norm.read_gain(model.checkpoint)) is not None:
        latent = latent * gain.double()
    n = own.stop - own.start
    write(model, Linear(linear.weight), invert(latent) @ Y[:, :n], outputs=own)
    if linear.tail is not None:
        write(model, linear.tail, invert(X) @ Y[:, n:], outputs=tail)


def invert(X: Tensor) -> Tensor:
    """The pseudo-inverse, which takes what single precision leaves of zeros for zeros."""
    return torch.linalg.pinv(X, rtol=1e-5)


def entering(model: Model, layer: int, X: Tensor, *, bias: bool = True) -> Tensor:
    """What the matrices of a layer's attention meet when the residual stream is X."""
    norm, X = model.architecture.blocks[layer].attention.pre_norm, X.double()
    if norm is None:
        return X
    X = X - X.mean(1, keepdim=True) if norm.centres else X
    gain, shift = norm.read_gain(model.checkpoint), norm.read_bias(model.checkpoint)
    X = X if gain is None else X * gain.double()
    return X if shift is None or not bias else X + shift.double()


def answer(model: Model, layer: int, head: int, kind: str, X: Tensor, Y: Tensor) -> None:
    """Makes a head's queries, keys or values at normed states X be Y, biases included."""
    spec = model.architecture.blocks[layer].attention
    heads = projections(spec)[kind]
    bias = heads.read_bias(model.checkpoint, shared(spec, heads, head))
    Y = Y.double() if bias is None else Y.double() - bias.double()
    solve(model, layer, head, kind, entering(model, layer, X), Y, normed=True)


# ------------------------------------------------------------------ one place back


def plant_previous(model: Model, layer: int, head: int) -> Model:
    """A head that looks at the token before; the model, opened again."""
    spec = model.architecture.blocks[layer].attention
    if spec.rotary is not None:
        return _plant_turned(model, layer, head, spec, spec.rotary)
    return _plant_placed(model, layer, head)


def _plant_turned(model: Model, layer: int, head: int, spec: Attention, turn: Rotary) -> Model:
    """Rotary: every token asks for the same, and offers the same one place turned."""
    generator, width = torch.Generator().manual_seed(5), spec.q.d_head
    embed = stored(model, model.architecture.embed)
    with torch.no_grad():
        embed += 10 * torch.randn(embed.shape[1], generator=generator)
        for norm in (spec.q_norm, spec.k_norm):
            for own in () if norm is None else (*norm.heads, *([norm.joint] if norm.joint else [])):
                if own.gain is not None:
                    stored(model, own.gain).fill_((SHARP / spec.scale / width) ** 0.5)
    again = reopened(model)
    back = turn.matrix(-1, width) / turn.factor**2
    q = _even(turn, width, back)
    size = (SHARP / spec.scale) ** 0.5
    ids = torch.arange(embed.shape[0])
    X = lone_of(again, ids, first=layer == 0)
    for kind, row in (("Q", q), ("K", q @ back)):
        answer(again, layer, head, kind, X, size * _level(turn, row).expand(len(ids), -1))
    return reopened(model)


def _even(turn: Rotary, width: int, back: Tensor) -> Tensor:
    """A query of size one with all turned pairs alike, in such phases that a norm which centres
    does little to it and to its turned self."""
    n, generator = len(turn.frequencies), torch.Generator().manual_seed(5)
    pairs = torch.arange(n)
    first, second = (pairs, pairs + n) if turn.kind == "half" else (2 * pairs, 2 * pairs + 1)
    phases = 6.3 * torch.rand(400, n, generator=generator).double()
    q = torch.zeros(400, width, dtype=torch.float64)
    q[:, turn.start + first], q[:, turn.start + second] = phases.cos(), phases.sin()
    best = q[(q.sum(1).abs() + (q @ back).sum(1).abs()).argmin()]
    return best / best.norm()


def _level(turn: Rotary, row: Tensor) -> Tensor:
    """The same with mean zero, where there are dimensions that are not turned."""
    still = torch.ones(len(row), dtype=torch.bool)
    still[turn.start : turn.start + 2 * len(turn.frequencies)] = False
    return torch.where(still, -row.sum() / still.sum(), row) if still.any() else row


def _plant_placed(model: Model, layer: int, head: int) -> Model:
    """Learned positions: queries of a place answer to keys of the one before."""
    spec = model.architecture.blocks[layer].attention
    generator, r = torch.Generator().manual_seed(5), spec.q.d_head
    positions = model.architecture.positions
    if positions is None:  # they are calculated: what they are added to can be made small
        with torch.no_grad():
            stored(model, model.architecture.embed).mul_(0.02)
    else:
        table = stored(model, positions)
        at = torch.arange(len(table)) - model.architecture.position_offset
        codes = places(at, r)
        with torch.no_grad():
            spread = torch.randn(r, table.shape[1], generator=generator).double()
            table.copy_((6 * codes @ torch.linalg.qr(spread.T).Q.T).to(table))
    again = reopened(model)
    text = repeated_tokens(again)
    X = torch.cat([states_of(again, ids, first=layer == 0) for ids in text.ids])
    at = torch.arange(text.n).repeat(len(text.ids))
    size = (SHARP / spec.scale) ** 0.5
    answer(again, layer, head, "Q", X, size * places(at - 1, r))
    answer(again, layer, head, "K", X, size * places(at, r))
    return reopened(model)


def places(at: Tensor, r: int) -> Tensor:
    """A code of r numbers for each position, whose product with another's is largest for itself."""
    frequencies = torch.tensor([2.0 * 0.5 ** (i / 2) for i in range(r // 2)], dtype=torch.float64)
    angles = at.double()[:, None] * frequencies
    codes = torch.zeros(len(at), r, dtype=torch.float64)
    codes[:, : r // 2], codes[:, r // 2 : 2 * (r // 2)] = angles.cos(), angles.sin()
    return codes / (r // 2) ** 0.5


# ------------------------------------------------------------------ induction


def plant_pair(model: Model, mover: tuple[int, int], finder: tuple[int, int]) -> Model:
    """Two heads: what the first moves of a token, the second's keys answer to the token itself."""
    generator, ids = torch.Generator().manual_seed(1), sample(model)
    r = model.architecture.blocks[mover[0]].attention.v.d_head
    before = lone_of(model, ids, first=mover[0] == 0)
    met = entering(model, mover[0], before)
    # evenly spread: r directions of the tokens that are as large as each other
    code = torch.linalg.svd(met - met.mean(0), full_matrices=False).U[:, :r] * len(ids) ** 0.5
    write_head(model, *mover, O=torch.randn(r, model.d_model, generator=generator) / r**0.5)
    solve(model, *mover, "V", met, code)
    again = reopened(model)
    head = again.view(folded=True).head(f"L{mover[0]}H{mover[1]}")
    code = before.to(head.W_V) @ head.W_V  # as near to it as a latent comes
    moved = code @ head.W_O
    width = model.architecture.blocks[finder[0]].attention.q.d_head
    found = torch.nn.functional.pad(code, (0, width))[:, :width]
    after = lone_of(again, ids, first=False)
    solve(model, *finder, "Q", entering(again, finder[0], after, bias=False), found)
    solve(model, *finder, "K", entering(again, finder[0], moved, bias=False), found)
    return reopened(model)
