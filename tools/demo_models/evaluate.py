"""Every figure of the model card, measured on the written folders and kept in figures.json."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm
from transformers import GPT2Config, GPT2ForTokenClassification, GPT2LMHeadModel

from demo_models.baselines import Bigram, Unigram, bag_of_words_accuracy
from demo_models.corpus import Corpus
from demo_models.data import Review, Tokens, cut, encode, join, read_reviews, split_training
from demo_models.language import FAST_GELU, HELD_OUT_BLOCKS, mean_loss
from demo_models.recipe import CONTEXT, LANGUAGE_MODELS, SPLIT_SEED, VOCABULARY_SIZE
from demo_models.sentiment import as_batch

PERPLEXITY_REVIEWS = 1000
SENTIMENT_REVIEWS = 5000
SENTIMENT_BATCH = 64
SAMPLE_TOKENS = 70

SENTENCES = (
    "I went to see this film with my sister, and we both laughed from beginning to end.",
    "The plot makes no sense at all, and the acting is some of the worst I have ever seen.",
    "He plays a detective who falls in love with the woman he is supposed to be watching.",
    "If you are a fan of old horror movies, then you will probably enjoy this one.",
    "The special effects look cheap, but the music is good and the ending surprised me.",
    "Her performance as the mother is the only reason to watch this boring mess.",
    "It was directed by a young man from Canada, and this is his first feature film.",
    "Don't waste your time and money on this one; rent something else instead.",
)
"""Written for this evaluation, hence in no review."""

PROMPTS = ("This movie is", "The best thing about", "I hated", "She plays a")


def evaluate(corpus: Corpus, data: Path, out: Path) -> None:
    """Measure the folders in `out` on the test reviews and write `out/figures.json`."""
    train, held_out = split_training(read_reviews(data / "imdb-train.jsonl.gz"))
    test = read_reviews(data / "imdb-test.jsonl.gz")
    judged = sample(test, SENTIMENT_REVIEWS)
    figures = {
        "data": {
            "train_reviews": len(train),
            "train_tokens": sum(map(len, corpus.train)),
            "held_out_reviews": len(held_out),
            "test_reviews": len(test),
        },
        **language_figures(corpus, sample(test, PERPLEXITY_REVIEWS), out),
        "samples": samples(corpus.tokenizer, out / "demo"),
        "sentiment": {
            **sentiment_figures(corpus.tokenizer, judged, out / "demo-sentiment"),
            "bag_of_words": bag_of_words_accuracy(train, held_out, judged),
            "bag_of_words_truncated": bag_of_words_accuracy(
                *(truncated(corpus.tokenizer, part) for part in (train, held_out, judged))
            ),
        },
    }
    (out / "figures.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def sample(reviews: list[Review], count: int) -> list[Review]:
    """Some of the reviews, chosen at random once and for all."""
    chosen = np.random.default_rng(SPLIT_SEED).permutation(len(reviews))[:count]
    return [reviews[i] for i in sorted(chosen)]


def language_figures(corpus: Corpus, test: list[Review], out: Path) -> dict[str, Any]:
    """Perplexities of models and baselines over the same tokens of test reviews."""
    stream = join(corpus.train, corpus.end_of_text)
    held_out = cut(join(corpus.held_out, corpus.end_of_text))
    documents = encode(corpus.tokenizer, test)
    blocks = cut(join(documents, corpus.end_of_text))
    bigram = Bigram.fit(stream, held_out, VOCABULARY_SIZE)
    baselines = {"unigram": Unigram(stream, VOCABULARY_SIZE), "bigram": bigram}
    models = {name: load(out / name) for name in LANGUAGE_MODELS}
    return {
        "perplexity_reviews": len(documents),
        "perplexity_tokens": blocks[:, 1:].size,
        "bigram_discount": bigram.discount,
        "baselines": {
            name: {
                "perplexity": math.exp(-baseline.score(blocks).mean()),
                "held_out_loss": -baseline.score(held_out[:HELD_OUT_BLOCKS]).mean(),
            }
            for name, baseline in baselines.items()
        },
        "models": {
            name: {
                "parameters": model.num_parameters(),
                "bytes": folder_size(out / name),
                "perplexity": math.exp(mean_loss(model, as_tensor(blocks))),
            }
            for name, model in models.items()
        },
        "sentences": [
            {"text": text, **sentence_figures(text, corpus, baselines, models)}
            for text in SENTENCES
        ],
    }


def sentence_figures(
    text: str,
    corpus: Corpus,
    baselines: Mapping[str, Unigram | Bigram],
    models: Mapping[str, GPT2LMHeadModel],
) -> dict[str, float]:
    """Mean log-probability of the text's tokens, at the beginning of a review, by each model."""
    ids = np.array([[corpus.end_of_text, *corpus.tokenizer.encode(text).ids]], dtype=np.uint16)
    counted = {name: float(one.score(ids).mean()) for name, one in baselines.items()}
    return counted | {name: -mean_loss(one, as_tensor(ids)) for name, one in models.items()}


