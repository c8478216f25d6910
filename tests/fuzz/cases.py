"""Sound files of each kind, made once, and one spoiled case after the other.

A case is known by its kind and its seed. Opening it has to end well or in a LexrayError.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils import logging

from lexray.errors import LexrayError
from lexray.model.info import info
from lexray.model.model import Model
from lexray.vocabulary.vocabulary import Vocabulary
from tests.families import zoo
from tests.families.gguf.variants import BY_NAME as STORED
from tests.families.gguf.variants import converted
from tests.families.gguf.writer import Converted
from tests.families.pairs import PAIRS, build_pair
from tests.fuzz import given, quantised, words
from tests.fuzz.spoil import VALUES, each, spoil_bytes, spoil_header, spoil_text

FAMILIES = {
    v.model_type: (v.name, build)
    for variants, build in ((zoo.VARIANTS, zoo.build), (PAIRS, build_pair))
    for v in variants[::-1]
}
"""Whose configs are spoiled: the first variant of every family, and what builds it."""
TEXT = "Hello wörld, 日本 <s> x\n  it's 123 aaaaaaaa"
CORPUS = ["the cat and the dog", "Hello wörld it's 日本 12345", "a b c d e f g"] * 9


def write_tokenizers(folder: Path) -> None:
    """Three kinds of `tokenizer.json`, 37 tokens each."""
    kinds = {
        "bpe": (models.BPE(), trainers.BpeTrainer(vocab_size=37, special_tokens=["<s>"])),
        "unigram": (
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=37, special_tokens=["<unk>"], unk_token="<unk>"),
        ),
        "wordpiece": (
            models.WordPiece(unk_token="[UNK]"),
            trainers.WordPieceTrainer(vocab_size=37, special_tokens=["[UNK]"]),
        ),
    }
    for name, (model, trainer) in kinds.items():
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace("  ", " ")]
        )
        tokenizer.pre_tokenizer = (
            pre_tokenizers.ByteLevel() if name == "bpe" else pre_tokenizers.Metaspace()
        )
        tokenizer.decoder = decoders.ByteLevel() if name == "bpe" else decoders.Metaspace()
        tokenizer.train_from_iterator(CORPUS, trainer)
        tokenizer.add_tokens(["<extra>"])
        tokenizer.save(str(folder / f"{name}.json"))


def make_sound(folder: Path) -> None:
    """The files that are spoiled later."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    write_tokenizers(folder)
    llama = sound_family("llama", folder)
    settings = {"eos_token": "<s>", "added_tokens_decoder": {"40": {"content": "<new>"}}}
    (llama / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copytree(llama, folder / "shards")
    zoo.build("llama").save_pretrained(folder / "shards", max_shard_size="8KB")
    (folder / "shards" / "model.safetensors").unlink()
    shutil.copytree(llama, folder / "bin")
    torch.save(load_file(llama / "model.safetensors"), folder / "bin" / "pytorch_model.bin")
    (folder / "bin" / "model.safetensors").unlink()
    peft = get_peft_model(deepcopy(zoo.build("llama")), LoraConfig(target_modules=["q_proj"], r=2))
    peft.save_pretrained(folder / "adapter")
    shutil.copytree(llama, folder / "adapter" / "base")
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": "base", "alpha_pattern": {"q_proj": 3}}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    words.make_sound(folder)
    given.make_sound(folder)
    quantised.make_sound(folder)


def sound_family(model_type: str, sound: Path) -> Path:
    """A model of a family, made when it is first asked for."""
    folder = sound / "families" / model_type
    if not folder.exists():
        name, build = FAMILIES[model_type]
        build(name).save_pretrained(folder)
        shutil.copy(sound / "bpe.json", folder / "tokenizer.json")
    return folder


def sound_gguf(name: str) -> Converted:
    """A model as llama.cpp's converter writes it, with a tokenizer that can encode."""
    model = converted(name)
    letters = [*"abcdefghijklmnopqrstuvwxyz", "▁", "Ġ", "th", "the", "▁the", "to", "tok"]
    tokens = letters + [f"<{i}>" for i in range(36 - len(letters))] + ["<s>"]
    model.metadata |= {
        "tokenizer.ggml.model": "gpt2" if name.startswith("gpt2") else "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t h", "th e", "t o", "to k"],
        "tokenizer.ggml.scores": [0.5] * 37,
        "tokenizer.ggml.token_type": [1] * 36 + [3],
        "tokenizer.ggml.bos_token_id": 36,
    }
    return model


def exercise(path: Path) -> None:
    """What a user does with a model: looks at it, at its words, and reads a part of it."""
    model = Model.from_pretrained(path)

    def read() -> None:
        few = (layer for _, layer in zip(range(4), model.layers, strict=False))
        head = next((head for layer in few for head in layer.heads), None) or model.head("L0H0")
        for tensor in (head.W_Q, head.W_K, head.W_V, head.W_O):
            assert tensor.ndim == 2
        assert model.W_E.shape[1] == model.d_model

    each(read, lambda: str(info(model)), lambda: use_vocabulary(model.vocabulary))


def use_vocabulary(vocabulary: Vocabulary) -> None:
    def show() -> None:
        assert len(vocabulary.all_shown) == vocabulary.n_ids
        vocabulary.groups()

    def encode() -> None:
        ids = vocabulary.encode(TEXT, special=True)
        vocabulary.decode(i for i in ids if i < vocabulary.n_ids)

    facts = (lambda: str(vocabulary), lambda: vocabulary.fingerprint, lambda: vocabulary.caveat)
    each(show, encode, *facts)


