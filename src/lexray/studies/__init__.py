"""The papers' figures and tables, run again on any model: one short module each.

A study is a module with a `STUDY`; see `lexray.studies.shared.study`. To add one, name its module
here.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.resources import files
from typing import Any

from lexray.errors import LexrayError
from lexray.result.table import Table
from lexray.studies.shared.finding import Tables
from lexray.studies.shared.study import Study

MODULES = {
    "keep-k": "keep_k",
    "isotropy": "isotropy",
    "sim-k": "sim_k",
    "related-pairs": "related_pairs",
    "hidden-vs-parameters": "hidden_vs_parameters",
    "heads": "heads",
    "memories": "memories",
    "prediction": "prediction",
    "attention-output": "attention_output",
    "own-token": "own_token",
    "queries-keys": "queries_keys",
    "norm-filters": "norm_filters",
    "regularisation-neurons": "regularisation_neurons",
    "relation-heads": "relation_heads",
}
"""By the study's name, in the order of the report."""


def find(name: str) -> Study[Any]:
    """The study of this name.

    >>> find("keep-k")(model, n=100).findings
    """
    if name not in MODULES:
        raise LexrayError(f"there is no study {name!r}; there are {', '.join(MODULES)}")
    study: Study[Any] = import_module(f"lexray.studies.{MODULES[name]}").STUDY
    return study


def question(name: str) -> str:
    """What a study asks: the first line of its docstring, for which it is not imported."""
    source = (files(__name__) / f"{MODULES[name]}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def list_studies() -> Tables:
    """All studies, with their options."""
    columns = ("study", "question", "paper", "runs prompts", "options")
    rows = tuple(
        (s.name, s.title, s.where, s.needs_prompts, ", ".join(s.options().to_dict()))
        for s in map(find, MODULES)
    )
    return Tables((Table(columns, rows, "studies"),))
