"""Contributions add up to the logit, and each is what a linearised float64 model says it is."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from lexray.errors import LexrayError
from lexray.families import Linear, Norm
from lexray.families.streams import Streams
from lexray.model.model import Model
from lexray.trace.attribute.contributions import Contributions
from lexray.trace.trace import Trace
from tests.families.apart import decode
from tests.families.span import spanning
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

IDS = [5, 11, 3, 29, 36, 7, 20]
TARGET = 9


@cache
def traced(name: str) -> Trace:
    return worded(name).trace(IDS)


class Linearised:
    """The recorded pass once more in float64, every component a leaf, every norm's scale held."""

    def __init__(self, trace: Trace, position: int) -> None:
        self.trace, self.model = trace, trace.weights
        self.position, self.row = position, trace.row(position)
        self.leaves: dict[str, Tensor] = {}

    def leaf(self, name: str, value: Tensor) -> Tensor:
        self.leaves[name] = value.detach().double().requires_grad_()
        return self.leaves[name]

    def norm(self, norm: Norm | None, x: Tensor, name: str) -> Tensor:
        if norm is None:
            return x
        centred = x - x.mean() if norm.centres else x
        scale = (centred.square().mean() + norm.eps).sqrt().detach()
        scale = torch.ones_like(scale) if norm.kind == "fixed" else scale
        gain, bias = (read(self.model.checkpoint) for read in (norm.read_gain, norm.read_bias))
        out = centred / scale * (1 if gain is None else gain.double())
        return out if bias is None else out + self.leaf(name, bias)

    def attention(self, index: int, x: Tensor) -> Tensor:
        layer, spec = self.trace[index], self.trace[index].spec.attention
        if (mixer := layer.spec.mixer) is not None and not mixer.last:
            x = x + self.mixer(index)
        if spec.absent:
            return x
        heads = zip(self.model.layers[index].heads, layer.z[self.row], strict=True)
        wrote = torch.stack([z.double() @ head.W_O.double() for head, z in heads])
        out = self.leaf(f"L{index}H", wrote).sum(0)
        if (b_O := self.model.layers[index].heads[0].b_O) is not None:
            out = out + self.leaf(f"L{index}.b_O", b_O)
        name = f"L{index}.attn_norm_bias"
        return self.norm(spec.sum_norm, x + self.norm(spec.post_norm, out, name), name)

    def mixer(self, index: int) -> Tensor:
        layer = self.trace[index]
        assert layer.spec.mixer is not None
        wrote = self.leaf(f"L{index}.mixer", layer.mixer_write[self.row])
        return self.norm(layer.spec.mixer.post_norm, wrote, "")

    def last(self, index: int, x: Tensor) -> Tensor:
        """What stands behind the feed-forward, and the factor on all that leaves."""
        spec = self.trace[index].spec
        if spec.mixer is not None and spec.mixer.last:
            x = x + self.mixer(index)
        return self.norm(spec.factor, x, "")

    def feed_forward(self, index: int, x: Tensor) -> Tensor:
        layer, spec = self.trace[index], self.trace[index].spec.ff
        out = torch.zeros_like(x)
        for active in layer.active(self.position):
            stem = str(active.ff.address)
            values = active.coefficients.double()[:, None] * active.ff.W_out.double()
            out = out + self.leaf(f"{stem}N", values).sum(0)
            if active.ff.b_out is not None:
                out = out + self.leaf(f"{stem}.b_out", active.weight * active.ff.b_out)
        name = f"L{index}.mlp_norm_bias"
        return self.norm(spec.sum_norm, x + self.norm(spec.post_norm, out, name), name)

    def streams(self, a: Streams, x: Tensor) -> Tensor:
        """Gemma 3n's layers, from the embedding to the final norm: what mixes streams is held."""

        def sized(y: Tensor, linear: Linear, like: Tensor) -> Tensor:
            y = y @ linear.read(self.model.checkpoint).double()
            return y * (like.norm() / y.norm()).detach()

        X = torch.stack([x, *(sized(x, linear, x) for linear in a.spread)])
        for index in range(self.model.n_layers):
            layer = self.trace[index]
            P = layer.streams.predict[self.row].double() @ X
            p, laurel = P[a.active], layer.spec.laurel
            narrow = self.leaf(f"L{index}.laurel", layer.laurel_write[self.row])
            beside = self.norm(laurel.pre_norm, p, "") + self.norm(laurel.post_norm, narrow, "")
            made = self.feed_forward(index, self.attention(index, p + beside) / 2**0.5)
            X = P + layer.streams.correct[self.row].double()[:, None] * (made - p)
            X = torch.cat([X[:1], X[1:] + self.mixer(index)])
        others = zip(X[1:], a.gather, strict=True)
        return torch.stack([X[0], *(sized(y, linear, X[0]) for y, linear in others)]).mean(0)

    def logits(self) -> Tensor:
        a, trace = self.model.architecture, self.trace
        parts = [
            self.leaf(f"embedding.{name}", x[self.row]) for name, x in trace.embed_parts.items()
        ]
        x = self.norm(a.embed_norm, torch.stack(parts).sum(0), "embedding.norm_bias")
        if a.projects_last and a.project_in is not None:
            P, b = (getattr(a.project_in, f)(self.model.checkpoint) for f in ("read", "read_bias"))
            x = x @ P.double() + self.leaf("embedding.project_bias", b)
        for index in range(0 if a.streams else self.model.n_layers):
            x = self.last(index, self.feed_forward(index, self.attention(index, x)))
        if a.streams is not None:
            x = self.streams(a.streams, x)
        x = self.norm(a.final_norm, x, "final_norm.bias")
        logits = x @ self.model.W_U.double() * a.logit_scale
        if self.model.b_U is not None:
            logits = logits + self.leaf("unembedding.bias", self.model.b_U)
        return logits