def load(folder: Path) -> GPT2LMHeadModel:
    """A written language model, in single precision."""
    config = GPT2Config.from_pretrained(folder, activation_function=FAST_GELU)
    return GPT2LMHeadModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def as_tensor(blocks: Tokens) -> torch.Tensor:
    """Tokens as torch takes them."""
    return torch.from_numpy(blocks.astype(np.int64))


def folder_size(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.iterdir())


def samples(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Seeded continuations of the prompts, cut at the end of the review."""
    torch.manual_seed(SPLIT_SEED)
    model = load(folder)
    end = model.config.eos_token_id
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([[end, *tokenizer.encode(prompt).ids]])
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=end,
            do_sample=True,
            temperature=0.8,
            top_p=0.95,
            max_new_tokens=SAMPLE_TOKENS,
        )
        texts.append(tokenizer.decode(written[0].tolist(), skip_special_tokens=True))
    return texts


@torch.no_grad()
def sentiment_figures(tokenizer: Tokenizer, test: list[Review], folder: Path) -> dict[str, Any]:
    """Accuracy with the final norm as in training (the identity) and as transformers applies it."""
    config = GPT2Config.from_pretrained(folder, activation_function=FAST_GELU)
    model = GPT2ForTokenClassification.from_pretrained(folder, config=config, dtype=torch.float32)
    model.eval()
    final_norm, model.transformer.ln_f = model.transformer.ln_f, nn.Identity()
    documents = encode(tokenizer, test)
    order = sorted(range(len(test)), key=lambda i: min(len(documents[i]), CONTEXT))
    correct = torch.zeros(2)
    for start in tqdm(range(0, len(order), SENTIMENT_BATCH), desc="sentiment", mininterval=5):
        chosen = order[start : start + SENTIMENT_BATCH]
        tokens, lengths = as_batch([documents[i] for i in chosen])
        labels = torch.tensor([test[i].label for i in chosen])
        hidden = model.transformer(tokens).last_hidden_state
        real = torch.arange(tokens.shape[1]) < lengths[:, None]
        for i, states in enumerate((hidden, final_norm(hidden))):
            logits = (model.classifier(states) * real[..., None]).sum(1)
            correct[i] += (logits.argmax(-1) == labels).sum()
    accuracy, with_norm = (correct / len(test)).tolist()
    return {
        "reviews": len(test),
        "parameters": model.num_parameters(),
        "bytes": folder_size(folder),
        "accuracy": accuracy,
        "accuracy_with_final_norm": with_norm,
    }


def truncated(tokenizer: Tokenizer, reviews: list[Review]) -> list[Review]:
    """The part of each review that the models see."""
    documents = encode(tokenizer, reviews)
    texts = tokenizer.decode_batch([document[:CONTEXT].tolist() for document in documents])
    return [Review(one.label, text) for one, text in zip(reviews, texts, strict=True)]
