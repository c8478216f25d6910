"""Train, evaluate and describe the models that ship with lexray.

    python tools/train_demo.py tokenizer
    python tools/train_demo.py demo            # likewise demo-b, demo-wide

Checkpoints, tokenised reviews and logs are kept in `--work`; a stopped command continues where its
last checkpoint was.
"""

import argparse
from pathlib import Path

from demo_models.corpus import load_corpus
from demo_models.language import train
from demo_models.recipe import DATA, LANGUAGE_MODELS, WORK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["tokenizer", *LANGUAGE_MODELS])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    corpus = load_corpus(arguments.data, arguments.work)
    if arguments.command in LANGUAGE_MODELS:
        train(LANGUAGE_MODELS[arguments.command], corpus, arguments.work)


if __name__ == "__main__":
    main()
