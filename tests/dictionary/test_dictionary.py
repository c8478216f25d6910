"""Dictionaries in the layouts of SAELens, sparsify and plain modules, against dense float64."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lexray.dictionary.dictionary import Dictionary
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.read.usual import cut
from tests.dense import Dense, dense
from tests.families.zoo import build
from tests.find.test_likeness import dense_likeness
from tests.vocabulary.vocabularies import worded

N = 50
FOLDED = {"folded": True, "standardised": True}


@cache
def model() -> Model:
    return worded("llama").view(**FOLDED)


@cache
def reference() -> Dense:
    return dense(build("llama"))


def weights(seed: int = 0, n: int = N) -> dict[str, Tensor]:
    """SAELens' tensors, features that are not centred on zero."""
    g = torch.Generator().manual_seed(seed)
    d = model().d_model
    return {
        "W_enc": torch.randn(d, n, generator=g) + 0.3,
        "W_dec": torch.randn(n, d, generator=g) - 0.2,
        "b_enc": torch.randn(n, generator=g),
        "b_dec": torch.randn(d, generator=g),
    }


def saelens(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """A folder as SAELens writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"architecture": "standard", "hook_name": "blocks.1.hook_resid_pre", **config}
    (folder / "cfg.json").write_text(json.dumps(whole))
    save_file(tensors, folder / "sae_weights.safetensors")
    save_file({"sparsity": torch.zeros(N)}, folder / "sparsity.safetensors")
    return folder


def dense_lists(X: Tensor, E: Tensor, kind: str) -> Tensor:
    """Scores, standardised by token: keys with the features' own mean and spread, values from 0."""
    scores = X.double() @ E
    mean = scores.mean(0) if kind == "key" else 0
    return (scores - mean) / (scores - mean).square().mean(0).sqrt()


def along(scores: Tensor) -> Tensor:
    """A list, standardised along itself."""
    return (scores - scores.mean()) / scores.std(correction=0)


# ---------------------------------------------------------------------- reading


def test_features_read_like_neurons(tmp_path: Path) -> None:
    """The encoder as a key, the decoder as a value, standardised among the features."""
    tensors = weights()
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model())
    assert len(dictionary) == N
    assert dictionary.layer == 1
    r = reference()
    writing, reading = r.columns("value", folded=True), r.columns("key", folded=True)
    values = dense_lists(tensors["W_dec"], writing, "value")
    keys = dense_lists(tensors["W_enc"].T, reading, "key")
    found = dictionary["L1F7"].top(5)
    for name, lists in (("key", keys), ("value", values)):
        best = lists[7].argsort(descending=True)[:5].tolist()
        assert [s.token.id for s in found[name].top] == best
        for scored in found[name].top:
            assert scored.score == pytest.approx(float(lists[7, scored.token.id]), rel=1e-3)
    assert found["value"].source.address == "L1F7.value"
    assert dictionary["L1F7.value"].top(5) == found["value"] == dictionary[7].value.top(5)
    assert dictionary.top(3, features=[7, 9])[0].tokens == found["value"].tokens[:3]
    assert len(dictionary.top(2, of="key")) == N


def test_raw_features_are_products_with_the_embedding(tmp_path: Path) -> None:
    tensors = weights()
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model()).view("raw")
    scores = tensors["W_dec"][3].double() @ reference().E_out
    found = dictionary[3].value.top(4)
    assert [s.token.id for s in found.top] == scores.argsort(descending=True)[:4].tolist()
    assert found.top[0].score == pytest.approx(float(scores.max()), rel=1e-4)
    assert "raw" in str(found.source)


LAYOUTS = ["saelens", "saelens 6", "sparsify", "module", "prefixed", "circuit-tracer"]