def added(trace: Trace, position: int) -> dict[str, float]:
    """What autograd says each component added."""
    pass_again = Linearised(trace, position)
    logits = pass_again.logits()
    grads = torch.autograd.grad(logits[TARGET], list(pass_again.leaves.values()))
    found: dict[str, float] = {}
    for (name, leaf), grad in zip(pass_again.leaves.items(), grads, strict=True):
        if leaf.ndim == 2:
            values = (leaf * grad).sum(1).tolist()
            found |= {f"{name}{i}": value for i, value in enumerate(values)}
        else:
            found[name] = (leaf * grad).sum().item()
    return found


@spanning
@pytest.mark.parametrize("position", [-1, 2])
def test_each_component_of_each_family(name: str, position: int) -> None:
    trace = traced(name)
    found = {leaf.component: leaf.contribution for leaf in trace.contributions(TARGET, position)}
    expected = added(trace, position)
    assert found.keys() == expected.keys()
    for component, value in expected.items():
        assert found[component] == pytest.approx(value, rel=2e-3, abs=2e-5), component


@spanning
@pytest.mark.parametrize("sources", [False, True])
def test_they_sum_to_the_models_own_logit(name: str, sources: bool) -> None:
    trace, module = traced(name), build(name)
    found = trace.contributions(TARGET, sources=sources)
    frame = found.to_pandas()
    assert list(frame.columns) == ["component", "layer", *["source"] * sources, "contribution"]
    assert frame["component"].is_unique or sources
    total = frame["contribution"].sum()
    if trace.model.architecture.head is None:
        assert total == pytest.approx(float(trace.logits_uncapped[-1, TARGET]), abs=2e-4)
        assert "decoder alone" not in found.note
    else:
        own = decode(module, trace.normed[-1])[TARGET].item()
        assert total == pytest.approx(own, abs=2e-4)
        assert "decoder alone" in found.note
        assert "decoder alone" in str(found).replace("\n", " ")


@pytest.mark.parametrize("name", ["llama", "mistral", "olmo2", "bert", "gemma2", "falcon-7b"])
def test_sources_add_up_to_heads(name: str) -> None:
    whole, split = (traced(name).contributions(TARGET, 3, sources=s) for s in (False, True))
    for layer in range(traced(name).model.n_layers):
        for head in range(traced(name).model.n_heads):
            component = f"L{layer}H{head}"
            assert split[component] == pytest.approx(whole[component], abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "olmo2", "bert", "falcon-7b"])
@pytest.mark.parametrize("edit", ["ablate L1H0", "scale L1H0 by 3", "ablate L1.attn"])
def test_a_head_whose_output_was_changed_is_not_split(name: str, edit: str) -> None:
    trace = traced(name).model.trace(list(IDS), edits=[edit])
    whole, split = (trace.contributions(TARGET, 3, sources=s) for s in (False, True))
    assert split.total == pytest.approx(whole.total, abs=1e-3)
    assert split["L1H0"] == pytest.approx(whole["L1H0"], rel=1e-5, abs=1e-5)
    sources = {leaf.component: leaf.source for leaf in split if leaf.kind == "head"}
    assert (sources["L1H0"] is None) == ("L1H0" in edit)
    assert sources["L1H1"] is not None


