"""Planted changes come first, and what is no change is none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.diff import diff
from lexray.compare.diff.stacks import GROUPS
from lexray.model.model import Model
from lexray.vocabulary.words import telling
from tests.compare.diff.changing import changed, embedding, opened, shaken
from tests.families.zoo import build


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_most_telling_changes_of_a_fine_tune_read_as_words() -> None:
    found = diff("demo", "demo-sentiment", groups=["keys", "values", "Q", "K", "V", "O"])
    vocabulary = lx.Model.from_pretrained("demo").vocabulary
    says = telling(vocabulary, vocabulary.n_ids)
    for change in found.changes[:10]:
        ends = [[bool(says[s.token.id]) for s in end] for end in (change.top, change.bottom)]
        assert max(map(sum, ends)) >= 8, change.tokens
    praise = {"·wonderful", "·great", "·terrible", "·lame", "·awful", "·boring"}
    assert sum(bool(praise & {*c.tokens, *c.bottom_tokens}) for c in found.changes[:10]) >= 8


@pytest.mark.slow
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


@pytest.mark.parametrize("left_in", [0.0, 0.05])
def test_what_all_output_rows_did_in_common_is_one_change(left_in: float) -> None:
    """All rows go along one direction but those of three tokens, which go against it."""
    raised, moves = [5, 11, 23], torch.linspace(0.5, 1.0, 37)
    moves[raised] = torch.tensor([-2.0, -1.5, -1.0])
    generator = torch.Generator().manual_seed(0)

    def change(module: Any) -> None:
        rows = module.lm_head.weight
        direction = torch.randn(rows.shape[1], generator=generator)
        rows += moves[:, None] * direction / direction.norm()
        rows += left_in * torch.randn(rows.shape, generator=generator)

    base, tuned = changed("llama", change)
    found = diff(base, tuned, n=100, k=3, groups=["unembedding"])
    first, rest = found.changes[0], found.changes[1:]
    assert (first.address, first.token) == ("W_U", None)
    assert [s.token.id for s in first.top] == raised
    moved = (tuned.W_U - base.W_U).T.double()
    assert first.absolute == pytest.approx(float(moves.norm()), rel=0.2)
    mean = moved.mean(0) / moved.mean(0).norm()
    assert [s.score for s in first.top] == pytest.approx((-moved @ mean)[raised].tolist(), rel=1e-3)
    for one in rest:
        assert one.token is not None
        assert one.absolute == pytest.approx(float(moved[one.token.id].norm()), rel=1e-4)
        assert one.telling < first.telling / 4


def test_rows_that_moved_each_their_own_way_have_nothing_in_common() -> None:
    base, tuned = changed("llama", shaken(0.1))
    found = diff(base, tuned, n=1000, groups=["unembedding", "embedding"])
    assert {"W_U", "W_E"}.isdisjoint(c.address for c in found.changes)
