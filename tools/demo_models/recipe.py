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

    The learning rate rises over `warmup` steps to `peak_lr`. In each of the `cooldowns`, given as
    (first step, end), it falls linearly to `final_lr_share` of the peak; after all but the last it
    is back at the peak: a run that has cooled down can be continued so (WSD-S).
    """

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    seed: int
    cooldowns: tuple[tuple[int, int], ...]
    peak_lr: float = 2.5e-3
    warmup: int = 100
    final_lr_share: float = 0.05
    weight_decay: float = 0.1
    gradient_clip: float = 1.0

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.cooldowns[-1][1]

    def learning_rate(self, step: int) -> float:
        """The rate of update number `step`, counted from 0."""
        share = min(1.0, (step + 1) / self.warmup)
        for start, end in self.cooldowns:
            if start <= step < end:
                left = (end - step) / (end - start)
                share = self.final_lr_share + (1 - self.final_lr_share) * left
        return self.peak_lr * share


LANGUAGE_MODELS = {
    spec.name: spec
    for spec in (
        LanguageModel("demo", 4, 160, 5, seed=1, cooldowns=((1300, 1650), (2450, 2900))),
        LanguageModel(
            "demo-b", 4, 160, 5, seed=2, cooldowns=((1000, 1250), (1400, 1650), (2450, 2900))
        ),
        LanguageModel(
            "demo-wide", 3, 176, 4, seed=3, cooldowns=((750, 1100), (1250, 1500), (1900, 2300))
        ),
    )
}


@dataclass(frozen=True)
class FineTune:
    """The sentiment fine-tune: how many last layers, and its run.

    The learning rate rises over the first `warmup` steps and then falls linearly to zero.
    """

    seed: int = 1
    layers: int = 2
    steps: int = 1000
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
