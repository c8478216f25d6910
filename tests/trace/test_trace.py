"""The face of a trace: typed options, a word on those that are not there, results that say how."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from lexray.errors import LexrayError
from lexray.flow.flow import Flow
from lexray.flow.options import BlockOptions, FlowOptions
from lexray.model.model import Model
from lexray.trace.trace import Trace
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

IDS = [5, 11, 3, 29, 36]


def asked(model: Model) -> dict[str, Callable[..., Any]]:
    trace = model.trace(IDS)
    return {
        "trace": lambda **options: model.trace(IDS, **options),
        "lens": trace.lens,
        "contributions": trace.contributions,
        "flow": trace.flow,
    }


@pytest.mark.parametrize("name", ["trace", "lens", "contributions", "flow"])
def test_an_unknown_option_is_answered_with_those_there_are(name: str) -> None:
    function = Model.trace if name == "trace" else getattr(Trace, name)
    known = [p for p in inspect.signature(function).parameters if p not in ("self", "unknown")]
    with pytest.raises(LexrayError, match="no option colour, shape") as error:
        asked(worded("gpt2"))[name](shape=1, colour="red")
    assert all(option in str(error.value) for option in known)


@pytest.mark.parametrize("function", [Model.trace, Trace.lens, Trace.contributions, Trace.flow])
def test_every_option_is_typed_and_explained(function: Callable[..., Any]) -> None:
    assert function.__doc__
    for option in inspect.signature(function).parameters.values():
        assert option.annotation is not inspect.Parameter.empty or option.name == "self"
        if option.name not in ("self", "unknown"):
            assert f"`{option.name}" in function.__doc__, option.name


def test_the_face_has_every_option_of_a_graph() -> None:
    options = vars(BlockOptions())
    taken = inspect.signature(Trace.flow).parameters
    assert {name: taken[name].default for name in options} == options
    assert FlowOptions.__annotations__.keys() == options.keys()


def test_a_list_of_prompts_gives_a_list_of_traces() -> None:
    model = worded("gpt2")
    one, several = model.trace(IDS), model.trace([IDS, IDS[:3]])
    assert isinstance(one, Trace)
    assert [len(trace) for trace in several] == [5, 3]
    assert all(isinstance(trace, Trace) for trace in several)


@pytest.mark.parametrize("name", ["lens", "contributions", "flow"])
def test_json_says_the_view_and_the_revision(name: str) -> None:
    module = build("gpt2")
    model = Model.from_module(module).view(centred=True, reading="input")
    model.checkpoint.revision = "0a1b2c3"
    data = json.loads(asked(model)[name]().to_json())
    assert data["model"] == model.name
    assert data["revision"] == "0a1b2c3"
    assert data["view"] == asdict(model.options)
    assert data["reading"] == str(model.options)
    assert data["filter"] == ""


def test_a_graph_reads_back_how_it_was_made() -> None:
    graph = worded("llama").view(centred=True).trace(IDS).flow(heads=1, neurons=(1, 1))
    again = Flow.from_json(graph.to_json())
    assert again == graph
    assert again.run.source.view == graph.run.source.view
    assert again.run.source.view.centred
