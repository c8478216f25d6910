"""Every number of the demo models in one place: shapes, seeds, steps, learning rates.

Training is a function of these numbers, the data and the torch build only: one thread per process,
seeded initialisation and order, and a schedule that depends on steps and never on the clock.
"""

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "src" / "lexray" / "models"
DATA = REPOSITORY.parent / "shared" / "data"
WORK = Path.home() / ".cache" / "lexray-training"

END_OF_TEXT = "<|endoftext|>"
VOCABULARY_SIZE = 4500
CONTEXT = 256
BATCH = 16
HELD_OUT_REVIEWS = 400
"""Training reviews kept out of training, for the loss curve and for tuning the baselines."""
SPLIT_SEED = 20110619
MAX_PARAMETERS = 2_000_000


@dataclass(frozen=True)
class LanguageModel:
    """A GPT-2 shape and its training run.

    The learning rate rises over `warmup` steps, stays at `peak_lr`, and falls linearly to
    `final_lr_share` of it over the last `cooldown` steps.
    """

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    seed: int
    steps: int
    cooldown: int
    peak_lr: float = 2.5e-3
    warmup: int = 100
    final_lr_share: float = 0.05
    weight_decay: float = 0.1
    gradient_clip: float = 1.0

    def learning_rate(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        rise = min(1.0, (step + 1) / self.warmup)
        left = (self.steps - step) / self.cooldown
        fall = self.final_lr_share + (1 - self.final_lr_share) * min(1.0, left)
        return self.peak_lr * rise * fall


LANGUAGE_MODELS = {
    spec.name: spec
    for spec in (
        LanguageModel("demo", 4, 160, 5, seed=1, steps=1650, cooldown=350),
        LanguageModel("demo-b", 4, 160, 5, seed=2, steps=1250, cooldown=250),
        LanguageModel("demo-wide", 3, 176, 4, seed=3, steps=1100, cooldown=350),
    )
}


@dataclass(frozen=True)
class FineTune:
    """The sentiment fine-tune: how many last layers, and its run.

    The learning rate rises over the first `warmup` steps and then falls linearly to zero.
    """

    seed: int = 1
    layers: int = 2
    steps: int = 500
    batch: int = 16
    peak_lr: float = 1e-3
    warmup: int = 50
    gradient_clip: float = 1.0

    def learning_rate(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        return self.peak_lr * min((step + 1) / self.warmup, 1 - step / self.steps)


FINE_TUNE = FineTune()

TITLES = {
    "demo": "A GPT-2 language model of film reviews: 4 layers of width 160.",
    "demo-b": "`demo` once more, from another seed and with the reviews in another order.",
    "demo-wide": "The same reviews and vocabulary in another shape: 3 layers of width 176.",
    "demo-sentiment": (
        "`demo` fine-tuned to tell praise from blame: open with "
        "`AutoModelForTokenClassification`, replace `transformer.ln_f` by the identity "
        '(`"lexray_final_norm": "identity"` in config.json) and average the logits over the tokens.'
    ),
}