def spoil_config(sound: Path, folder: Path, random: Random) -> Path:
    source = sound_family(random.choice(sorted(FAMILIES)), sound)
    return _with(source, folder, "config.json", lambda raw: spoil_text(raw, random))


def spoil_tokenizer(sound: Path, folder: Path, random: Random) -> Path:
    name = random.choice(["bpe", "unigram", "wordpiece"])
    raw = (sound / f"{name}.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(spoil_text(raw, random))
    settings = (sound / "families" / "llama" / "tokenizer_config.json").read_bytes()
    if random.random() < 0.3:
        settings = spoil_text(settings, random)
    (folder / "tokenizer_config.json").write_bytes(settings)
    return folder / "tokenizer.json"


def spoil_safetensors(sound: Path, folder: Path, random: Random) -> Path:
    llama = sound / "families" / "llama"
    return _with(llama, folder, "model.safetensors", lambda raw: spoil_header(raw, random))


def spoil_index(sound: Path, folder: Path, random: Random) -> Path:
    index = "model.safetensors.index.json"
    return _with(sound / "shards", folder, index, lambda raw: spoil_text(raw, random))


def spoil_gguf(sound: Path, folder: Path, random: Random) -> Path:
    """By its bytes, or a key of its metadata by its value."""
    model, path = sound_gguf(random.choice(["gpt2", *STORED])), folder / "model.gguf"
    if random.random() < 0.5:
        raw = model.save(path).read_bytes()
        path.write_bytes(spoil_bytes(raw, random, raw.rindex(b".weight") + 64))
        return path
    key = random.choice(sorted(model.metadata))
    for value in random.sample(VALUES, len(VALUES)):
        model.metadata[key] = value
        try:
            model.save(path)
        except Exception:  # what the `gguf` package cannot write
            continue
        return path
    raise AssertionError("nothing could be written")


def spoil_bin(sound: Path, folder: Path, random: Random) -> Path:
    """The zip as it is, or with a spoiled pickle and right checksums."""

    def spoil(raw: bytes) -> bytes:
        if random.random() < 0.3:
            return spoil_bytes(raw, random)
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
            for record in old.infolist():
                data = old.read(record)
                spoilt = record.filename.endswith(".pkl") or random.random() < 0.05
                new.writestr(record.filename, spoil_bytes(data, random) if spoilt else data)
        return out.getvalue()

    return _with(sound / "bin", folder, "pytorch_model.bin", spoil)


def spoil_adapter(sound: Path, folder: Path, random: Random) -> Path:
    name = random.choice(["adapter_config.json"] * 3 + ["adapter_model.safetensors"])
    if name.endswith(".json"):
        return _with(sound / "adapter", folder, name, lambda raw: spoil_text(raw, random))
    return _with(sound / "adapter", folder, name, lambda raw: spoil_bytes(raw, random, 600))


def _with(source: Path, folder: Path, name: str, spoil: Callable[[bytes], bytes]) -> Path:
    """The files of `source`, linked, with one of them spoiled."""
    for path in source.iterdir():
        if path.name != name:
            (folder / path.name).symlink_to(path) if path.is_file() else shutil.copytree(
                path, folder / path.name
            )
    (folder / name).write_bytes(spoil((source / name).read_bytes()))
    return folder


def use_tokenizer(path: Path) -> None:
    """The words of a folder that has no weights."""
    use_vocabulary(Vocabulary.from_files(lambda name: _asset(path.parent, name)))


@dataclass(frozen=True)
class Kind:
    """How a kind of file is spoiled, from sound ones into an empty folder, and how it is used."""

    spoil: Callable[[Path, Path, Random], Path]
    use: Callable[[Path], None] = exercise


KINDS = {
    "config": Kind(spoil_config),
    "tokenizer": Kind(spoil_tokenizer, use_tokenizer),
    "sentencepiece": Kind(words.spoil_sentencepiece, use_tokenizer),
    "tekken": Kind(words.spoil_tekken, use_tokenizer),
    "older": Kind(words.spoil_older, use_tokenizer),
    "safetensors": Kind(spoil_safetensors),
    "index": Kind(spoil_index),
    "quantised": Kind(quantised.spoil, quantised.use),
    "gguf": Kind(spoil_gguf),
    "bin": Kind(spoil_bin),
    "adapter": Kind(spoil_adapter),
    "dictionary": Kind(given.spoil_dictionary, given.use_dictionary),
    "vectors": Kind(given.spoil_vectors, given.use_vectors),
    "graph": Kind(given.spoil_graph, given.use_graph),
}


def run(kind: str, seed: int, sound: Path, folder: Path) -> str:
    """Makes one case in an empty folder and opens it: "opened" or "refused"; a crash is raised."""
    path = KINDS[kind].spoil(sound, folder, Random(f"{kind} {seed}"))
    try:
        KINDS[kind].use(path)
    except LexrayError as error:
        if len(str(error)) > 5000:
            raise ValueError("an error that nobody can read") from error
        return "refused"
    return "opened"


def _asset(folder: Path, name: str) -> Path | None:
    return folder / name if (folder / name).is_file() else None
