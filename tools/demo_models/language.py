"""Training of the language models: one process, one thread, resumable at any checkpoint."""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from demo_models.corpus import Corpus
from demo_models.data import Batches, cut, join
from demo_models.recipe import CONTEXT, MAX_PARAMETERS, VOCABULARY_SIZE, LanguageModel

CHECKPOINT_SECONDS = 180.0
LOG_EVERY = 50
EVALUATE_EVERY = 200


def build(spec: LanguageModel, end_of_text: int) -> GPT2LMHeadModel:
    """The untrained model, initialised from the recipe's seed.

    `gelu_pytorch_tanh` is the function of GPT-2's `gelu_new`, computed in one kernel.
    """
    torch.manual_seed(spec.seed)
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_positions=CONTEXT,
        n_embd=spec.n_embd,
        n_layer=spec.n_layer,
        n_head=spec.n_head,
        activation_function="gelu_pytorch_tanh",
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
    return torch.optim.AdamW(groups, lr=spec.peak_lr, betas=(0.9, 0.95), fused=True)


def next_token_loss(model: GPT2LMHeadModel, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats, of each token of the batch after the first."""
    logits = model(input_ids=batch[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(spec: LanguageModel, corpus: Corpus, work: Path) -> GPT2LMHeadModel:
    """The trained model; continues from the checkpoint in `work` where there is one."""
    torch.set_num_threads(1)
    model = build(spec, corpus.end_of_text)
    optimizer = optimizer_for(model, spec)
    run = _Run(work / spec.name)
    step = run.resume(model, optimizer)
    batches = Batches(corpus.train, corpus.end_of_text, spec.seed)
    held_out = torch.from_numpy(cut(join(corpus.held_out, corpus.end_of_text)).astype("int64"))
    recent: deque[float] = deque(maxlen=LOG_EVERY)
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
            recent.append(loss.item())
            mean = sum(recent) / len(recent)
            bar.update()
            bar.set_postfix(loss=f"{mean:.3f}", refresh=False)
            if step % EVALUATE_EVERY == 0 or step == spec.steps:
                run.log(step=step, train=mean, held_out=mean_loss(model, held_out))
            elif step % LOG_EVERY == 0:
                run.log(step=step, train=mean)
            if run.due() or step == spec.steps:
                run.save(model, optimizer, step)
    return model.eval()


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, blocks: torch.Tensor) -> float:
    """Mean loss over blocks of equal length."""
    with evaluating(model):
        total = sum(next_token_loss(model, part).item() * len(part) for part in blocks.split(16))
    return total / len(blocks)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, then back in training mode."""
    model.eval()
    yield
    model.train()


class _Run:
    """A training run's folder: the checkpoint and the log of losses."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint.pt"
        self.log_file = folder / "log.jsonl"
        self._saved_at = time.monotonic()

    def resume(self, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer) -> int:
        """Load the checkpoint, if any; the number of steps already done."""
        if not self.checkpoint.exists():
            self.log_file.unlink(missing_ok=True)
            return 0
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(state["step"])
        kept = [row for row in read_log(self.log_file) if row["step"] <= step]
        self.log_file.write_text("".join(json.dumps(row) + "\n" for row in kept))
        return step

    def due(self) -> bool:
        """Whether the last checkpoint is some minutes old."""
        return time.monotonic() - self._saved_at > CHECKPOINT_SECONDS

    def save(self, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write the checkpoint beside the old one, then put it in its place."""
        beside = self.checkpoint.with_suffix(".new")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, beside)
        beside.replace(self.checkpoint)
        self._saved_at = time.monotonic()

    def log(self, **row: float) -> None:
        """Append a line to the log."""
        with self.log_file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_log(path: Path) -> list[dict[str, float]]:
    """The rows of a training log."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
