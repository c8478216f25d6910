"""Encoder–decoders in the app: both stacks on the map, sources and targets on the prompt page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lexray.model.origin import Origin
from lexray.web.library import Library
from lexray.web.packed import pack
from tests.families.pairs import build_pair
from tests.saved import words
from tests.web.house import open_client
from tests.web.test_pages import read, run, sections

PROMPT = "/t5/prompt?text=word3+word5+word7&begin=word4+word6"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("pairs")
    return Library.of([Origin(str(save_pair(name, folder / name))) for name in ("t5", "bart")])


@pytest.fixture(scope="module")
def asked(pairs: Library) -> TestClient:
    return open_client(pairs)


def save_pair(name: str, folder: Path) -> Path:
    """A tiny model with a tokenizer of words that stand apart."""
    build_pair(name).save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(words(37))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("slug", ["t5", "bart"])
def test_the_map_has_both_stacks(asked: TestClient, pairs: Library, slug: str) -> None:
    model = pairs[slug].model
    twin = read(asked, f"/{slug}/map.json")
    layers = [layer for stack in model.stacks for layer in stack.layers]
    assert [each["address"] for each in twin["layers"]] == [str(layer.address) for layer in layers]
    page = asked.get(f"/{slug}/map").text
    for head in model.every_head:
        assert f'data-head="{head.address}"' in page
    figures = read(asked, f"/{slug}/map/heads.json?colour=norm")["content"]["layers"]
    for layer in layers:
        sizes = [float((h.W_V.double() @ h.W_O.double()).norm()) for h in layer.every_head]
        assert figures[str(layer.address)] == pytest.approx(sizes, rel=1e-3)


def test_a_strip_is_of_its_stack(asked: TestClient, pairs: Library) -> None:
    model = pairs["t5"].model
    for at, stack in (("L1", model), ("enc.L1", model.encoder)):
        found = read(asked, f"/t5/map/neurons.json?neurons=norm&layer={at}")["content"]["layers"]
        norms = torch.cat([group.tensor for group in stack.layers[1].groups("value")]).norm(dim=1)
        assert found == {at: pytest.approx(norms.tolist(), rel=1e-3)}
    for wrong in ("enc.L9", "L1H2", "x"):
        assert asked.get(f"/t5/map/neurons.json?layer={wrong}").status_code == 400


@pytest.mark.slow
def test_a_source_and_a_target(
    asked: TestClient, pairs: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict(sections(asked, PROMPT))
    assert {"next", "lens", "adds", "attention", "cross", "source", "flow"} <= set(found)
    for name, section in found.items():
        made = run(section["python"], pairs, monkeypatch)
        assert json.loads(json.dumps(pack(made).to_dict())) == section["content"], name
    trace = pairs["t5"].model.trace("word3 word5 word7", target="word4 word6")
    ((cell,),) = (line["cells"] for line in found["next"]["content"]["lines"])
    shown = [each["token"]["id"] for each in cell["top"]]
    assert shown[:5] == trace.logits[-1].topk(5).indices.tolist()


def test_positions_are_the_targets(asked: TestClient) -> None:
    page = asked.get(PROMPT).text
    chips = page.partition('prompt-tokens"')[2].partition("</ol>")[0]
    assert chips.count('title="position ') == 3  # where it begins, and two words
    assert asked.get(f"{PROMPT}&position=2").status_code == 200
    assert asked.get(f"{PROMPT}&position=3").status_code == 400


def test_neighbours_stay_in_their_stack(asked: TestClient) -> None:
    for at, after, down in (("enc.L0H1", "enc.L0H2", "enc.L1H1"), ("L1X2", "L2X0", "L2X2")):
        page = asked.get(f"/t5/{at}").text
        assert f'href="/t5/{after}" rel="next"' in page
        assert f'href="/t5/{down}" data-key="}}"' in page
    assert ">encoder layer 0<" in asked.get("/t5/enc.L0H1").text
    assert asked.get("/t5/enc.L1").status_code == 200


def test_what_has_no_partner_does_not_offer_one(asked: TestClient) -> None:
    assert "in-bart" in read(asked, "/t5/enc.L1H1.json")["sections"]
    assert "in-bart" not in read(asked, "/t5/L1X2.json")["sections"]
    words_of = asked.get("/t5/compare/bart/partners.json?of=L1X2")
    assert words_of.status_code == 400
    assert "cross-attention" in words_of.json()["error"]