def write(folder: Path, layout: str, t: dict[str, Tensor]) -> Path:
    turned = {name: x.T.contiguous() if x.ndim == 2 else x for name, x in t.items()}
    match layout:
        case "saelens":
            return saelens(folder, t, hook_layer=1)
        case "saelens 6":
            inner = {"hook_name": "blocks.1.hook_resid_post", "sae_lens_version": "6.1.0"}
            return saelens(folder, t, hook_name=None, metadata=inner)
        case "sparsify":
            folder = folder / "layers.1"
            folder.mkdir()
            (folder / "cfg.json").write_text(json.dumps({"num_latents": N, "k": 3}))
            names = {"encoder.weight": turned["W_enc"], "encoder.bias": t["b_enc"]}
            save_file(names | {n: t[n] for n in ("W_dec", "b_dec")}, folder / "sae.safetensors")
            return folder
        case "circuit-tracer":
            path = folder / "layer_1.safetensors"
            save_file(t | {"W_enc": turned["W_enc"]}, path)
            return path
    stem = "sae." if layout == "prefixed" else ""
    names = {"encoder.weight": turned["W_enc"], "decoder.weight": turned["W_dec"]}
    names |= {"encoder.bias": t["b_enc"], "decoder.bias": t["b_dec"]}
    path = folder / "layer_1.safetensors"
    save_file({stem + name: x for name, x in names.items()}, path)
    return path


@pytest.mark.parametrize("n", [N, 12])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_hold_the_same_features(tmp_path: Path, layout: str, n: int) -> None:
    tensors = weights(n=n)
    dictionary = Dictionary.open(write(tmp_path, layout, tensors), model())
    assert (dictionary.layer, len(dictionary)) == (1, n)
    for i in (0, n - 1):
        assert torch.equal(dictionary[i].key.tensor, tensors["W_enc"][:, i])
        assert torch.equal(dictionary[i].value.tensor, tensors["W_dec"][i])


def test_square_dictionaries_go_by_their_names(tmp_path: Path) -> None:
    """As many features as the model is wide: no shape tells rows from columns."""
    d = model().d_model
    tensors = weights(n=d)
    for layout in ("saelens", "module", "sparsify"):
        (tmp_path / layout).mkdir()
        dictionary = Dictionary.open(write(tmp_path / layout, layout, tensors), model())
        assert torch.equal(dictionary[5].key.tensor, tensors["W_enc"][:, 5])
        assert torch.equal(dictionary[5].value.tensor, tensors["W_dec"][5])


def test_a_transcoder_of_a_normed_input_is_folded(tmp_path: Path) -> None:
    """`mlp.hook_in` is what the norm gives, gain included; the stream has no gain."""
    tensors = weights()
    hooks = {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = Dictionary.open(saelens(tmp_path, tensors, **hooks), model())
    assert dictionary.encoder.point == "mlp_in"
    gain = build("llama").get_parameter("model.layers.1.post_attention_layernorm.weight")
    assert torch.allclose(dictionary[4].key.tensor, tensors["W_enc"][:, 4] * gain)
    assert torch.equal(dictionary[4].value.tensor, tensors["W_dec"][4])
    assert torch.equal(dictionary.view("raw")[4].key.tensor, tensors["W_enc"][:, 4])


# ---------------------------------------------------------------------- search


@pytest.mark.parametrize("among", ["values", "keys"])
def test_lookup_ranks_features_by_their_own_lists(tmp_path: Path, among: Any) -> None:
    tensors = weights()
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model())
    r, kind = reference(), among.removesuffix("s")
    X = tensors["W_dec"] if among == "values" else tensors["W_enc"].T
    z = dense_lists(X, r.columns(kind, folded=True), kind)
    s = (z - z.mean(1, keepdim=True)) / z.std(1, correction=0, keepdim=True)
    score = s[:, [0, 5]].mean(1)
    hits = dictionary.lookup(["law", " walk"], among).top(5)
    best = score.argsort(descending=True)[:5].tolist()
    assert [hit.address for hit in hits] == [f"L1F{i}.{kind}" for i in best]
    for hit, i in zip(hits, best, strict=True):
        assert hit.score == pytest.approx(float(score[i]), rel=2e-3, abs=2e-3)
        order = z[i].argsort(descending=True).tolist()
        assert hit.ranks == (order.index(0) + 1, order.index(5) + 1)


def test_lookup_of_a_vector_finds_the_feature_itself(tmp_path: Path) -> None:
    tensors = weights()
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model())
    hit = dictionary.lookup(tensors["W_dec"][11]).top(1)[0]
    assert hit.address == "L1F11.value"


