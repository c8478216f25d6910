"""Stitching against dense computations, and models stitched onto themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from lexray.compare.stitch.kernels import KERNELS, kernel
from lexray.compare.stitch.recipe import Recipe
from lexray.compare.stitch.stitch import Stitched, encode, stitch
from lexray.compare.stitch.sweep import VARIANTS, Example, sweep, wilson
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.charts.series import Curve
from tests.families import zoo
from tests.families.span import STAND_INS
from tests.saved import save, words, write_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.tensor([[5, 11, 3, 29, 36, 7, 20], [8, 1, 30, 2, 17, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])
REAL = MASK.bool()
LOW_RANK = {"opt-350m"}
"""Its embedding spans 16 of 24 dimensions, so the rest is lost on the way."""
DECODERS = [n for n in STAND_INS if not zoo.find(n).masked and n not in LOW_RANK]
AUTO = {"token": AutoModelForTokenClassification, "sequence": AutoModelForSequenceClassification}


def live(name: str) -> Model:
    return Model.from_module(zoo.build(name)).view("raw")


def classifier(name: str, kind: str, **options: Any) -> nn.Module:
    """A random classifier of three classes in a family of the zoo."""
    variant = zoo.find(name)
    given_ids = {"pad_token_id": 0, "num_labels": 3}
    config = AutoConfig.for_model(variant.model_type, **variant.options | given_ids | options)
    torch.manual_seed(1)
    module: nn.Module = AUTO[kind].from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 if parameter.ndim > 1 else parameter + noise * 0.3)
    return module


def run(module: Any, ids: Tensor = IDS, mask: Tensor | None = MASK) -> Tensor:
    with torch.no_grad():
        logits: Tensor = module(input_ids=ids, attention_mask=mask).logits
    return logits


@pytest.mark.parametrize("way", ["vocabulary", "pinv"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_model_stitched_onto_itself_is_itself(name: str, way: str) -> None:
    model = live(name)
    if model.architecture.streams is not None:
        with pytest.raises(LexrayError, match="residual streams"):
            stitch(model, model, after=1, kernel=way)
        return
    for after in range(model.n_layers - 1):
        layers = model.n_layers - 1 - after
        rest = [block.attention for block in model.architecture.blocks[after + 1 :]]
        lent = [layer for x in rest for layer in (x.shares, x.chosen_by)]
        if any(shared is not None and shared <= after for shared in lent):
            with pytest.raises(LexrayError, match="whose keys and values"):
                run(stitch(model, model, after=after, last=layers, kernel=way))
            continue
        stitched = stitch(model, model, after=after, last=layers, kernel=way)
        torch.testing.assert_close(
            run(stitched)[REAL], run(model.module())[REAL], atol=2e-4, rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["token", "sequence"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma2"])
def test_classifiers_stitched_onto_themselves(name: str, kind: str) -> None:
    module = classifier(name, kind)
    model = Model.from_module(module).view("raw")
    options = {} if model.architecture.tied else {"embedding": "input"}
    options |= {"kernel": "pinv"}
    stitched = stitch(model, model, after=0, last=model.n_layers - 1, **options)
    own = run(module)
    if kind == "token":
        kept = MASK[..., None]
        own = (own * kept).sum(1) / kept.sum(1)
    assert own.shape == (2, 3)
    torch.testing.assert_close(run(stitched), own, atol=2e-4, rtol=1e-4)
    labels = torch.tensor([2, 0])
    loss = stitched(IDS, MASK, labels=labels).loss
    torch.testing.assert_close(loss, nn.functional.cross_entropy(own, labels), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("pair", [("llama", "gpt2"), ("gpt2", "gemma3"), ("neox", "falcon-7b")])
def test_another_models_states_enter_where_they_should(pair: tuple[str, str]) -> None:
    """Against a pass of A that is recorded, and one of B whose layers are cut out by hand."""
    a, b = live(pair[0]), live(pair[1])
    stitched = stitch(a, b, after=0, last=1, kernel="pinv")
    module: Any = a.module()
    with torch.no_grad():
        states = module(IDS, attention_mask=MASK, output_hidden_states=True).hidden_states[1]
    carried = (states.double() @ dense_kernel(a, b)).float()
    other: Any = b.module()
    last = stitched._b.blocks[-1]

    def enter(_: Any, args: Any, kwargs: Any) -> Any:
        return (carried, *args[1:]), kwargs

    handle = last.register_forward_pre_hook(enter, with_kwargs=True)
    expected = run(other)
    handle.remove()
    torch.testing.assert_close(run(stitched)[REAL], expected[REAL], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(expected[REAL], run(other)[REAL], atol=1e-2)


def dense_kernel(a: Model, b: Model) -> Tensor:
    """E_A E_B⁺ as it stands."""
    K: Tensor = a.W_U.double() @ torch.linalg.pinv(b.W_U.double())
    return K


def test_kernels_are_what_they_say() -> None:
    torch.manual_seed(0)
    a, b = live("llama"), live("stablelm")  # 24 and 32 wide
    E, F = a.W_U.double(), b.W_U.double()
    torch.testing.assert_close(kernel(a, b), dense_kernel(a, b))
    torch.testing.assert_close(kernel(a, b, "regression"), torch.linalg.pinv(E.T) @ F.T)
    torch.testing.assert_close(
        kernel(a, b, "transpose"), E @ F.T * len(F) / (F @ F.T).trace(), rtol=1e-9, atol=1e-12
    )
    for name in ("orthogonal", "whitened"):
        Q = kernel(a, b, name)
        if name == "whitened":
            Q = _root(E @ E.T).inverse() @ Q @ _root(F @ F.T)
        torch.testing.assert_close(Q @ Q.T / (Q @ Q.T)[0, 0], torch.eye(len(E)).double())
    centred = (E - E.mean(1, keepdim=True)) @ torch.linalg.pinv(F - F.mean(1, keepdim=True))
    torch.testing.assert_close(kernel(a, b, centred=True), centred)
    ridged = E @ F.T @ (F @ F.T + 0.1 * (F @ F.T).trace() / len(F) * torch.eye(len(F))).inverse()
    torch.testing.assert_close(kernel(a, b, ridge=0.1), ridged)


def _root(gram: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.sqrt()) @ vectors.T


@pytest.mark.parametrize("name", [k for k in KERNELS if k != "transpose"])
def test_kernels_of_a_model_and_itself_are_the_identity(name: Any) -> None:
    for family in ("gpt2", "llama", "gemma2"):
        model = live(family)
        K = kernel(model, model, name)
        torch.testing.assert_close(K, torch.eye(model.d_model).double(), atol=1e-8, rtol=0)


def test_options_where_paper_and_code_differ() -> None:
    module = classifier("gpt2", "token")
    b = Model.from_module(module).view("raw")
    a = live("gpt2")
    plain = stitch(a, b, after=1, last=1, kernel="pinv")
    with torch.no_grad():
        states = plain._a.states(IDS, MASK, [1])[1]
        normed = zoo.build("gpt2").transformer.ln_f(states)
    K = plain.kernel
    torch.testing.assert_close(plain.carry(states), states @ K)
    torch.testing.assert_close(
        stitch(a, b, after=1, last=1, kernel="pinv", a_norm=True).carry(states), normed @ K
    )
    assert b.W_pos is not None
    torch.testing.assert_close(
        stitch(a, b, after=1, last=1, kernel="pinv", b_positions=True).carry(states),
        states @ K + b.W_pos[:7],
    )
    bare = run(stitch(a, b, after=1, last=1, kernel="pinv", final_norm="identity"))
    assert not torch.allclose(bare, run(plain), atol=1e-3)
    body: Any = module
    norm, body.transformer.ln_f = body.transformer.ln_f, nn.Identity()
    expected = run(plain)
    body.transformer.ln_f = norm
    torch.testing.assert_close(bare, expected)


@pytest.mark.slow
def test_the_sentiment_models_norm_can_be_kept() -> None:
    a, b = (
        Model.from_pretrained(n, dtype=torch.float32).view("raw")
        for n in ("demo-wide", "demo-sentiment")
    )
    left_out = stitch(a, b, after=1, last=2)
    kept = stitch(a, b, after=1, last=2, final_norm="keep")
    assert not torch.allclose(run(left_out), run(kept), atol=1e-3)
    again = stitch(a, b, after=1, last=2, final_norm="identity")
    torch.testing.assert_close(run(left_out), run(again))


def saved(name: str, folder: Path) -> Model:
    save(name, folder)
    split_at_spaces(folder)
    return Model.from_pretrained(folder).view("raw")


def split_at_spaces(folder: Path) -> None:
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(path)


TEXTS = ["word3 word5 word9 word11", "word30 word2 word7"]


@pytest.mark.parametrize("match", ["scale", "token", "moments"])
def test_carried_states_get_the_size_of_bs_own(match: str, tmp_path: Path) -> None:
    a, b = (saved(name, tmp_path / name) for name in ("llama", "stablelm"))
    found = stitch(a, b, after=0, last=1, match=match, calibrate=TEXTS)
    ids, mask = encode(a, TEXTS, 64)
    kept = mask.bool()
    kept[:, 0] = False
    with torch.no_grad():
        ours = found.carry(found._a.states(ids, mask, [0])[0])[kept]
        theirs = found._b.entering(ids, mask, 1)[kept]
    if match == "moments":
        torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=1e-4, rtol=1e-4)
        ours, theirs = ours - ours.mean(0), theirs - theirs.mean(0)
    torch.testing.assert_close(ours.norm(dim=1).median(), theirs.norm(dim=1).median())
    if match == "token":
        assert ours.norm(dim=1).std() < 1e-4


def test_matching_needs_texts() -> None:
    with pytest.raises(LexrayError, match=r"calibrate=\["):
        stitch(live("gpt2"), live("llama"), after=0, last=1, match="scale")
    with pytest.raises(LexrayError, match=r"counts tokens on texts: calibrate=\["):
        stitch(live("gpt2"), live("llama"), after=0, last=1, frequencies="counted")


@pytest.mark.parametrize(
    "recipe", [{}, {"a_norm": True, "match": "moments"}, {"kernel": "pinv", "a_norm": True}]
)
def test_saved_and_loaded(recipe: dict[str, Any], tmp_path: Path) -> None:
    a, b = (saved(name, tmp_path / name) for name in ("gpt2", "mixtral"))
    made = stitch(a, b, after=1, last=1, calibrate=TEXTS, **recipe)
    folder = made.save_pretrained(tmp_path / "stitched")
    assert {p.suffix for p in folder.rglob("*") if p.is_file()} <= {".json", ".safetensors"}
    again = Stitched.from_pretrained(folder)
    assert (again.after, again.last, again.recipe) == (1, 1, made.recipe)
    torch.testing.assert_close(run(again), run(made), atol=1e-5, rtol=1e-5)
    assert again.models[0].vocabulary.fingerprint == a.vocabulary.fingerprint
    with pytest.raises(LexrayError, match="exists and is not empty"):
        made.save_pretrained(folder)


@pytest.mark.slow
def test_a_dropped_norm_survives_saving(tmp_path: Path) -> None:
    a, b = (
        Model.from_pretrained(n, dtype=torch.float32).view("raw")
        for n in ("demo-wide", "demo-sentiment")
    )
    made = stitch(a, b, after=2, last=2)
    again = Stitched.from_pretrained(made.save_pretrained(tmp_path / "s"))
    torch.testing.assert_close(run(again), run(made), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"after": 7},
        {"after": "../../etc"},
        {"last": 0},
        {"recipe": {"kernel": "os.system"}},
        {"recipe": {"folder": "/etc"}},
        {"recipe": []},
    ],
)
def test_spoilt_settings_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    a = saved("gpt2", tmp_path / "gpt2")
    folder = stitch(a, a, after=0, last=1).save_pretrained(tmp_path / "s")
    path = folder / "stitch.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LexrayError):
        Stitched.from_pretrained(folder)


def test_a_spoilt_kernel_is_refused(tmp_path: Path) -> None:
    a = saved("gpt2", tmp_path / "gpt2")
    folder = stitch(a, a, after=0, last=1).save_pretrained(tmp_path / "s")
    (folder / "stitch.safetensors").write_bytes(b"no tensors")
    with pytest.raises(LexrayError, match="cannot be read"):
        Stitched.from_pretrained(folder)


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    a = saved("gpt2", tmp_path / "a")
    save("llama", tmp_path / "b")
    write_tokenizer(tmp_path / "b", [*words(30), *(f"other{i}" for i in range(7))])
    with pytest.raises(LexrayError, match=r"7 of the first 37 ids .* 30 is 'word30' and 'other0'"):
        stitch(a, Model.from_pretrained(tmp_path / "b").view("raw"), after=0, last=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"after": 2}, "no layer 2 after which to leave .* 0 to 1"),
        ({"after": -1}, "no layer -1"),
        ({"after": 0, "last": 3}, "has 2, of which"),
        ({"after": 0, "last": 1, "kernel": "magic"}, "kernel=magic"),
        ({"after": 0, "last": 1, "colour": "red"}, "colour=red"),
        ({"after": 0, "last": 1, "ridge": -1.0}, "at least 0"),
        ({"after": 0, "last": 1, "ridge": float("nan")}, "at least 0"),
        ({"after": 0, "last": 1, "ridge": "much"}, "'much' is no number"),
        ({"after": 0, "last": 1, "ridge": True}, "ridge=True"),
        (
            {"after": 0, "last": 1, "kernel": "pinv", "b_positions": True},
            "no position embeddings",
        ),
        ({"after": 0, "last": 1, "b_positions": True}, "is for kernels of embeddings"),
        ({"after": 0, "last": 1, "ridge": 0.1}, 'kernel="pinv" is the paper\'s'),
        (
            {"after": 0, "last": 1, "kernel": "pinv", "frequencies": "counted"},
            'is for kernel="vocabulary", not for pinv',
        ),
    ],
)
def test_mistakes(options: dict[str, Any], says: str) -> None:
    with pytest.raises(LexrayError, match=says):
        stitch(live("gpt2"), live("llama"), **options)


def test_a_classifier_without_an_output_embedding_is_explained() -> None:
    b = Model.from_module(classifier("llama", "sequence")).view("raw")
    with pytest.raises(LexrayError, match='embedding="input"'):
        stitch(live("llama"), b, after=0, last=1, kernel="pinv")
    assert run(stitch(live("llama"), b, after=0, last=1)).shape == (2, 3)


def test_hooks_are_gone_after_an_error() -> None:
    model = live("gptj")
    stitched = stitch(model, model, after=0, last=1)
    before = run(model.module())
    with pytest.raises(IndexError):
        stitched(torch.tensor([[999]]))
    with pytest.raises((IndexError, RuntimeError, TypeError)):
        stitched.finish(torch.zeros(*IDS.shape, 5), IDS)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in stitched._b.blocks)
    assert not any("forward" in block.__dict__ for block in stitched._b.blocks)
    torch.testing.assert_close(run(model.module()), before, rtol=0, atol=0)


def test_too_long_a_text_is_refused() -> None:
    model = live("gpt2")
    with pytest.raises(LexrayError, match="33 tokens are more than the 32"):
        stitch(model, model, after=0, last=1)(torch.ones(1, 33, dtype=torch.long))


@given(st.integers(1, 400), st.floats(0, 1))
@settings(max_examples=60)
def test_wilson_is_scipys(n: int, share: float) -> None:
    right = round(share * n)
    low, high = wilson(right, n)
    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert abs(low - expected.low) < 1e-9
    assert abs(high - expected.high) < 1e-9


@pytest.mark.parametrize("name", VARIANTS)
def test_recipes_are_read_as_they_are_written(name: str) -> None:
    assert str(Recipe.parse(name)) == name
    assert Recipe.parse("pinv+ridge=0.5").ridge == 0.5
    small = Recipe.parse("pinv+ridge=1e-05+a-norm")
    assert small == Recipe("pinv", ridge=1e-05, a_norm=True)
    assert Recipe.parse(str(small)) == small
    assert Recipe.of({"kernel": "pinv", "ridge": 1}, "") == Recipe("pinv", ridge=1.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("tuned")
    classifier("gpt2", "token").save_pretrained(folder)  # type: ignore[operator]
    write_tokenizer(folder, words(37))
    split_at_spaces(folder)
    return Model.from_pretrained(folder).view("raw")


def examples() -> list[Example]:
    lines = [" ".join(f"word{1 + (7 * i + j * j) % 36}" for j in range(3 + i)) for i in range(9)]
    return [Example(line, i % 3) for i, line in enumerate(lines)]


@pytest.mark.slow
def test_a_sweep_counts_what_one_by_one_counts(tuned: Model, tmp_path: Path) -> None:
    a = saved("llama", tmp_path)
    recipes = [Recipe(), Recipe(a_norm=True), Recipe("whitened", a_norm=True)]
    found = sweep(a, [tuned], examples(), last=1, recipes=recipes, batch=4)
    assert found.majority == 1 / 3
    expected = {}
    for recipe in recipes:
        for after in range(a.n_layers):
            one = stitch(a, tuned, after=after, last=1, **vars(recipe))
            expected[str(recipe), after] = sum(_right(one, a, e) for e in examples())
    assert {(p.recipe, p.after): p.right for p in found.points} == expected
    own = sum(_right(stitch(tuned, tuned, after=0, last=1), tuned, e) for e in examples())
    assert [p.right for p in found.ceilings] == [own]
    assert {len(t.rows) for t in found.csv_tables()} == {6}
    (panel,) = found.plot().panels
    lines = [series for series in panel.series if isinstance(series, Curve)]
    assert {line.name: list(line.y) for line in lines} == {
        str(recipe): [p.accuracy for p in found.of(str(recipe))] for recipe in recipes
    }


def _right(one: Stitched, model: Model, example: Example) -> bool:
    ids = torch.tensor([model.vocabulary.encode(example.text, special=True)])
    return int(run(one, ids, None).argmax()) == example.label


def test_a_sweep_reports_classes_that_are_not_there(tuned: Model, tmp_path: Path) -> None:
    a = saved("llama", tmp_path)
    with pytest.raises(LexrayError, match="no class 5: it has 0 to 2"):
        sweep(a, [tuned], [Example("word3", 5)], last=1)
    with pytest.raises(LexrayError, match="no class 'good'"):
        sweep(a, [tuned], [Example("word3", "good")], last=1)
    with pytest.raises(LexrayError, match="which has no classes"):
        sweep(tuned, [a], [Example("word3", 0)], last=1)
