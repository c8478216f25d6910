"""The command line as tests run it: in this process, through the same door as a user."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lexray.cli import main
from tests.families.pairs import BART, GATED, T5, make_pair
from tests.families.zoo import GPT2, LLAMA, Variant, make

N_TOKENS = 320
TEXT = (
    "law Law LAW laws legal court courts judge the cat and the dog, his and her cats & dogs; "
    "walk walks walked walking naïve café 日本 <script>alert(1)</script> [bold] "
)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it says; the result's state beside it is tests/result/test_load.py's matter."""
        data = json.loads(self.out)
        if isinstance(data, dict):
            data.pop("lexray", None)
        return data


def lexray(*arguments: object) -> Ran:
    """Runs a command; its exit code and what it wrote."""
    with (
        TemporaryFile("w+", encoding="utf-8", newline="") as out,
        TemporaryFile("w+", encoding="utf-8", newline="") as err,
    ):
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        assert isinstance(stopped.value.code, int)
        return Ran(stopped.value.code, _written(out), _written(err))


def _written(stream: Any) -> str:
    stream.seek(0)
    return str(stream.read())


def answer(*arguments: object) -> Any:
    """What a command gives as JSON; nothing else may be written."""
    ran = lexray(*arguments, "--format", "json")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    return ran.json


def mistake(*arguments: object) -> str:
    """The one line that explains a user's mistake."""
    ran = lexray(*arguments)
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("lexray: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    return ran.err


def save_tiny(folder: Path, family: str) -> Path:
    """A random model of two layers or stacks with a byte-level tokenizer of its own."""
    sizes = {"llama": LLAMA, "gpt2": GPT2, "t5": T5 | GATED, "bart": BART}[family]
    variant = Variant(family, family, sizes | {"vocab_size": N_TOKENS})
    (make_pair if family in ("t5", "bart") else make)(variant).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT * 3], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
