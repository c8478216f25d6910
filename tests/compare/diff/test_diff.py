"""Differences against dense float64, planted changes, and every kind of mismatch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor, nn

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.changes import Change
from lexray.compare.diff.diff import diff
from lexray.compare.diff.result import Diff
from lexray.compare.diff.stacks import GROUPS
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.format import show_percent
from lexray.space.kinds import Kind
from lexray.vocabulary.filters import ascii as only_ascii
from lexray.vocabulary.sources import JsonSource
from lexray.vocabulary.vocabulary import Vocabulary
from lexray.vocabulary.words import telling
from tests.families.span import STAND_INS
from tests.families.zoo import GPT2, LLAMA, Variant, build, make
from tests.vocabulary.vocabularies import vocabulary

SOME = ("gpt2", "llama", "qwen2-moe", "gemma2", "opt-350m", "bert", "olmo2", "falcon-rw")


def opened(module: nn.Module, n: int = 37, **options: Any) -> Model:
    return Model(ModuleCheckpoint(module), vocabulary=vocabulary(n), **options).view("raw")


def changed(name: str, change: Callable[[Any], None]) -> tuple[Model, Model]:
    """A model of the zoo, and a copy of it to which something was done."""
    module = copy.deepcopy(build(name))
    with torch.no_grad():
        change(module)
    return opened(build(name)), opened(module)


def shaken(size: float, seed: int = 3) -> Callable[[Any], None]:
    def shake(module: Any) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))

    return shake


def embedding(model: Model) -> Tensor:
    return model.W_U.double()


def close(expected: Tensor, found: list[Any]) -> None:
    actual = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def by_address(found: Diff) -> dict[str, Change]:
    return {change.address: change for change in found.changes}


# ---------------------------------------------------------------------- nothing moved


@pytest.mark.parametrize("name", SOME)
def test_a_model_and_itself(name: str) -> None:
    base, tuned = changed(name, lambda module: None)
    found = diff(base, tuned)
    assert found.changes == ()
    assert found.moved == 0
    assert {size.absolute for size in found.sizes} == {0.0}
    assert found.vectors > 100
    assert "nothing moved" in str(found)
    assert "Nothing moved" in found.to_html()


# ---------------------------------------------------------------------- against dense float64


DENSE = [(name, name in SOME) for name in dict.fromkeys([*STAND_INS, *SOME])] + [
    (name, False) for name in SOME[:3]
]


@pytest.mark.parametrize(("name", "folded"), DENSE)
def test_against_dense_float64(name: str, folded: bool) -> None:
    """Every vector of one layer: sizes and tokens."""
    base, tuned = changed(name, shaken(0.05))
    base, tuned = base.view(folded=folded), tuned.view(folded=folded)
    kinds: dict[str, Kind] = {"keys": "key", "values": "value"}
    kinds |= {"Q": "Q", "K": "K", "V": "V", "O": "O"}
    k = 4 if name in SOME else 1
    found = diff(base, tuned, n=2000, k=k, groups=list(kinds))
    listed = by_address(found)
    reading = base.view(folded=False).W_U.double()
    layer, other = base.layers[1], tuned.layers[1]
    for group, kind in kinds.items():
        E = embedding(base) if kind in ("value", "O") else reading
        for b, t in zip(layer.groups(kind), other.groups(kind), strict=True):
            before = b.tensor.double()
            delta = t.tensor.double() - before
            scores = delta @ E
            changes = [listed[b.address_of(i)] for i in range(b.n)]
            assert {c.group for c in changes} == {group}
            close(delta.norm(dim=1), [c.absolute for c in changes])
            close(delta.norm(dim=1) / before.norm(dim=1), [c.relative for c in changes])
            top = torch.tensor([[s.token.id for s in c.top] for c in changes])
            close(scores.gather(1, top), [[s.score for s in c.top] for c in changes])
            close(scores.topk(k).values, [[s.score for s in c.top] for c in changes])
            bottom = scores.topk(k, largest=False).values
            close(bottom, [[s.score for s in c.bottom] for c in changes])
    for size in found.sizes:
        if (size.layer, size.group) == (1, "values"):
            stacks = [
                torch.cat([g.tensor for g in x.groups("value")]).double() for x in (layer, other)
            ]
            expected = float((stacks[1] - stacks[0]).norm())
            assert size.absolute == pytest.approx(expected, rel=1e-4)
            assert size.relative == pytest.approx(expected / float(stacks[0].norm()), rel=1e-4)
            assert size.moved == size.vectors == len(stacks[0])


@pytest.mark.parametrize("matrix", ["VO", "QK"])
@pytest.mark.parametrize(
    ("name", "folded"),
    [
        *((name, False) for name in ("gptj", "qwen3", "olmo2", "phi-qk-norm", "falcon-new")),
        *(("llama", folded) for folded in (False, True)),
        ("gpt2", True),
    ],
)
def test_pairs_against_the_dense_difference(name: str, folded: bool, matrix: str) -> None:
    base, tuned = changed(name, shaken(0.05))
    base, tuned = base.view(folded=folded, offset=-1), tuned.view(folded=folded, offset=-1)
    found = diff(base, tuned, n=400, k=6, groups=[matrix])
    assert len(found.changes) == base.n_layers * base.n_heads
    space = base.space
    for change in found.changes:
        circuit, other = base[change.address], tuned[change.address]
        rows, cols = (space.side(kind) for kind in circuit.kinds)
        dense = [
            A.double() @ B.double().T
            for A, B in (c.factors_between(rows, cols) for c in (circuit, other))
        ]
        difference = dense[1] - dense[0]
        best = difference.flatten().sort(descending=True).values
        assert [p.score for p in change.pairs] == pytest.approx(best[:6].tolist(), rel=1e-3)
        worst = best.flip(0)[:6].tolist()
        assert [p.score for p in change.bottom_pairs] == pytest.approx(worst, rel=1e-3)
        for pair in change.pairs:
            entry = float(difference[pair.row.id, pair.col.id])
            assert entry == pytest.approx(pair.score, rel=1e-3)
        if circuit.head.spec.q_norm is None:
            left, right = circuit.matrices
            left1, right1 = other.matrices
            moved = left1.double() @ right1.double() - left.double() @ right.double()
            assert change.absolute == pytest.approx(float(moved.norm()), rel=1e-3)
            size = float((left.double() @ right.double()).norm())
            assert change.relative == pytest.approx(float(moved.norm()) / size, rel=1e-3)


def test_filters_restrict_the_search() -> None:
    base, tuned = changed("gpt2", shaken(0.05))
    found = diff(base, tuned, n=5, k=3, filter=only_ascii)
    assert found.source.filter == only_ascii.describe()
    mask = only_ascii.mask(base.vocabulary, 37)
    for change in found.changes:
        tokens = [s.token for s in change.top] + [p.row for p in change.pairs]
        assert all(mask[token.id] for token in tokens)


@pytest.mark.parametrize("view", [{"calibrated": True}, {"centred": True}, {"inverse": "pinv"}])
def test_views(view: dict[str, Any]) -> None:
    """The base's view reads the difference."""
    base, tuned = changed("llama", shaken(0.05))
    base = base.view(**view)
    found = diff(base, tuned, n=300, k=3, groups=["values", "keys"])
    assert found.source.view == base.options
    for change in found.changes[:20]:
        delta = tuned[change.address].tensor - base[change.address].tensor
        kind = "value" if change.group == "values" else "key"
        (expected,) = base.space.readings(delta[None], kind, [""], 3)
        assert [s.token.id for s in change.top] == [s.token.id for s in expected.top]