def test_a_source_is_what_its_memory_value_adds() -> None:
    """Without a norm after W_O in between, by hand: α_i v_i W_O along the direction."""
    trace = traced("llama")
    split = trace.contributions(TARGET, sources=True)
    model, layer = trace.weights, trace[1]
    norm, x = model.architecture.final_norm, trace.final[-1]
    assert norm is not None
    gain = norm.read_gain(model.checkpoint)
    direction = gain * model.W_U[:, TARGET] * torch.rsqrt(x.square().mean() + norm.eps)
    head = model.layers[1].heads[2]
    values = layer.v[:, head.kv_index] @ head.W_O @ direction * layer.pattern[2, -1]
    found = [leaf.contribution for leaf in split if leaf.component == "L1H2"]
    assert found == pytest.approx(values.tolist(), abs=1e-5)
    assert [leaf.source for leaf in split if leaf.component == "L1H2"] == list(range(len(IDS)))


def test_two_tokens_are_the_difference() -> None:
    trace = traced("gptj")
    one, other = trace.contributions(4), trace.contributions(9)
    both = trace.contributions(4, against=9)
    assert both.logit == pytest.approx(one.logit - other.logit)
    for a, b, difference in zip(one, other, both, strict=True):
        assert difference.contribution == pytest.approx(a.contribution - b.contribution, abs=1e-4)
    pair = trace.contributions((4, 9))
    assert pair.to_dict()["contributions"] == both.to_dict()["contributions"]
    assert "against" in str(both)


def test_components_are_addresses_of_the_model() -> None:
    for name in ("gpt2", "qwen2-moe", "bert"):
        trace = traced(name)
        for leaf in trace.contributions(TARGET):
            if leaf.layer is not None:
                assert trace.model[leaf.component] is not None


def test_chosen_experts_and_the_shared_one() -> None:
    trace = traced("qwen2-moe")
    components = {leaf.component for leaf in trace.contributions(TARGET, 4)}
    experts = trace[0].experts
    assert experts is not None
    for expert in range(5):
        chosen = expert in experts.chosen[4].tolist()
        assert (f"L0E{expert}N3" in components) == chosen
    assert {"L0SN3", "L1N3"} <= components


def test_top_tables_and_sums() -> None:
    found = traced("gpt2").contributions(TARGET, shown=4)
    values = sorted(leaf.contribution for leaf in found)
    assert [leaf.contribution for leaf in found.top(3)] == pytest.approx(values[:-4:-1])
    assert [leaf.contribution for leaf in found.top(3, negative=True)] == pytest.approx(values[:3])
    assert {leaf.kind for leaf in found.top(5, kind="head")} == {"head"}
    for leaf in found.top(5):
        assert found[leaf.component] == leaf.contribution
    sums = found.by_layer()
    assert list(sums) == ["embedding", "L0", "L1", "last step"]
    assert sum(map(sum, (s.values() for s in sums.values()))) == pytest.approx(
        found.logit, abs=1e-4
    )
    extremes, layers = found.tables()
    assert len(extremes.rows) == 4
    assert layers.columns == ("", "embeddings", "heads", "neurons", "biases", "together")


def test_every_form() -> None:
    found = traced("gpt2").contributions("<script>", against="<b>bold</b>")
    data = json.loads(found.to_json())
    assert data["target"] == {"id": 8, "text": "<script>"}
    assert len(data["contributions"]) == len(list(found))
    assert "<script>" not in found.to_html()
    assert found.to_csv().splitlines()[0] == "component,layer,contribution"
    chart = found.plot()
    by_layer, largest = chart.lists
    assert sum(bar.total for bar in by_layer.bars) == pytest.approx(found.logit, abs=1e-4)
    assert largest.bars[0].label == found.top(1)[0].label
    assert "<script>" not in chart.to_svg()
    figure = chart.to_plotly()
    bars = [bar for bar in figure.data if bar.showlegend]
    assert sum(sum(bar.x) for bar in bars) == pytest.approx(found.logit, abs=1e-4)
    assert "<script>" not in figure.layout.title.text


def test_half_precision_says_how_far_off_it_is() -> None:
    module = build("llama")
    halved = type(module)(module.config).to(torch.bfloat16).eval()
    halved.load_state_dict(module.state_dict())
    found = Model.from_module(halved).trace(IDS).contributions(TARGET)
    assert found.total == pytest.approx(found.logit, abs=0.1)
    assert f"{found.total:.3f}" in str(found)


