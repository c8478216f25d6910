"""The largest files there are: checking everything where it enters must not be felt.

A tokenizer of 262,144 tokens and 514,906 merges (as Gemma 3's) against `tokenizers` reading the
same file, and a mixture of experts of 10⁵ tensors against `safetensors` listing the same header.
Ratios are theirs over ours; ours also parses, checks and describes what they only load.
"""

import json
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 3
TOKENS, MERGES = 262_144, 514_906
LAYERS, EXPERTS = 48, 690
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 8,
    "intermediate_size": 8,
    "moe_intermediate_size": 4,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}


def write_tokenizer(path: Path, n_tokens: int = TOKENS, n_merges: int = MERGES) -> None:
    """Byte-level BPE: letters, and every token a pair of earlier ones."""
    letters = [chr(code) for code in range(0x100, 0x300)]
    tokens, merges = list(letters), []
    for i in range(n_tokens - len(letters)):
        a, b = tokens[i // len(letters)], letters[i % len(letters)]
        tokens.append(a + b)
        merges.append([a, b])
    vocab = {token: i for i, token in enumerate(tokens)}
    assert len(vocab) == n_tokens
    spare = ([t[0], t[1:]] for t in tokens if len(t) > 2 and t[1:] in vocab)
    merges += list(spare)[: n_merges - len(merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    stages = {"pre_tokenizer": byte_level, "decoder": byte_level, "added_tokens": []}
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    path.write_text(json.dumps({"version": "1.0", "model": model} | stages))


def write_mixture(folder: Path) -> int:
    """A header of 10⁵ tensors over a file of holes; how many they are."""
    d, inner = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"]
    shapes: dict[str, list[object]] = {
        "model.embed_tokens.weight": [64, d],
        "lm_head.weight": [64, d],
        "model.norm.weight": [d],
    }
    for n in range(LAYERS):
        stem = f"model.layers.{n}."
        shapes |= {f"{stem}self_attn.{x}_proj.weight": [d, d] for x in "qkvo"}
        shapes |= {f"{stem}{x}_layernorm.weight": [d] for x in ("input", "post_attention")}
        shapes[f"{stem}mlp.gate.weight"] = [EXPERTS, d]
        for e in range(EXPERTS):
            shapes |= {f"{stem}mlp.experts.{e}.{x}_proj.weight": [inner, d] for x in ("gate", "up")}
            shapes[f"{stem}mlp.experts.{e}.down_proj.weight"] = [d, inner]
    header, at = {}, 0
    for name, shape in shapes.items():
        stop = at + 4 * int(shape[0]) * int(shape[1] if len(shape) > 1 else 1)  # type: ignore[call-overload]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, stop]}
        at = stop
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + at)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return len(shapes)


def best(act: Callable[[], object]) -> float:
    """The shortest of a few runs, in seconds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def run() -> dict[str, float]:
    """`tokenizer_ratio` and `header_ratio`, and our seconds for both."""
    from safetensors import safe_open
    from tokenizers import Tokenizer

    from lexray.model.model import Model
    from lexray.vocabulary.vocabulary import Vocabulary

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = folder / "tokenizer.json"
        write_tokenizer(tokenizer)
        tensors = write_mixture(folder)

        def list_header() -> None:
            with safe_open(folder / "model.safetensors", "pt") as file:
                for key in file.keys():  # noqa: SIM118  not a dict
                    file.get_slice(key).get_shape()

        theirs = best(lambda: Tokenizer.from_file(str(tokenizer)))
        ours = best(lambda: Vocabulary.from_tokenizer_json(tokenizer).encode("a"))
        listed = best(list_header)
        opened = best(lambda: Model.from_pretrained(folder))
    return {
        "tokenizer_ratio": theirs / ours,
        "header_ratio": listed / opened,
        "tokenizer_seconds": ours,
        "header_seconds": opened,
        "tensors": float(tensors),
    }


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