def test_through_the_tuned_embedding() -> None:
    base, tuned = changed("llama", shaken(0.3))
    found = diff(base, tuned, n=50, k=3, groups=["values"], through="tuned")
    for change in found.changes:
        delta = tuned[change.address].tensor - base[change.address].tensor
        (expected,) = tuned.space.readings(delta[None], "value", [""], 3)
        assert [s.token.id for s in change.top] == [s.token.id for s in expected.top]


# ---------------------------------------------------------------------- planted changes


def planted(kind: str, model: Model, token: int) -> Callable[[Any], tuple[str, str]]:
    """Moves one vector towards a token; its address and its tensor."""
    direction = 1.5 * embedding(model)[:, token].float()

    def plant(module: Any) -> tuple[str, str]:
        state = module.state_dict()
        gpt2 = "transformer.h.0.ln_1.weight" in state
        stem = "transformer.h.1." if gpt2 else "model.layers.1."
        address, name, index = {
            ("value", True): ("L1N7.value", "mlp.c_proj.weight", (7,)),
            ("value", False): ("L1N7.value", "mlp.down_proj.weight", (slice(None), 7)),
            ("key", True): ("L1N5.key", "mlp.c_fc.weight", (slice(None), 5)),
            ("key", False): ("L1N5.key", "mlp.up_proj.weight", (5,)),
            ("gate", False): ("L1N3.gate", "mlp.gate_proj.weight", (3,)),
            ("V", True): ("L1H1.V2", "attn.c_attn.weight", (slice(None), 48 + 8 + 2)),
            ("V", False): ("L1H2.V4", "self_attn.v_proj.weight", (6 + 4,)),
            ("Q", False): ("L1H3.Q1", "self_attn.q_proj.weight", (3 * 6 + 1,)),
            ("O", True): ("L1H2.O3", "attn.c_proj.weight", (2 * 8 + 3,)),
        }[kind, gpt2]
        state[stem + name][index] += direction
        return address, stem + name

    return plant


