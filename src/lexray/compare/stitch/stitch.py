"""Stitching ("Analyzing Transformers in Embedding Space", §5.2): a classifier without training.

The states of A after layer ℓ, carried over by a map that is fitted on the vocabulary (`fit`) or by
a kernel that the two embeddings give (`kernels`; the paper's is `pinv`), go into the last layers of
a fine-tuned B and its head. Both models must have the same vocabulary.

>>> stitched = lx.stitch("demo-wide", "demo-sentiment", after=1, last=2)
>>> stitched(torch.tensor([[750, 359, 336, 598]])).logits.shape
torch.Size([1, 2])
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import SequenceClassifierOutput

from lexray.checkpoint.plain import read_json
from lexray.compare.open import Given, open_as_papers_do
from lexray.compare.stitch.fit import count_tokens, expect_tokens, fit_maps
from lexray.compare.stitch.kernels import Map, kernel, refuse_other_vocabulary
from lexray.compare.stitch.recipe import Recipe
from lexray.compare.stitch.run import CutRunner, States
from lexray.errors import LexrayError
from lexray.files import writing
from lexray.model.model import Model
from lexray.trace.record.module import FINAL_NORM, MODULE
from lexray.trace.record.quiet import quiet

SETTINGS, WEIGHTS, PARTS = "stitch.json", "stitch.safetensors", ("a", "b")
From = Float[Tensor, "batch n d_a"]
To = Float[Tensor, "batch n d_b"]
Encoded = tuple[Int[Tensor, "batch n"], Int[Tensor, "batch n"]]


class Stitched(nn.Module):
    """Behaves like the fine-tuned B: `forward(input_ids, attention_mask)` gives `.logits`.

    The logits of a token classifier are averaged over the tokens that are no padding. The modules
    are those of the two models, not copies.
    """

    kernel: Float[Tensor, "d_a d_b"]
    offset: Float[Tensor, "d_b"]
    scale: Float[Tensor, ""]
    shift: Float[Tensor, "d_b"]

    def __init__(self, a: Model, b: Model, after: int, last: int, recipe: Recipe, way: Map) -> None:
        super().__init__()
        self.after, self.last, self.recipe = after, last, recipe
        self.models = (a, b)
        self._a, self._b = CutRunner.of(a), CutRunner.of(b)
        self.a, self.b = self._a.module, self._b.module
        for name, part in way._asdict().items():
            self.register_buffer(name, part.to(torch.float32).to(b.device))
        self.register_buffer("scale", torch.ones((), device=b.device))
        self.register_buffer("shift", torch.zeros(b.d_model, device=b.device))
        self.eval()

    @property
    def config(self) -> Any:
        """B's: its labels are the stitched model's."""
        return self.b.config

    @property
    def device(self) -> torch.device:
        return self.kernel.device

    def forward(
        self,
        input_ids: Int[Tensor, "batch n"],
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **rest: Any,
    ) -> Any:
        """B's output for A's states; see the class."""
        self.refuse_long(input_ids.shape[1])
        states = self._a.states(input_ids, attention_mask, [self.after])[self.after]
        return self.finish(states, input_ids, attention_mask, labels, **rest)

    def finish(
        self,
        states: States,
        input_ids: Int[Tensor, "batch n"],
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **rest: Any,
    ) -> Any:
        """The output from states of A that are already there."""
        identity = self.recipe.final_norm == "identity"
        pooled = type(self.b).__name__.endswith("ForTokenClassification")
        if labels is not None and not pooled:
            rest["labels"] = labels
        carried = self.carry(states).to(next(self.b.parameters()).dtype)
        with self._b.without_final_norm() if identity else nullcontext():
            out = self._b.last(self.last, carried, input_ids, attention_mask, **rest)
        return average_logits(out.logits, attention_mask, labels) if pooled else out

    def carry(self, states: From) -> To:
        """States of A as states of B, in float32."""
        moved = self.bare(states)
        if self.recipe.match == "token":
            moved = moved / moved.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        moved = moved * self.scale + self.shift
        if self.recipe.b_positions:
            positions = self.models[1].W_pos
            assert positions is not None
            moved = moved + positions[: moved.shape[1]].to(moved)
        return moved

    def bare(self, states: From) -> To:
        """The states through the map."""
        if self.recipe.a_norm:
            states = self._a.normalise(states)
        return states.to(self.kernel) @ self.kernel + self.offset

    @torch.no_grad()
    def calibrate(
        self, input_ids: Int[Tensor, "batch n"], attention_mask: Tensor | None = None
    ) -> None:
        """Measures on some texts, without labels, what `match` needs."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        counted = mask.bool()
        counted[:, 0] = counted[:, 0] & (mask.sum(1) == 1)  # the first token's states are outliers
        ours = self.bare(self._a.states(input_ids, mask, [self.after])[self.after])[counted]
        entry = len(self._b.blocks) - self.last
        theirs = self._b.entering(input_ids, mask, entry)[counted].to(ours)
        if self.recipe.match == "moments":
            size = (theirs - theirs.mean(0)).norm(dim=1).median()
            self.scale = size / (ours - ours.mean(0)).norm(dim=1).median().clamp(min=1e-12)
            self.shift = theirs.mean(0) - ours.mean(0) * self.scale
        elif self.recipe.match != "none":
            size = theirs.norm(dim=1).median()
            token = self.recipe.match == "token"
            self.scale = size / (1.0 if token else ours.norm(dim=1).median().clamp(min=1e-12))

    def refuse_long(self, n: int) -> None:
        for model in self.models:
            if model.architecture.positions and (limit := model.architecture.n_ctx) and n > limit:
                raise LexrayError(f"{n} tokens are more than the {limit} that {model.name} knows")

    def extra_repr(self) -> str:
        a, b = (model.name for model in self.models)
        return f"{a} after layer {self.after} → the last {self.last} of {b}, {self.recipe}"

    def save_pretrained(self, folder: str | Path) -> Path:
        """Both models, the kernel and the settings in a new folder: safetensors and JSON."""
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise LexrayError(f"{target} exists and is not empty; choose another folder")
        settings = {"after": self.after, "last": self.last, "recipe": asdict(self.recipe)}
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LexrayError(f"cannot write {target}: {error.strerror}") from error
        with writing(target) as whole:
            for part, model in zip(PARTS, self.models, strict=True):
                _save(model, whole / part)
            tensors = {n: t.contiguous() for n, t in self.named_buffers(recurse=False)}
            save_file(tensors, whole / WEIGHTS)
            (whole / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
        return target

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Stitched:
        """What `save_pretrained` has written; nothing outside the folder is looked at."""

        home = Path(folder)
        settings = read_json(home / SETTINGS)
        after, last, recipe = (settings.get(key) for key in ("after", "last", "recipe"))
        if type(after) is not int or type(last) is not int or not isinstance(recipe, dict):
            raise LexrayError(f"{home / SETTINGS} should give after, last and a recipe")
        a, b = (Model.from_pretrained(home / p, device=device, dtype=dtype) for p in PARTS)
        try:
            tensors = load_file(home / WEIGHTS, device=str(torch.device(device)))
        except Exception as error:  # safetensors' own error is no OSError
            raise LexrayError(f"{home / WEIGHTS} cannot be read: {error}") from error
        how = Recipe.of(recipe, str(home / SETTINGS))
        _check_layers(a, b, after, last)
        none = Map(torch.zeros(a.d_model, b.d_model), torch.zeros(b.d_model))
        stitched = cls(a, _with_norm(b, how), after, last, how, none)
        tensors.setdefault("offset", stitched.offset)  # what earlier versions saved had none
        shapes = {name: buffer.shape for name, buffer in stitched.named_buffers(recurse=False)}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise LexrayError(f"{home / WEIGHTS} does not fit the two models beside it")
        for name, tensor in tensors.items():
            setattr(stitched, name, tensor)
        return stitched


def average_logits(logits: Tensor, mask: Tensor | None, labels: Tensor | None = None) -> Any:
    """A token classifier's logits as one row per text, padding left out."""
    kept = torch.ones_like(logits[..., 0]) if mask is None else mask.to(logits)
    mean = (logits * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1)
    loss = None if labels is None else cross_entropy(mean, labels)
    return SequenceClassifierOutput(loss=loss, logits=mean)


def stitch(
    a: Given,
    b: Given,
    *,
    after: int,
    last: int = 3,
    calibrate: Sequence[str] = (),
    **recipe: Any,
) -> Stitched:
    """A up to and including layer `after`, then the last `last` layers of B and its head.

    The other arguments are those of `Recipe`: `kernel="pinv"`, `a_norm=True`, … By default the map
    is fitted on the vocabulary, which takes a pass of every token through both models' first
    layers. With `match` or `frequencies="counted"` some texts are needed (`calibrate`), on which
    the sizes of both models' states are measured or tokens counted.

    >>> lx.stitch("demo", "demo-b", after=1, last=2)
    """
    how = Recipe.of(recipe, f"stitch({', '.join(f'{k}={v!r}' for k, v in recipe.items())})")
    a, b = open_as_papers_do(a, b)
    _check_layers(a, b, after, last)
    if how.needs_texts and not calibrate:
        why = (
            f'match="{how.match}" measures the size of states'
            if how.match != "none"
            else 'frequencies="counted" counts tokens'
        )
        raise LexrayError(f'{why} on texts: calibrate=["…", …]')
    texts = encode(a, calibrate, context(a, b)) if how.needs_texts else None
    return next(stitch_after(a, b, [after], last, how, texts))


def stitch_after(
    a: Model,
    b: Model,
    afters: Sequence[int],
    last: int,
    how: Recipe,
    texts: Encoded | None = None,
) -> Iterator[Stitched]:
    """The same after each of some layers: what can be made once for all of them is."""
    refuse_other_vocabulary(a, b)
    for after in afters:
        _check_layers(a, b, after, last)
    b = _with_norm(b, how)
    maps = _maps(a, b, afters, last, how, texts)
    for after in afters:
        stitched = Stitched(a, b, after, last, how, maps[after])
        if how.match != "none" and texts is not None:
            stitched.calibrate(*(t.to(stitched.device) for t in texts))
        yield stitched


def _maps(
    a: Model, b: Model, afters: Sequence[int], last: int, how: Recipe, texts: Encoded | None
) -> dict[int, Map]:
    """A recipe's map after each layer; all the same if the embeddings give it."""
    if how.kernel == "vocabulary":
        frequencies = None
        if how.frequencies == "predicted":
            frequencies = expect_tokens(a, b)
        elif how.frequencies == "counted" and texts is not None:
            frequencies = count_tokens(*texts, a.architecture.d_vocab)
        return fit_maps(a, b, afters, last, normed=how.a_norm, frequencies=frequencies)
    if how.b_positions and b.W_pos is None:
        raise LexrayError(f"{b.name} has no position embeddings that could be added")
    K = kernel(
        a,
        b,
        how.kernel,
        ridge=how.ridge,
        centred=how.centred,
        folded=how.folded,
        embedding=how.embedding,
    )
    return dict.fromkeys(afters, Map(K, K.new_zeros(b.d_model)))


def context(*models: Model) -> int:
    """The longest text that all of them take."""
    return min((n for m in models if (n := m.architecture.n_ctx)), default=1024)


def encode(model: Model, texts: Sequence[str], most: int) -> Encoded:
    """The first tokens of each text, padded on the right, and the mask."""
    rows = [ids[:most] for ids in model.vocabulary.encode_many(texts, special=True)]
    if empty := [repr(text) for text, row in zip(texts, rows, strict=True) if not row]:
        raise LexrayError(f"a text without tokens cannot be run: {', '.join(empty[:3])}")
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def _check_layers(a: Model, b: Model, after: int, last: int) -> None:
    if not 0 <= after < a.n_layers:
        raise LexrayError(
            f"there is no layer {after} after which to leave {a.name}: 0 to {a.n_layers - 1}"
        )
    if not 1 <= last <= b.n_layers:
        raise LexrayError(f"last={last}: {b.name} has {b.n_layers}, of which 1 to all can run")
    if a.device != b.device:
        raise LexrayError(f"{a.name} is on {a.device}, {b.name} on {b.device}; open both on one")


def _with_norm(b: Model, how: Recipe) -> Model:
    """B with its final norm, where its config would leave it out."""
    if how.final_norm != "keep" or b.config.get(FINAL_NORM) != "identity":
        return b
    kept = b.view()
    kept.cache = b.cache.without(MODULE)
    kept.config = b.config | {FINAL_NORM: None}
    return kept


def _save(model: Model, folder: Path) -> None:
    """A model's weights as they are now, its config, and its tokenizer's files."""
    from lexray.checkpoint.assets import TOKENIZERS

    module: Any = model.module()
    with quiet():
        module.save_pretrained(folder)
    for name in (*TOKENIZERS, "tokenizer_config.json", "merges.txt", "special_tokens_map.json"):
        path = model.checkpoint.asset(name)
        if path is not None:
            (folder / name).write_bytes(path.read_bytes())
