"""The models that ship with lexray: complete folders, small, one vocabulary, better than counts."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lexray.model.model import Model

MODELS = Path(str(files("lexray"))) / "models"
LANGUAGE_MODELS = ("demo", "demo-b", "demo-wide")
ALL = (*LANGUAGE_MODELS, "demo-sentiment")
FIGURES: dict[str, Any] = json.loads((MODELS / "figures.json").read_text())
SENTENCES = FIGURES["sentences"]

PRAISE = (
    "A wonderful film. The acting is superb, the story moved me, and I loved every minute of it.",
    "One of the best movies I have ever seen, brilliant and beautiful. Highly recommended!",
    "An excellent cast, a touching story and great music: a perfect evening for the whole family.",
    "I enjoyed this a lot. It is funny and charming, and her performance is amazing.",
)
BLAME = (
    "A terrible film. The acting is awful, the story is stupid, and I hated every minute of it.",
    "One of the worst movies I have ever seen, boring and pointless. Avoid it at all costs!",
    "A poor script, wooden acting and horrible music: a complete waste of time and money.",
    "I was disappointed by this. It is dull and predictable, and the dialogue is laughable.",
)


@cache
def language_model(name: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()


@cache
def sentiment_model() -> PreTrainedModel:
    """The fine-tune as it was trained: its config asks for the identity as final norm."""
    folder = MODELS / "demo-sentiment"
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.lexray_final_norm == "identity"
    model.transformer.ln_f = torch.nn.Identity()
    return model


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(MODELS / "demo")


@torch.no_grad()
def mean_log_probability(name: str, text: str) -> float:
    """Per token of the text, at the beginning of a review."""
    ids = torch.tensor([[tokenizer().bos_token_id, *tokenizer()(text)["input_ids"]]])
    log_p = language_model(name)(ids).logits[0, :-1].log_softmax(-1)
    return float(log_p.gather(-1, ids[0, 1:, None]).mean())


@torch.no_grad()
def positive_margin(text: str) -> float:
    """How much the review's mean logit for "positive" exceeds the one for "negative"."""
    model = sentiment_model()
    logits = model(**tokenizer()(text, return_tensors="pt")).logits.mean(1)[0]
    return float(
        logits[model.config.label2id["positive"]] - logits[model.config.label2id["negative"]]
    )


@pytest.mark.parametrize("name", ALL)
def test_parameters_stay_below_two_million(name: str) -> None:
    model = sentiment_model() if name == "demo-sentiment" else language_model(name)
    assert 1_500_000 < model.num_parameters() < 2_000_000


@pytest.mark.parametrize("name", ALL)
def test_weights_are_half_precision_and_finite(name: str) -> None:
    with safe_open(MODELS / name / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}
        for key in weights.keys():  # noqa: SIM118 (safe_open is no mapping)
            tensor = weights.get_tensor(key)
            assert tensor.dtype == torch.float16, key
            assert tensor.isfinite().all(), key


def test_size_in_all_is_at_most_25_megabytes() -> None:
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) <= 25_000_000


@pytest.mark.parametrize("name", ALL)
def test_every_folder_shares_the_vocabulary(name: str) -> None:
    same = (MODELS / "demo" / "tokenizer.json").read_bytes()
    assert (MODELS / name / "tokenizer.json").read_bytes() == same
    config = json.loads((MODELS / name / "config.json").read_text())
    own = AutoTokenizer.from_pretrained(MODELS / name)
    assert len(own) == config["vocab_size"]
    assert own.bos_token_id == own.eos_token_id == config["eos_token_id"]


def test_tokenizer_keeps_every_text() -> None:
    text = "It's a café noir,\n\nnaïve but good… 10/10! <script> 🎬"
    assert tokenizer().decode(tokenizer()(text)["input_ids"]) == text


