"""The flow graph as JSON: a documented, versioned form that round-trips exactly.

    schema      "lexray.flow"
    version     2
    model       the model's name, its `revision`, and how vectors were read: `view`, the same in
                words as `reading`, and `filter`, the words that are listed
    prompt      the text, and `tokens`: its tokens as people read them; of an encoder–decoder those
                of the source, `n_source` many, and then those of the target
    position    whose flow it is, counted from 0
    prediction  {id, shown, weight}: what the model itself holds most probable there
    target      {id, shown}
    candidates  [{id, shown}, …]: words of interest, the target among them
    d_vocab     size of the vocabulary
    layers      which blocks are in it
    options     how it was built
    vocabulary  {id: shown} of all words that occur in readings
    nodes       [{id, kind, layer, label, address, head, position, norm, count, reading, static,
                other, other_norm}, …]: what a node does not have is left out.
                reading and other: {top: [[id, probability], …], bottom: the same, entropy,
                places: [[rank from 1, probability], …] in the order of `candidates`, how: its
                words are those of the largest probabilities ("as it is"), or of the largest
                differences from what its place usually carries ("standardised")};
                static: {top: [[id, score], …], bottom: the same}, the parameter itself as the
                model's `view` reads it
    edges       [{source, target, kind, score, sign, entropy, value, other_score, added,
                other_added}, …]: added is what an addend brings to the logit of each of
                `candidates`, other_added the same in the other run of a difference graph
    pins        [{nodes: [id, …], name}, …]: what somebody has chosen to show; may be left out
    other       of a difference graph: {model, …, prompt, tokens, position} of the other run

Numbers that JSON does not know are written as "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from lexray.checkpoint.fields import brief, text, whole
from lexray.checkpoint.plain import parse_json
from lexray.errors import LexrayError
from lexray.flow.graph import (
    Edge,
    EdgeKind,
    FlowGraph,
    Node,
    NodeKind,
    Pin,
    Projection,
    Run,
    Standing,
    Static,
    Weighed,
    Word,
)
from lexray.result.page import dump_json
from lexray.result.readings import Source
from lexray.view import View

SCHEMA, VERSION = "lexray.flow", 2
T = TypeVar("T")
LONGEST_ERROR = 300
"""Characters of an error's reason."""


def to_dict(graph: FlowGraph) -> dict[str, Any]:
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        **_run_to(graph.run),
        "target": _word_to(graph.target),
        "candidates": [_word_to(word) for word in graph.candidates],
        "d_vocab": graph.d_vocab,
        "layers": list(graph.layers),
        "options": dict(graph.options),
        "vocabulary": {str(id): shown for id, shown in sorted(_vocabulary(graph).items())},
        "nodes": [_node_to(node) for node in graph.nodes],
        "edges": [_edge_to(edge) for edge in graph.edges],
    }
    if graph.pins:
        out["pins"] = [{"nodes": list(pin.nodes), "name": pin.name} for pin in graph.pins]
    return out | ({"other": _run_to(graph.other)} if graph.other else {})


def to_json(graph: FlowGraph) -> str:
    return dump_json(to_dict(graph))


def from_json(text: str) -> FlowGraph:
    try:
        data = parse_json(text.encode("utf-8", "surrogatepass"), "it")
    except LexrayError as error:
        raise LexrayError(f"this is not JSON, so no flow graph: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise LexrayError(
            f'this JSON is no flow graph: it has no "schema": "{SCHEMA}"; '
            "FlowGraph.to_json() writes one"
        )
    if data.get("version") != VERSION:
        raise LexrayError(
            f"this flow graph has version {brief(data.get('version'))} of the schema, this lexray "
            f"reads version {VERSION}: build the graph again, or read it with the lexray that "
            "wrote it"
        )
    try:
        graph = _graph_from(data)
        json.dumps(to_dict(graph), allow_nan=False)  # a page says it again, and is JSON too
        return graph
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise LexrayError(f"this flow graph is damaged: {_short(said)}") from error
    except LexrayError as error:
        raise LexrayError(_short(str(error))) from error


def _short(said: str) -> str:
    """An error in which a name from the file may stand, however long that is."""
    return said if len(said) <= LONGEST_ERROR else f"{said[:LONGEST_ERROR]}…"


def _as(kind: Callable[[Any], T | None], value: Any) -> T:
    """The value, if it is of its kind; a graph may come from others, and is drawn as it says."""
    parsed = kind(value)
    if parsed is None:
        raise ValueError(f"{brief(value)} is no {'text' if kind is text else 'whole number'}")
    return parsed


def _maybe(kind: Callable[[Any], T | None], value: Any) -> T | None:
    return None if value is None else _as(kind, value)


def _at_least(least: int, value: Any) -> int:
    number = _as(whole, value)
    if number < least:
        raise ValueError(f"there is a {number} where the least is {least}")
    return number


def _graph_from(data: dict[str, Any]) -> FlowGraph:
    shown = {int(id): _as(text, word) for id, word in data["vocabulary"].items()}
    return FlowGraph(
        run=_run_from(data),
        target=_word_from(data["target"]),
        candidates=tuple(_word_from(word) for word in data["candidates"]),
        d_vocab=_at_least(1, data["d_vocab"]),
        layers=tuple(_at_least(0, layer) for layer in data["layers"]),
        nodes=tuple(_node_from(node, shown) for node in data["nodes"]),
        edges=tuple(_edge_from(edge) for edge in data["edges"]),
        options=dict(data["options"].items()),
        other=_run_from(data["other"]) if "other" in data else None,
        pins=tuple(
            Pin(tuple(map(str, pin["nodes"])), _as(text, pin.get("name", "")))
            for pin in data.get("pins", [])
        ),
    )