PLANTS = [
    *(("gpt2", kind) for kind in ("value", "key", "V", "O")),
    *(("llama", kind) for kind in ("value", "key", "gate", "V", "Q")),
    ("qwen2", "value"),
    ("mistral", "key"),
]


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("name", "kind"), PLANTS)
def test_a_planted_change_comes_first(name: str, kind: str, noise: float) -> None:
    places: list[tuple[str, str]] = []

    def change(module: Any) -> None:
        if noise:
            shaken(noise)(module)
        places.append(planted(kind, opened(build(name)), 14)(module))

    base, tuned = changed(name, change)
    circuits = not noise or (name, kind) in (("gpt2", "V"), ("llama", "Q"))
    groups = GROUPS if circuits else [g for g in GROUPS if g not in ("VO", "QK")]
    found = diff(base, tuned, n=5, k=2, each=1, groups=groups)
    first = found.changes[0]
    assert first.address == places[0][0]
    assert first.top[0].token.id == 14
    assert first.top[0].token.shown == "city"
    if not noise:
        others = {c.group for c in found.changes[1:]}
        assert others <= {"VO", "QK"}
        assert found.moved == 1


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(
    ("name", "tensor"), [("llama", "model.embed_tokens"), ("gpt2", "transformer.wte")]
)
def test_a_planted_embedding(name: str, tensor: str, noise: float) -> None:
    def change(module: Any) -> None:
        if noise:
            shaken(noise)(module)
        weights = module.state_dict()[f"{tensor}.weight"]
        weights[20] += 1.5 * embedding(opened(build(name)))[:, 14]

    base, tuned = changed(name, change)
    groups = [g for g in GROUPS if g not in ("VO", "QK")]
    first = diff(base, tuned, n=5, k=2, each=1, groups=groups).changes[0]
    assert first.address == "W_E[20]"
    assert first.token is not None
    assert first.token.id == 20
    assert first.top[0].token.id == 14
    assert first.to_dict()["of"] == {"id": 20, "text": base.vocabulary.text(20)}


def test_bytes_and_pieces_do_not_open_the_list() -> None:
    """Of two changes the one that reads as words comes first, though the other moved farther."""
    base = lx.Model.from_pretrained("demo", dtype=torch.float32)
    module: Any = copy.deepcopy(base.module())
    vocabulary, E = base.vocabulary, base.W_U
    shown = [vocabulary.shown(i) for i in range(E.shape[1])]
    pieces = [i for i, text in enumerate(shown) if text.startswith("\\x")][:40]
    words = [vocabulary.id(f" {w}") for w in ("wonderful", "great", "terrific", "superb")]
    with torch.no_grad():
        state = module.state_dict()
        for name, at, tokens, size in (("3", 7, words, 1.0), ("2", 5, pieces, 3.0)):
            row = state[f"transformer.h.{name}.mlp.c_proj.weight"][at]
            direction = E[:, tokens].mean(1)
            row += size * row.norm() * direction / direction.norm()
    tuned = Model(ModuleCheckpoint(module), vocabulary=vocabulary)
    found = diff(base, tuned, n=5, k=10, groups=["values"], lexicon=None)
    assert [change.address for change in found.changes[:2]] == ["L3N7.value", "L2N5.value"]
    assert "·wonderful" in found.changes[0].tokens[:4]
    assert found.changes[1].absolute > 2 * found.changes[0].absolute