def test_nearest_features_and_parameters(tmp_path: Path) -> None:
    tensors = weights()
    tensors["W_dec"][8] = tensors["W_dec"][3] * 2 + 0.05
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model())
    z = dense_lists(tensors["W_dec"], reference().columns("value", folded=True), "value")
    expected = torch.tensor([dense_likeness(along(z[3]), along(y), 4) for y in z])
    found = dictionary[3].nearest(4)
    order = [i for i in expected.abs().argsort(descending=True).tolist() if i != 3]
    assert [hit.address for hit in found] == [f"L1F{i}.value" for i in order[:4]]
    assert found[0].score == pytest.approx(float(expected[order[0]]), abs=1e-3)
    own = dictionary.nearest("L1F3.key", 5, among=("values", "O"))
    assert {hit.reading.name for hit in own} <= {"value", "O"}
    assert len(own) == 5


def test_nearest_compares_a_feature_with_a_neuron_by_their_lists(tmp_path: Path) -> None:
    """Each list standardised by its own kind: features' by features, values' by values."""
    tensors, r = weights(), reference()
    dictionary = Dictionary.open(saelens(tmp_path, tensors), model())
    E = r.columns("value", folded=True)
    values = r.vectors("value", True)
    mine = dense_lists(tensors["W_dec"], E, "value")[3]
    theirs = dense_lists(torch.stack(list(values.values())), E, "value")
    expected = torch.tensor([dense_likeness(along(mine), along(y), 4) for y in theirs])
    found = dictionary[3].nearest(3, among=["values"])
    order = expected.abs().argsort(descending=True)[:3].tolist()
    assert [hit.address for hit in found] == [list(values)[i] for i in order]
    assert found[0].score == pytest.approx(float(expected[order[0]]), abs=1e-3)


# ---------------------------------------------------------------------- activity


def trace_of(point: str) -> tuple[Any, Tensor]:
    trace = model().trace([3, 5, 7, 9], special=False)
    return trace, getattr(trace[1], point).double()