def test_targets_of_several_tokens() -> None:
    trace = traced("gpt2")
    with pytest.raises(LexrayError, match=r"is 2 tokens, .*first=True.*trace\.score\('fg'\)"):
        trace.contributions("fg")
    found = trace.contributions("fg", against="ab", first=True)
    plain = trace.contributions("f", against="a")
    assert found.logit == plain.logit
    assert "f is the first of f + g" in found.note
    assert "a is the first of a + b" in found.note
    assert [token["text"] for token in found.to_dict()["target"]["word"]] == ["f", "g"]


def refused(message: str, trace: Trace, *arguments: object, **options: object) -> None:
    with pytest.raises(LexrayError, match=message):
        trace.contributions(*arguments, **options)  # type: ignore[arg-type]


def test_mistakes() -> None:
    trace = traced("gpt2")
    refused("is not a token", trace, "zzz~")
    refused("no position 7", trace, TARGET, 7)
    refused("one token, or two", trace, (1, 2, 3))
    refused("one token, or two", trace, (1, 2), against=3)
    model = trace.model
    refused("layer 0 was not kept", model.trace(IDS, layers=[1]), TARGET)
    refused("position -1 was not kept", model.trace(IDS, positions=[2]), TARGET)
    refused("was not kept", model.trace(IDS, what=["residual", "logits"]), TARGET)
    found = trace.contributions(TARGET)
    assert isinstance(found, Contributions)
    with pytest.raises(LexrayError, match=r"no component 'L9H9'; there are .*L0H0"):
        found["L9H9"]
    for n in (0, -1):
        with pytest.raises(LexrayError, match=f"the top {n} components"):
            found.top(n)


def test_by_default_the_most_probable_token() -> None:
    trace = traced("gpt2")
    for position in (1, -1):
        found = trace.contributions(position=position)
        assert found.target.id == int(trace.logits[position].argmax())
        assert found.logit == trace.contributions(found.target.id, position).logit


def test_a_model_without_a_language_model_head() -> None:
    bare = AutoModel.from_config(build("gpt2").config).eval()
    refused("no language-model head", Model.from_module(bare).trace(IDS), TARGET)


def test_top_says_where_heads_looked_and_what_they_wrote() -> None:
    """Against transformers' own weights: z W_O through the final norm and the unembedding."""
    trace, module = traced("gpt2"), build("gpt2")
    found = trace.contributions(TARGET).top(4, kind="head")
    for leaf in found:
        layer, head = map(int, leaf.component[1:].split("H"))
        record, attention = trace[layer], module.transformer.h[layer].attn
        W_O = attention.c_proj.weight.reshape(*record.z.shape[1:], -1)[head]
        with torch.no_grad():
            logits = module.lm_head(module.transformer.ln_f(record.z[-1, head] @ W_O))
            values = record.v[:, head] @ W_O
        assert [word.id for word in leaf.words] == logits.topk(3).indices.tolist()
        share = (record.pattern[head, -1, :, None] * values).norm(dim=-1)
        assert leaf.looked_at == trace.tokens[int(share.argmax())]
        words = " ".join(word.shown for word in leaf.words)
        told = f"{leaf.component} ← {leaf.looked_at.shown} · {words}"
        assert str(leaf) == f"{told} · {leaf.contribution:+.2f}"
        assert told in str(found)
        assert words in found.to_csv(safe=False)
    assert found.to_dict()["components"][0]["words"][0] == found[0].words[0].to_dict()


def test_top_reads_neurons_and_sources() -> None:
    trace, module = traced("gpt2"), build("gpt2")
    for leaf in trace.contributions(TARGET).top(3, kind="neuron"):
        layer, neuron = map(int, leaf.component[1:].split("N"))
        mlp = module.transformer.h[layer].mlp
        wrote = trace[layer].active(-1)[0].coefficients[neuron] * mlp.c_proj.weight[neuron]
        with torch.no_grad():
            logits = module.lm_head(module.transformer.ln_f(wrote))
        assert [word.id for word in leaf.words] == logits.topk(3).indices.tolist()
    for leaf in trace.contributions(TARGET, sources=True).top(3, kind="head"):
        assert leaf.source is not None
        assert leaf.looked_at == trace.tokens[leaf.source]
        assert leaf.label.startswith(f"{leaf.component} ← {leaf.looked_at.shown} ({leaf.source})")
