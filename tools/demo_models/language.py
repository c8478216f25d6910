"""Training of the language models: one process, one thread, resumable at any checkpoint."""

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from demo_models.corpus import Corpus
from demo_models.data import Batches, cut, join
from demo_models.recipe import BATCH, CONTEXT, MAX_PARAMETERS, VOCABULARY_SIZE, LanguageModel
from demo_models.run import Run

LOG_EVERY = 50
EVALUATE_EVERY = 100
HELD_OUT_BLOCKS = 128
FAST_GELU = "gelu_pytorch_tanh"
"""The function of GPT-2's own `gelu_new`, computed in one kernel."""


def build(spec: LanguageModel, end_of_text: int) -> GPT2LMHeadModel:
    """The untrained model, initialised from the recipe's seed."""
    torch.manual_seed(spec.seed)
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_positions=CONTEXT,
        n_embd=spec.n_embd,
        n_layer=spec.n_layer,
        n_head=spec.n_head,
        activation_function=FAST_GELU,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    if model.num_parameters() > MAX_PARAMETERS:
        raise ValueError(f"{spec.name} has {model.num_parameters():,} parameters")
    return model


def optimizer_for(model: GPT2LMHeadModel, spec: LanguageModel) -> torch.optim.AdamW:
    """AdamW with decay on matrices and none on biases and norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.peak_lr, betas=(0.9, 0.99), fused=True)


def next_token_loss(model: GPT2LMHeadModel, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats, of each token of the batch after the first."""
    logits = model(input_ids=batch[:, :-1]).logits
    return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(spec: LanguageModel, corpus: Corpus, work: Path) -> GPT2LMHeadModel:
    """The trained model; continues from the checkpoint in `work` where there is one."""
    torch.set_num_threads(1)
    model = build(spec, corpus.end_of_text)
    optimizer = optimizer_for(model, spec)
    run = Run(work / spec.name)
    step = run.resume(model, optimizer)
    batches = Batches(corpus.train, corpus.end_of_text, spec.seed)
    blocks = cut(join(corpus.held_out, corpus.end_of_text))[:HELD_OUT_BLOCKS]
    held_out = torch.from_numpy(blocks.astype(np.int64))
    losses: list[float] = []
    model.train()
    with tqdm(total=spec.steps, initial=step, desc=spec.name, unit="step", mininterval=5) as bar:
        while step < spec.steps:
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate(step)
            loss = next_token_loss(model, batches[step])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.gradient_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            losses.append(loss.item())
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            if step % LOG_EVERY == 0 or step == spec.steps:
                run.log(step=step, train=sum(losses) / len(losses))
                losses.clear()
                if step % EVALUATE_EVERY == 0 or step == spec.steps:
                    run.log(step=step, held_out=mean_loss(model, held_out))
                if run.due() or step == spec.steps:
                    run.save(model, optimizer, step)
    return model.eval()


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, blocks: torch.Tensor) -> float:
    """Mean loss over blocks of equal length."""
    total = sum(next_token_loss(model, part).item() * len(part) for part in blocks.split(BATCH))
    return total / len(blocks)