@pytest.mark.parametrize(
    ("config", "more", "point"),
    [
        ({}, {}, "resid_pre"),
        ({"hook_name": "blocks.1.hook_mlp_out", "apply_b_dec_to_input": True}, {}, "mlp_out"),
        ({"hook_name": "blocks.1.hook_resid_post"}, {"threshold": torch.rand(N)}, "resid_post"),
        ({"hook_name": "blocks.1.hook_attn_out", "activation_fn_kwargs": {"k": 4}}, {}, "attn_out"),
        ({"k": 4, "rescale_acts_by_decoder_norm": True}, {}, "resid_pre"),
        (
            {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"},
            {},
            "mlp_in",
        ),
        (
            {},
            {"r_mag": torch.rand(N), "b_mag": torch.rand(N), "b_gate": torch.rand(N)},
            "resid_pre",
        ),
        ({"normalize_activations": "constant_norm_rescale"}, {}, "resid_pre"),
    ],
    ids=["relu", "less b_dec", "jumprelu", "topk", "rescaled topk", "transcoder", "gated", "norm"],
)
def test_activations(tmp_path: Path, config: Any, more: dict[str, Tensor], point: str) -> None:
    t = weights() | more
    dictionary = Dictionary.open(saelens(tmp_path, t, **config), model())
    trace, x = trace_of(point)
    if "normalize_activations" in config:
        x = x / x.norm(dim=1, keepdim=True) * x.shape[1] ** 0.5
    if config.get("apply_b_dec_to_input"):
        x = x - t["b_dec"].double()
    pre = x @ t["W_enc"].double()
    if "r_mag" in t:
        on = pre + t["b_gate"] > 0
        expected = torch.where(on, (pre * t["r_mag"].double().exp() + t["b_mag"]).clamp(min=0), 0.0)
    else:
        pre = pre + t["b_enc"]
        expected = pre.clamp(min=0)
        if "threshold" in t:
            expected = torch.where(pre > t["threshold"], expected, 0.0)
    if "k" in config or "activation_fn_kwargs" in config:
        if "k" in config:
            expected = expected * t["W_dec"].double().norm(dim=1)
        least = expected.sort(dim=1, descending=True).values[:, 3:4]
        expected = torch.where(expected >= least, expected, 0.0)
    found = dictionary.activations(trace)
    assert found.shape == (4, N)
    assert torch.allclose(found.double(), expected, atol=1e-3, rtol=1e-3)
    assert torch.equal(dictionary["L1F6"].activations(trace), found[:, 6])


# ---------------------------------------------------------------------- mistakes


def test_what_is_no_dictionary_is_refused(tmp_path: Path) -> None:
    t = weights()
    with pytest.raises(LexrayError, match="there is no"):
        Dictionary.open(tmp_path / "nothing", model())
    with pytest.raises(LexrayError, match=r"it has no \.safetensors"):
        Dictionary.open(tmp_path, model())
    pickle = tmp_path / "ae.pt"
    pickle.write_bytes(b"x")
    with pytest.raises(LexrayError, match=r"have to be \.safetensors"):
        Dictionary.open(pickle, model())
    save_file({"a": torch.zeros(2)}, tmp_path / "layer_1.safetensors")
    with pytest.raises(LexrayError, match=r"none of W_dec, decoder.weight.* among 'a'"):
        Dictionary.open(tmp_path / "layer_1.safetensors", model())
    wide = {"W_dec": torch.zeros(N, 99)}
    with pytest.raises(LexrayError, match=r"W_dec has the shape \(50, 99\)"):
        Dictionary.open(saelens(tmp_path / "wide", wide), model())
    with pytest.raises(LexrayError, match="49 encoder and 50 decoder"):
        Dictionary.open(
            saelens(tmp_path / "odd", t | {"W_enc": t["W_enc"][:, 1:].clone()}), model()
        )
    with pytest.raises(LexrayError, match=r"b_enc has the shape \(3,\)"):
        Dictionary.open(saelens(tmp_path / "short", t | {"b_enc": torch.zeros(3)}), model())
    heads = saelens(tmp_path / "z", t, hook_name="blocks.1.attn.hook_z")
    with pytest.raises(LexrayError, match="reads the heads' outputs"):
        Dictionary.open(heads, model())
    folder = tmp_path / "many"
    saelens(folder / "odd", t)
    saelens(folder / "even", t)
    with pytest.raises(LexrayError, match=r"several dictionaries.*odd"):
        Dictionary.open(folder, model())


def test_layers_and_addresses(tmp_path: Path) -> None:
    t = weights()
    silent = saelens(tmp_path / "a", t, hook_name="somewhere")
    with pytest.raises(LexrayError, match="does not say which layer"):
        Dictionary.open(silent, model())
    dictionary = Dictionary.open(silent, model(), layer=0)
    assert dictionary["L0F3"].address == "L0F3"
    assert dictionary["l0f3.KEY"].address == "L0F3.key"
    for wrong in ("L1F3", "L0N3", "L0F50", 50, -1):
        with pytest.raises(LexrayError, match="feature"):
            dictionary[wrong]
    with pytest.raises(LexrayError, match="there is no layer 9"):
        Dictionary.open(silent, model(), layer=9)
    with pytest.raises(LexrayError, match=r"belongs to a dictionary: lx\.Dictionary"):
        model()["L0F3"]


def test_a_decoder_alone_has_values_only(tmp_path: Path) -> None:
    dictionary = Dictionary.open(saelens(tmp_path, {"W_dec": weights()["W_dec"]}), model())
    assert [r.name for r in dictionary[0].top(3)] == ["value"]
    for act in (lambda: dictionary[0].key, lambda: dictionary.lookup(["law"], "keys")):
        with pytest.raises(LexrayError, match="has no encoder"):
            act()


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    """A feature's vector is a slice: a hole in the rest of the file does not matter."""
    path = saelens(tmp_path, weights(n=5000))
    dictionary = Dictionary.open(path, model()).view("raw")
    read: list[Any] = []
    file = dictionary.stored.decoder.file
    original = file.read
    file.read = lambda name, box: read.append(box) or original(name, box)  # type: ignore[method-assign, func-returns-value]
    dictionary["L1F4999"].value.top(2)
    assert read == [((4999, 5000), (0, model().d_model))]


def test_a_features_evidence_is_where_it_is_active(tmp_path: Path) -> None:
    found = Dictionary.open(saelens(tmp_path / "sae", weights()), model())
    evidence = found["L1F7"].evidence(n=4)
    pieces = cut(model(), tokens=None)
    active = torch.cat([found["L1F7"].activations(model().trace(ids))[1:] for ids in pieces])
    expected = active.sort(descending=True)[0][:4].tolist()
    assert [s.activation for s in evidence.snippets] == pytest.approx(expected, rel=1e-4)
    assert [a.reading for a in evidence.agreements] == ["key sees", "value writes"]
    assert evidence.source.address == "L1F7"
    assert evidence.agreements[0].n == 40