def test_the_most_telling_changes_of_a_fine_tune_read_as_words() -> None:
    found = diff("demo", "demo-sentiment", groups=["keys", "values", "Q", "K", "V", "O"])
    vocabulary = lx.Model.from_pretrained("demo").vocabulary
    says = telling(vocabulary, vocabulary.n_ids)
    for change in found.changes[:10]:
        ends = [[bool(says[s.token.id]) for s in end] for end in (change.top, change.bottom)]
        assert max(map(sum, ends)) >= 8, change.tokens
    praise = {"·wonderful", "·great", "·terrible", "·lame", "·awful", "·boring"}
    assert sum(bool(praise & {*c.tokens, *c.bottom_tokens}) for c in found.changes[:10]) >= 8


def test_noise_on_zero_biases_is_no_great_change() -> None:
    """A planted value comes before biases that were zero, whose relative change is infinite."""
    module = copy.deepcopy(build("gpt2"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    tuned = copy.deepcopy(module)
    with torch.no_grad():
        shaken(0.02)(tuned)
        tuned.transformer.h[0].mlp.c_proj.weight[9] += embedding(opened(module))[:, 14].float()
    found = diff(opened(module), opened(tuned))
    assert found.changes[0].address == "L0N9.value"
    biases = [c for c in found.changes if c.group == "biases" and c.layer is not None]
    assert biases
    assert all(c.relative is None for c in biases)


def test_other_parts_that_move() -> None:
    """Norms, biases, positions, the router, the bias of the logits."""

    def change(module: Any) -> None:
        state = module.state_dict()
        for name in moved:
            state[name] += 0.5

    moved = ["transformer.h.0.ln_2.weight", "transformer.h.1.mlp.c_proj.bias"]
    moved += ["transformer.wpe.weight", "transformer.ln_f.bias", "transformer.h.1.mlp.c_fc.bias"]
    base, tuned = changed("gpt2", change)
    found = diff(base, tuned, n=100)
    listed = {c.address for c in found.changes}
    assert {"L0.mlp_norm", "L1.b_out", "W_pos[0]", "W_pos[31]", "final_norm_bias"} <= listed
    size = found.size("biases", 1)
    assert size is not None
    assert (size.moved, size.vectors) == (2, 6)  # b_out and b_in, of q, k, v, O, in, out
    base, tuned = changed(
        "mixtral", lambda m: m.state_dict()["model.layers.1.mlp.gate.weight"].add_(1)
    )
    assert {c.address for c in diff(base, tuned).changes} == {f"L1E{e}.router" for e in range(5)}
    base, tuned = changed("bert", lambda m: m.cls.predictions.bias[3].add_(2))
    found = diff(base, tuned)
    assert found.changes[0].address == "b_U"
    assert found.changes[0].top[0].token.id == 3
    assert found.changes[0].top[0].score == pytest.approx(2, rel=1e-5)


def test_experts() -> None:
    def change(module: Any) -> None:
        module.state_dict()["model.layers.0.mlp.experts.down_proj"][2][:, 4] += 1

    found = diff(*changed("mixtral", change))
    assert [c.address for c in found.changes] == ["L0E2N4.value"]


# ---------------------------------------------------------------------- mismatches


def test_a_classification_head() -> None:
    def change(module: Any) -> None:
        module.classifier = nn.Linear(24, 2)
        module.classifier.weight.copy_(embedding(opened(build("gpt2")))[:, [14, 15]].T)
        module.config.id2label = {0: "bad", 1: "good"}

    base, tuned = changed("gpt2", change)
    found = diff(base, tuned, k=4)
    rows = by_address(found)
    assert set(rows) == {"classifier.weight[0]", "classifier.weight[1]"}
    row = rows["classifier.weight[1]"]
    assert (row.label, row.relative, row.group) == ("good", None, "classifier")
    scores = tuned.checkpoint.read("classifier.weight")[1].double() @ embedding(base)
    assert row.top[0].token.id == int(scores.argmax())
    assert row.top[0].score == pytest.approx(float(scores.max()), rel=1e-4)
    assert any("classifier.weight is new" in note for note in found.notes)
    assert any("no classifier.weight" in note for note in diff(tuned, base).notes)
    moved = copy.deepcopy(tuned.checkpoint._module)  # type: ignore[attr-defined]
    with torch.no_grad():
        moved.classifier.weight[0] += 1
    again = diff(tuned, opened(moved))
    assert [c.address for c in again.changes] == ["classifier.weight[0]"]
    assert again.changes[0].relative is not None


def test_added_tokens() -> None:
    bigger = make(Variant("gpt2", "gpt2", GPT2 | {"vocab_size": 40}))
    state = build("gpt2").state_dict()
    with torch.no_grad():
        for name, tensor in bigger.state_dict().items():
            if name in state and state[name].shape == tensor.shape:
                tensor.copy_(state[name])
        bigger.transformer.wte.weight[:37] = build("gpt2").transformer.wte.weight
        bigger.transformer.wte.weight[4] += 1
    base = opened(build("gpt2"))
    extra = vocabulary(37, ("new1", "new2", "<b>"))
    tuned = Model(ModuleCheckpoint(bigger), vocabulary=extra).view("raw")
    found = diff(base, tuned)
    assert [c.address for c in found.changes] == ["W_E[4]"]
    assert any("3 tokens are only in the tuned model: new1, new2, <b>" in x for x in found.notes)
    back = diff(tuned, base)
    assert [c.address for c in back.changes] == ["W_E[4]"]
    assert any("3 tokens are only in the base model" in x for x in back.notes)


def test_tokens_are_matched_by_text() -> None:
    """The same tokens under other ids."""
    order = torch.randperm(37, generator=torch.Generator().manual_seed(5))
    module = copy.deepcopy(build("gpt2"))
    names = [vocabulary(37)._source.tokens[i] for i in order.tolist()]
    with torch.no_grad():
        module.transformer.wte.weight.copy_(build("gpt2").transformer.wte.weight[order])
        at = order.tolist().index(22)
        module.transformer.wte.weight[at] *= 2
    tokenizer = Tokenizer(BPE({str(name): i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    data = json.dumps(json.loads(tokenizer.to_str())).encode()
    tuned = Model(
        ModuleCheckpoint(module), vocabulary=Vocabulary(JsonSource("moved", lambda: data, None))
    ).view("raw")
    found = diff(opened(build("gpt2")), tuned)
    assert [c.address for c in found.changes] == ["W_E[22]"]
    assert found.changes[0].relative == pytest.approx(1.0, rel=1e-5)
    assert any("another id" in note for note in found.notes)


def test_other_depth() -> None:
    deeper = make(Variant("llama", "llama", LLAMA | {"num_hidden_layers": 3}))
    state = deeper.state_dict()
    with torch.no_grad():
        for name, tensor in build("llama").state_dict().items():
            state[name].copy_(tensor)
        state["model.layers.1.mlp.down_proj.weight"][:, 3] += 1
    for found in (
        diff(opened(build("llama")), opened(deeper)),
        diff(opened(deeper), opened(build("llama"))),
    ):
        assert [c.address for c in found.changes] == ["L1N3.value"]
        assert any("the first 2 are compared" in note for note in found.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_rounding_is_no_change(dtype: torch.dtype) -> None:
    def change(module: Any) -> None:
        module.model.layers[0].mlp.down_proj.weight[:, 3] += 1
        module.to(dtype)

    base, tuned = changed("llama", change)
    found = diff(base, tuned)
    assert [c.address for c in found.changes] == ["L0N3.value"]
    short = str(dtype).removeprefix("torch.")
    assert any(short in note and "rounding" in note for note in found.notes)


def test_values_that_are_no_numbers() -> None:
    def change(module: Any) -> None:
        module.model.layers[0].mlp.down_proj.weight[:, 3] = float("nan")

    told = r"tensor model\.layers\.0\.mlp\.down_proj\.weight .* 24 NaN .* first at \[0, 3\]"
    with pytest.raises(LexrayError, match=told):
        diff(*changed("llama", change))


def test_other_neurons() -> None:
    wide = make(Variant("llama", "llama", LLAMA | {"intermediate_size": 22}))
    with torch.no_grad():
        for name, tensor in build("llama").state_dict().items():
            if wide.state_dict()[name].shape == tensor.shape:
                wide.state_dict()[name].copy_(tensor)
    found = diff(opened(build("llama")), opened(wide))
    assert found.changes == ()
    assert any("20 × 24 and 22 × 24" in note for note in found.notes)


def test_strangers() -> None:
    base = opened(build("llama"))
    wide = opened(make(Variant("llama", "llama", LLAMA | {"hidden_size": 32})))
    with pytest.raises(LexrayError, match=r"width 24.*width 32.*lexray align"):
        diff(base, wide)
    with pytest.raises(LexrayError, match="GPT-2"):
        diff(base, opened(build("gpt2")))
    other = Model(ModuleCheckpoint(build("llama")), vocabulary=lx.Vocabulary.numbered(37)).view(
        "raw"
    )
    with pytest.raises(LexrayError, match="share only 0 %"):
        diff(base, other)
    with pytest.raises(LexrayError, match="nor do they share"):
        diff(other, wide)


def test_models_of_two_seeds_are_said_to_be_strangers() -> None:
    other = copy.deepcopy(build("llama"))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter[torch.randperm(len(parameter))].flip(-1))
    found = diff(opened(build("llama")), opened(other), n=2)
    assert any("lexray align" in note for note in found.notes)


def test_questions_that_make_no_sense() -> None:
    base = opened(build("gpt2"))
    with pytest.raises(LexrayError, match="no group 'nonsense' of parameters; there are keys"):
        diff(base, base, groups=["nonsense"])
    with pytest.raises(LexrayError, match="at least 1"):
        diff(base, base, n=0)


# ---------------------------------------------------------------------- how it is shown


@pytest.mark.slow
def test_the_result() -> None:
    base, tuned = changed("llama", shaken(0.05))
    found = diff(base, tuned, n=10, k=3, each=2)
    tellings = [c.telling for c in found.changes]
    assert tellings == sorted(tellings, reverse=True)
    for group in {c.group for c in found.changes}:
        assert sum(c.group == group for c in found.changes) >= 2
    answer = found.to_dict()
    for change in answer["changes"]:
        keys = {"address", "group", "layer", "absolute", "relative", "telling", "legibility"}
        assert keys <= set(change)
        assert change["group"] in GROUPS
        if change["group"] in ("VO", "QK"):
            assert set(change["pairs"][0]) == {"score", "row", "col"}
        else:
            assert set(change["top"][0]) == {"score", "token"}
            assert len(change["bottom"]) == 3
    frame = found.to_pandas()
    assert list(frame["address"]) == [c.address for c in found.changes]
    assert len(found.sizes_to_pandas()) == len(found.sizes)
    assert "The most telling changes" in str(found)
    some = list({c.group for c in found.changes} - {"VO", "QK"})
    alone, ten = (diff(base, tuned, n=n, k=3, each=0, groups=some) for n in (1, 10))
    assert alone.changes == ten.changes[:1]


def test_the_report_escapes_tokens() -> None:
    """`<script>` and `<b>bold</b>` are tokens of the vocabulary."""

    def change(module: Any) -> None:
        E = embedding(opened(build("gpt2"))).float()
        module.transformer.h[0].mlp.c_proj.weight[3] += 2 * E[:, 8] + E[:, 9]
        module.transformer.wte.weight[8] += 0.3

    base, tuned = changed("gpt2", change)
    tuned.checkpoint.name = "<script>alert(1)</script>"
    found = diff(base, tuned)
    for text in (found.to_html(), found._repr_html_()):
        assert "&lt;script&gt;" in text
        assert "<b>bold" not in text
        assert "<script>alert" not in text
    page = found.to_html()
    assert page.count("<script>") == page.count("</script>") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert 'data-group="values"' in page


@pytest.mark.parametrize(
    ("share", "text"), [(0.5, "50 %"), (0.012, "1.2 %"), (1e-6, "<0.01 %"), (12.0, "1,200 %")]
)
def test_percent(share: float, text: str) -> None:
    assert show_percent(share) == text