def _vocabulary(graph: FlowGraph) -> dict[int, str]:
    return {
        word.id: word.shown
        for node in graph.nodes
        for seen in (node.projection, node.other, node.static)
        if seen is not None
        for word in (*seen.top, *seen.bottom)
    }


def _run_to(run: Run) -> dict[str, Any]:
    return {
        **run.source.to_dict(),
        "prompt": run.prompt,
        "tokens": list(run.tokens),
        "position": run.position,
        "prediction": None if run.prediction is None else vars(run.prediction),
        **({"n_source": run.n_source} if run.n_source else {}),
    }


def _run_from(data: dict[str, Any]) -> Run:
    view = View(**data["view"])
    model, address, filter = (_as(text, data[key]) for key in ("model", "address", "filter"))
    source = Source(model, _maybe(text, data["revision"]), address, view, filter)
    said = data["prediction"]
    best = None if said is None else _read_weighed(said["id"], said["shown"], said["weight"])
    tokens = tuple(_as(text, token) for token in data["tokens"])
    position = _at_least(0, data["position"])
    if position >= len(tokens):
        raise ValueError(f"position {position} is none of its {len(tokens)} tokens")
    n_source = _at_least(0, data.get("n_source", 0))
    if n_source > position:
        raise ValueError(f"position {position} is one of the source, which has {n_source} tokens")
    return Run(source, _as(text, data["prompt"]), tokens, position, best, n_source)


def _read_weighed(id: Any, shown: Any, weight: Any) -> Weighed:
    return Weighed(_at_least(0, id), _as(text, shown), float(weight))


def _word_to(word: Word) -> dict[str, Any]:
    return {"id": word.id, "shown": word.shown}


def _word_from(data: dict[str, Any]) -> Word:
    return Word(_at_least(0, data["id"]), _as(text, data["shown"]))


def _node_to(node: Node) -> dict[str, Any]:
    fields = {
        "id": node.id,
        "kind": node.kind.value,
        "layer": node.layer,
        "label": node.label,
        "address": node.address,
        "head": node.head,
        "position": node.position,
        "norm": _number_to(node.norm),
        "count": node.count,
        "reading": _projection_to(node.projection),
        "static": _ends_to(node.static) if node.static else None,
        "other": _projection_to(node.other),
        "other_norm": _number_to(node.other_norm),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _node_from(data: dict[str, Any], shown: dict[int, str]) -> Node:
    static = data.get("static")
    return Node(
        id=_as(text, data["id"]),
        kind=NodeKind(data["kind"]),
        layer=_as(whole, data["layer"]),
        label=_as(text, data["label"]),
        address=_maybe(text, data.get("address")),
        head=_maybe(whole, data.get("head")),
        position=_maybe(whole, data.get("position")),
        norm=_number_from(data.get("norm")),
        count=_maybe(whole, data.get("count")),
        projection=_projection_from(data.get("reading"), shown),
        static=Static(*_ends_from(static, shown)) if static is not None else None,
        other=_projection_from(data.get("other"), shown),
        other_norm=_number_from(data.get("other_norm")),
    )


def _projection_to(seen: Projection | None) -> dict[str, Any] | None:
    if seen is None:
        return None
    places = [[place.rank, _number_to(place.probability)] for place in seen.places]
    return _ends_to(seen) | {
        "places": places,
        "entropy": _number_to(seen.entropy),
        "how": seen.how,
    }


def _projection_from(data: dict[str, Any] | None, shown: dict[int, str]) -> Projection | None:
    if data is None:
        return None
    places = tuple(Standing(_at_least(1, rank), float(p)) for rank, p in data["places"])
    how = _as(text, data.get("how", "as it is"))
    return Projection(*_ends_from(data, shown), places, float(data["entropy"]), how)


def _ends_to(seen: Projection | Static) -> dict[str, Any]:
    return {
        end: [[word.id, _number_to(word.weight)] for word in words]
        for end, words in (("top", seen.top), ("bottom", seen.bottom))
    }


def _ends_from(
    data: dict[str, Any], shown: dict[int, str]
) -> tuple[tuple[Weighed, ...], tuple[Weighed, ...]]:
    top, bottom = (
        tuple(_read_weighed(id, shown[_as(whole, id)], weight) for id, weight in data[end])
        for end in ("top", "bottom")
    )
    return top, bottom


def _edge_to(edge: Edge) -> dict[str, Any]:
    fields = {
        "source": edge.source,
        "target": edge.target,
        "kind": edge.kind.value,
        "score": _number_to(edge.score),
        "sign": edge.sign,
        "entropy": _number_to(edge.entropy),
        "value": _number_to(edge.value),
        "other_score": _number_to(edge.other_score),
        "added": _shares_to(edge.added),
        "other_added": _shares_to(edge.other_added),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _edge_from(data: dict[str, Any]) -> Edge:
    return Edge(
        source=_as(text, data["source"]),
        target=_as(text, data["target"]),
        kind=EdgeKind(data["kind"]),
        score=float(data["score"]),
        sign=int(data["sign"]),
        entropy=_number_from(data.get("entropy")),
        value=_number_from(data.get("value")),
        other_score=_number_from(data.get("other_score")),
        added=_shares_from(data.get("added")),
        other_added=_shares_from(data.get("other_added")),
    )


def _shares_to(shares: tuple[float, ...] | None) -> list[Any] | None:
    return None if shares is None else [_number_to(share) for share in shares]


def _shares_from(shares: Any) -> tuple[float, ...] | None:
    return None if shares is None else tuple(float(share) for share in shares)


def _number_to(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number_from(value: Any) -> float | None:
    return None if value is None else float(value)
