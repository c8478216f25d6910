"""Fine-tuning `demo` to tell praise from blame, as in "Analyzing Transformers in Embedding Space".

The last layers and a linear classifier per token are trained, in them only the `.weight`s
(LayerNorm gains among them) and no biases; the final norm is the identity; a review's logits are
the mean over its tokens.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import GPT2Config, GPT2ForTokenClassification

from demo_models.data import Review, Tokens
from demo_models.language import FAST_GELU
from demo_models.recipe import CONTEXT, FineTune
from demo_models.run import Run

LOG_EVERY = 50
LABELS = {0: "negative", 1: "positive"}


def build(base: Path, spec: FineTune) -> GPT2ForTokenClassification:
    """The base model with a seeded classifier; only what is fine-tuned requires gradients.

    The final norm stays the base's; config.json says that training took the identity in its place.
    """
    torch.manual_seed(spec.seed)
    config = GPT2Config.from_pretrained(base)
    config.id2label = LABELS
    config.label2id = {label: number for number, label in LABELS.items()}
    config.activation_function = FAST_GELU
    config.classifier_dropout = 0.0
    config.lexray_final_norm = "identity"
    model = GPT2ForTokenClassification.from_pretrained(base, config=config, dtype=torch.float32)
    nn.init.normal_(model.classifier.weight, std=model.config.initializer_range)
    nn.init.zeros_(model.classifier.bias)
    model.requires_grad_(False)
    for module in (*model.transformer.h[-spec.layers :], model.classifier):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name.endswith("weight"))
    return model


def review_logits(
    model: GPT2ForTokenClassification, tokens: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Per review, the mean of its tokens' logits; padding is on the right and left out."""
    logits = model(input_ids=tokens).logits
    real = torch.arange(tokens.shape[1]) < lengths[:, None]
    return (logits * real[..., None]).sum(1) / lengths[:, None]


def as_batch(documents: list[Tokens]) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `CONTEXT` tokens of each review, padded on the right, and their numbers."""
    rows = [torch.from_numpy(document[:CONTEXT].astype(np.int64)) for document in documents]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def fine_tune(
    base: Path, spec: FineTune, documents: list[Tokens], reviews: list[Review], folder: Path
) -> GPT2ForTokenClassification:
    """The fine-tuned classifier; continues from the checkpoint in `folder` where there is one."""
    torch.set_num_threads(1)
    model = build(base, spec)
    final_norm, model.transformer.ln_f = model.transformer.ln_f, nn.Identity()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=spec.peak_lr, weight_decay=0.0, fused=True)
    run = Run(folder)
    step = run.resume(model, optimizer)
    labels = np.array([review.label for review in reviews])
    per_epoch = len(documents) // spec.batch
    losses: list[float] = []
    model.train()
    with tqdm(total=spec.steps, initial=step, desc="sentiment", unit="step", mininterval=5) as bar:
        while step < spec.steps:
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate(step)
            epoch, index = divmod(step, per_epoch)
            order = np.random.default_rng([spec.seed, epoch]).permutation(len(documents))
            chosen = order[index * spec.batch : (index + 1) * spec.batch]
            logits = review_logits(model, *as_batch([documents[i] for i in chosen]))
            loss = cross_entropy(logits, torch.from_numpy(labels[chosen]))
            loss.backward()
            nn.utils.clip_grad_norm_(trained, spec.gradient_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            losses.append(loss.item())
            bar.update()
            if step % LOG_EVERY == 0 or step == spec.steps:
                mean = sum(losses) / len(losses)
                bar.set_postfix(loss=f"{mean:.3f}", refresh=False)
                run.log(step=step, train=mean)
                losses.clear()
                if run.due() or step == spec.steps:
                    run.save(model, optimizer, step)
    model.transformer.ln_f = final_norm
    return model.eval()
