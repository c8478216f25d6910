"""What users bring beside a model: dictionaries of features, vectors in files, saved graphs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import save_file

from lexray.checkpoint.vectors import load_vectors
from lexray.dictionary.dictionary import Dictionary
from lexray.find.given import read_given
from lexray.flow.flow import Flow
from lexray.model.model import Model
from tests.fuzz.spoil import each, spoil_bytes, spoil_header, spoil_json, spoil_text
from tests.vocabulary.vocabularies import worded

FEATURES = 30


@cache
def model() -> Model:
    """The sound model that they are read with."""
    return worded("llama").view("standard")


def make_sound(folder: Path) -> None:
    g = torch.Generator().manual_seed(0)
    d, n = model().d_model, FEATURES
    matrices = {"W_enc": torch.randn(d, n, generator=g), "W_dec": torch.randn(n, d, generator=g)}
    saelens = matrices | {
        "b_enc": torch.randn(n, generator=g),
        "b_dec": torch.randn(d, generator=g),
        "threshold": torch.rand(n, generator=g),
    }
    gated = matrices | {
        name: torch.randn(n, generator=g) for name in ("b_gate", "b_mag", "r_mag", "b_dec")
    }
    gated["b_dec"] = torch.randn(d, generator=g)
    config = {
        "architecture": "standard",
        "hook_name": "blocks.1.hook_resid_pre",
        "hook_layer": 1,
        "normalize_activations": "layer_norm",
        "apply_b_dec_to_input": True,
        "activation_fn_kwargs": {"k": 3},
        "rescale_acts_by_decoder_norm": True,
        "model_from_pretrained_kwargs": {"center_writing_weights": True},
        "metadata": {"hook_name_out": "blocks.1.hook_mlp_out"},
    }
    for name, tensors in (("saelens", saelens), ("gated", gated), ("topk", matrices)):
        (folder / name).mkdir()
        (folder / name / "cfg.json").write_text(json.dumps(config))
        save_file(tensors, folder / name / "sae_weights.safetensors")
    graph = model().trace([1, 2, 3]).flow(layers=[0], target=3)
    (folder / "graph.json").write_text(graph.to_json())
    x = torch.randn(3, d, generator=g)
    np.save(folder / "vectors.npy", x.numpy())
    save_file({"x": x, "y": x[0].half().contiguous()}, folder / "vectors.safetensors")
    (folder / "vectors.json").write_text(json.dumps(x.tolist()))
    rows = [" ".join(map(str, row)) for row in x.tolist()]
    (folder / "vectors.txt").write_text("\n".join(rows))
    (folder / "vectors.csv").write_text("\n".join(rows).replace(" ", ","))


def spoil_dictionary(sound: Path, folder: Path, random: Random) -> Path:
    source = sound / random.choice(["saelens", "gated", "topk"])
    config = (source / "cfg.json").read_bytes()
    weights = (source / "sae_weights.safetensors").read_bytes()
    if random.random() < 0.5:
        config = spoil_text(config, random)
    else:
        weights = spoil_header(weights, random)
    (folder / "cfg.json").write_bytes(config)
    (folder / "sae_weights.safetensors").write_bytes(weights)
    return folder


def use_dictionary(path: Path) -> None:
    dictionary = Dictionary.open(path, model())
    x = torch.ones(2, model().d_model)
    each(
        lambda: repr(dictionary),
        lambda: str(dictionary[0].top(3)),
        lambda: dictionary[len(dictionary) - 1].value.tensor,
        lambda: str(dictionary.lookup(["a"]).top(3)),
        lambda: str(dictionary.nearest(0, 3)),
        lambda: dictionary.encoder.active(x),
    )


def spoil_vectors(sound: Path, folder: Path, random: Random) -> Path:
    ending = random.choice([".npy", ".safetensors", ".json", ".csv", ".txt", ".pt"])
    source = sound / f"vectors{'.npy' if ending == '.pt' else ending}"
    raw, path = source.read_bytes(), folder / source.with_suffix(ending).name
    if ending == ".safetensors":
        raw = spoil_header(raw, random)
    elif ending == ".json":
        raw = spoil_text(raw, random)
    else:
        raw = spoil_bytes(raw, random, 128)
    path.write_bytes(raw)
    return path


def use_vectors(path: Path) -> None:
    def read(name: str | None) -> str:
        return str(read_given(model(), load_vectors(path, name), k=3))

    if path.suffix == ".safetensors":
        each(lambda: read("x"), lambda: read("y"))
    else:
        read(None)


def spoil_graph(sound: Path, folder: Path, random: Random) -> Path:
    """Below its lists of nodes and edges, which are long, or anywhere."""
    data = json.loads((sound / "graph.json").read_bytes())
    key = random.choice(["nodes", "edges", *data, *data])
    if key in ("nodes", "edges"):
        data[key][random.randrange(len(data[key]))] = spoil_json(random.choice(data[key]), random)
    else:
        data[key] = spoil_json([data[key]], random)
        data[key] = data[key][0] if isinstance(data[key], list) and data[key] else data[key]
    (folder / "graph.json").write_text(json.dumps(data))
    return folder / "graph.json"


def use_graph(path: Path) -> None:
    graph = Flow.from_json(path.read_text())
    each(graph.to_html, graph.to_svg, lambda: str(graph), graph.to_json)