@pytest.mark.parametrize("name", ALL)
def test_folders_carry_no_machine_path(name: str) -> None:
    for file in (MODELS / name).glob("*config.json"):
        assert not re.search(r"/(home|root|tmp|work|Users)\b", file.read_text()), file.name


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_unseen_sentences_are_likelier_than_by_the_baselines(name: str) -> None:
    scores = [mean_log_probability(name, one["text"]) for one in SENTENCES]
    bigram = fmean(one["bigram"] for one in SENTENCES)
    assert fmean(scores) > bigram > fmean(one["unigram"] for one in SENTENCES)
    for score, one in zip(scores, SENTENCES, strict=True):
        assert score > one["unigram"] + 1, one["text"]
        assert score == pytest.approx(one[name], abs=0.01), "the model card's figure"


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_perplexity_is_below_the_baselines(name: str) -> None:
    """As measured by the recipe on test reviews, which are not at hand here."""
    measured = FIGURES["models"][name]["perplexity"]
    bigram, unigram = (FIGURES["baselines"][one]["perplexity"] for one in ("bigram", "unigram"))
    assert measured < bigram < unigram


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_generated_text_is_likelier_in_order_than_shuffled(name: str) -> None:
    """A greedy continuation is language of the model's own, not a bag of frequent words."""
    model = language_model(name)
    prompt = tokenizer()("<|endoftext|>This movie is", return_tensors="pt")
    end = tokenizer().eos_token_id
    written = model.generate(**prompt, do_sample=False, max_new_tokens=30, pad_token_id=end)
    words = tokenizer().decode(written[0], skip_special_tokens=True).split()
    assert len(words) > 10
    backwards = " ".join(reversed(words))
    assert mean_log_probability(name, " ".join(words)) > mean_log_probability(name, backwards) + 1


def test_the_two_seeds_are_different_models_of_one_shape() -> None:
    one, other = language_model("demo"), language_model("demo-b")
    assert one.config.n_embd == other.config.n_embd
    assert not torch.allclose(one.transformer.wte.weight, other.transformer.wte.weight, atol=0.1)
    assert language_model("demo-wide").config.n_embd != one.config.n_embd


def test_fine_tune_changed_only_weights_of_the_last_layers() -> None:
    base, tuned = language_model("demo").transformer, sentiment_model().transformer
    changed = {
        name
        for name, parameter in tuned.named_parameters()
        if not torch.equal(parameter, base.get_parameter(name))
    }
    last = {f"h.{i}." for i in (2, 3)}
    expected = {
        name for name, _ in tuned.named_parameters() if name[:4] in last and name.endswith("weight")
    }
    assert changed == expected
    assert sentiment_model().classifier.bias.abs().max() == 0


@pytest.mark.parametrize("text", PRAISE, ids=lambda text: text[:15])
def test_praise_is_positive(text: str) -> None:
    assert positive_margin(text) > 0


@pytest.mark.parametrize("text", BLAME, ids=lambda text: text[:15])
def test_blame_is_negative(text: str) -> None:
    assert positive_margin(text) < 0


def test_card_states_the_figures() -> None:
    card = (MODELS / "README.md").read_text()
    for values in (*FIGURES["models"].values(), *FIGURES["baselines"].values()):
        assert f"| {values['perplexity']:.1f} |" in card
    assert f"| {100 * FIGURES['sentiment']['accuracy']:.1f} % |" in card
    assert (MODELS / "losses.png").stat().st_size < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_lexray_opens_them_by_name(name: str) -> None:
    """Readings use the weights and the words that transformers has."""
    model = Model.from_pretrained(name).view("raw")
    theirs = safe_open(MODELS / name / "model.safetensors", "pt").get_tensor(
        "transformer.wte.weight"
    )
    assert torch.equal(model.W_E, theirs)
    assert model.vocabulary.encode("What a film!") == tokenizer().encode("What a film!")
    pairs = model["L1H2"].vo.top(5)
    E, head = theirs.double().T, model["L1H2"]
    table = E.T @ head.W_V.double() @ head.W_O.double() @ E
    assert pairs[0].score == pytest.approx(float(table.max()), rel=1e-4)
