"""The story that `lexray demo` tells. Only its sentences are written down; every address, token and
number in it is found while it is told."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from rich.console import Console
from rich.text import Text

from lexray.errors import LexrayError
from lexray.find.hits import Hits
from lexray.model.circuits import Circuit
from lexray.model.model import Model
from lexray.model.open import SMOLLM2, shipped_models, shipped_path
from lexray.progress import track
from lexray.result.format import show_bytes
from lexray.result.head_list import HeadList
from lexray.result.pairs import Directions, Pairs
from lexray.result.readings import Readings
from lexray.result.table import Result, Table
from lexray.vocabulary import filters

WORDS = filters.ascii & filters.starts_word
OPTIONS = "--ascii --starts-word"


@dataclass(frozen=True)
class Chapter:
    """Where to look in a model; what is found there, the weights decide."""

    model: str
    about: str
    matrices: tuple[str, ...]
    layers: tuple[int, ...]
    """Whose heads are read."""
    layer: int
    """Whose neurons are read."""
    neurons: tuple[int, ...]
    """Shown in any case."""
    subjects: tuple[tuple[str, ...], ...]
    """Words to look up; the subject that the model knows best is shown."""


CHAPTERS = (
    Chapter(
        "demo",
        "a small GPT-2 that comes with lexray and has read nothing but film reviews",
        ("VO", "QK"),
        (0, 1, 2, 3),
        3,
        (),
        (
            (" actor", " actress", " director"),
            (" funny", " hilarious", " laugh"),
            (" horror", " scary", " zombie"),
            (" boring", " awful", " terrible"),
        ),
    ),
    Chapter(
        SMOLLM2,
        "a language model of 135 million parameters, quantised, as other people use it",
        ("VO",),
        (25, 27),
        26,
        (777,),
        (
            (" law", " court", " judge"),
            (" France", " Germany", " Italy"),
            (" doctor", " patient", " hospital"),
        ),
    ),
)


def tell(console: Console) -> None:
    """The whole story."""
    started = perf_counter()
    Teller(console).whole()
    console.print()
    console.print(Text(f"This took {perf_counter() - started:.0f} seconds.", style="dim"))
    console.print()
    console.print(Text("All of it in the browser, a map, every head and neuron, prompts:"))
    console.print(Text("  lexray serve demo", style="cyan"))


class Teller:
    def __init__(self, console: Console) -> None:
        self._console = console

    def whole(self) -> None:
        self._title("lexray: an X-ray for language models")
        self._say(
            "A language model is a pile of numbers, but its numbers live in the same space as its "
            "words. Multiply a parameter by the embedding matrix, and it reads as tokens: which "
            "words a neuron writes, what a head moves when it attends to a word. lexray does this "
            "for every parameter of a model, exactly, and reads from the file only what it needs."
        )
        told = [chapter for chapter in CHAPTERS if self._there(chapter)]
        if not told:
            raise LexrayError("the demo has no model to show; try `lexray info MODEL` on your own")
        heads = [self._chapter(chapter) for chapter in told]
        self._farewell(told[-1].model, heads[-1])

    def _there(self, chapter: Chapter) -> bool:
        if chapter.model != SMOLLM2:
            return chapter.model in shipped_models()
        try:
            return shipped_path(SMOLLM2) is not None
        except LexrayError as error:
            self._say(f"(One chapter is left out: {error}.)")
            return False

    def _chapter(self, chapter: Chapter) -> str:
        """Returns the address of the head that it showed."""
        self._title(f"{chapter.model}: {chapter.about}")
        model = self._open(chapter)
        best = self._heads(model, chapter)
        self._directions(best)
        self._neurons(model.view("raw"), model, chapter)
        self._lookup(model, chapter)
        return str(best[0].head.address)

    def _open(self, chapter: Chapter) -> Model:
        started = perf_counter()
        model = Model.from_pretrained(chapter.model)
        a, c = model.architecture, model.checkpoint
        size = sum(c.size(name) for name in c.names())
        self._command(f"lexray info {chapter.model}")
        self._say(
            f"Opened in {perf_counter() - started:.2f} s after reading {show_bytes(c.bytes_read)} "
            f"of {show_bytes(size)}: {model.family.title}, {model.n_layers} layers of "
            f"{a.n_heads} heads and {a.d_mlp:,} neurons, {a.d_vocab:,} tokens. Weights are read "
            "when they are asked for, a head or a neuron at a time."
        )
        return model

    # ------------------------------------------------------------------ heads

    def _heads(self, model: Model, chapter: Chapter) -> list[Circuit]:
        """Several heads a line each, the most legible in full; returns them, the best first."""
        started = perf_counter()
        circuits = [
            circuit
            for i in chapter.layers
            for head in model.layers[i].heads
            for circuit in (head.vo, head.qk)
            if circuit.matrix in chapter.matrices
        ]
        read = [
            (circuit, circuit.top(10, exclude_same="inflected", filter=WORDS))
            for circuit in track(circuits, len(circuits), f"reading heads of {chapter.model}")
        ]
        read.sort(key=lambda item: (not _wordy(_tokens(item[1])), -item[1].legibility))
        shown = [
            one
            for matrix in chapter.matrices
            for one in [one for _, one in read if one.matrix == matrix][:5]
        ]
        pairs = len(model.vocabulary) ** 2
        self._say(
            f"What do its attention heads do? Each has two tables over all pairs of tokens, "
            f"{_large(pairs)} pairs: in VO, attending to the left token writes the right one; in "
            f"QK, the left token looks for the right one. lexray finds the largest entries exactly "
            f"and never builds a table: {len(circuits)} of them took "
            f"{perf_counter() - started:.1f} s. The most legible, with tokens that begin a word "
            "(· is a space):"
        )
        self._show(HeadList(tuple(shown)))
        best = [item for item in read if item[0].matrix == "VO"]
        circuit, one = best[0]
        at = circuit.head.address
        self._say(f"{at} in full, with scores:")
        self._command(
            f"lexray head {chapter.model} {at} -k {len(one)} --exclude-inflected {OPTIONS}"
        )
        self._show(one)
        return [circuit for circuit, _ in best]

    def _directions(self, best: list[Circuit]) -> None:
        """Of some heads, the one whose singular directions are most legible."""
        read = [(circuit, circuit.svd(3, 6, filter=WORDS)) for circuit in best[:4]]
        circuit, directions = max(read, key=lambda item: _legibility(item[1]))
        self._say(
            "A head does several things at once. Its singular directions take them apart: what "
            "the head reads on the left, it writes on the right."
        )
        name = circuit.head.weights.name
        self._command(f"lexray svd {name} {circuit.address} -n 3 -k 6 {OPTIONS}")
        self._show(directions)

    # ------------------------------------------------------------------ neurons

    def _neurons(self, raw: Model, standard: Model, chapter: Chapter) -> None:
        """A whole layer's values, raw and standard."""
        started = perf_counter()
        before, after = (
            model.layers[chapter.layer].values.top(8, filter=WORDS) for model in (raw, standard)
        )
        means = [
            sum(r.legibility for r in readings) / len(readings) for readings in (before, after)
        ]
        chosen = [*_legible(before, after), *chapter.neurons] or [0]
        self._say(
            f"And its neurons? Each adds a vector, its value, to what the model has in mind. Read "
            f"plainly, rare tokens with long embeddings fill many lists; the standard reading puts "
            f"the norms in and holds each score against what is usual for its token. All "
            f"{len(after):,} values of layer {chapter.layer}, both ways, took "
            f"{perf_counter() - started:.1f} s; their mean legibility is {means[0]:.2f} raw and "
            f"{means[1]:.2f} standard:"
        )
        shown = after[chosen[-1]].source.address
        self._command(f"lexray neuron {chapter.model} {shown} {OPTIONS}")
        self._show(NeuronList(before, after, tuple(chosen)))

    def _lookup(self, model: Model, chapter: Chapter) -> None:
        known = [
            (subject, model.lookup(subject).top(4, tokens=8, filter=WORDS))
            for subject in chapter.subjects
            if all(model.vocabulary.find(word) is not None for word in subject)
        ]
        if not known:
            return
        subject, hits = max(known, key=lambda item: _count_recalled(*item))
        words = " ".join(f'"{word}"' for word in subject)
        self._say("The other way round: which of all its neurons write about a subject?")
        self._command(f"lexray lookup {chapter.model} {words} -n 4 -k 8 --ascii --starts-word")
        self._show(hits)

    # ------------------------------------------------------------------ the end, and how to speak

    def _farewell(self, model: str, head: str) -> None:
        self._title("Where to go next")
        for command, why in (
            (f"lexray head {model} {head} --qk", "any head; --of, --writing, --attends-to a token"),
            (f"lexray heads {model} -o heads.jsonl", "all heads; goes on after an interruption"),
            (f"lexray related {model}", "neurons that write what they read"),
            (f"lexray nearest {model} {head}.O0", "what else in the model is like this vector"),
            (f'lexray lens {model} "This movie was"', "a forward pass, layer by layer"),
            (f'lexray flow {model} "This movie was" -o flow.html', "the same as a graph of words"),
            ("lexray diff demo demo-sentiment -o diff.html", "what a fine-tune changed"),
            ("lexray align demo demo-b", "which layers of two models do the same"),
            ("lexray info FOLDER", "your own model: safetensors, .bin, GGUF, LoRA, a Hub id"),
            ("lexray head --help", "filters, views, JSON, CSV and HTML"),
        ):
            self._console.print(Text(f"  {command:<54}", style="cyan") + Text(why, style="default"))
        self._say(f'In Python: lexray.Model.from_pretrained("{model}")["{head}"].vo.top(50)')

    def _title(self, text: str) -> None:
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left")

    def _say(self, text: str) -> None:
        self._console.print()
        self._console.print(Text(text))

    def _command(self, command: str) -> None:
        self._console.print(Text(f"$ {command}", style="cyan"))

    def _show(self, result: Result) -> None:
        self._console.print(result)


@dataclass(frozen=True)
class NeuronList(Result):
    """Values of a layer, raw beside standard."""

    raw: Readings
    standard: Readings
    chosen: tuple[int, ...]

    def tables(self) -> list[Table]:
        rows = tuple(
            (
                self.raw[i].source.address,
                " ".join(self.raw[i].tokens),
                " ".join(self.standard[i].tokens),
            )
            for i in self.chosen
        )
        return [Table(("value", "raw", "standard"), rows)]

    def to_dict(self) -> dict[str, object]:
        return {"raw": self.raw.to_dict(), "standard": self.standard.to_dict()}


def _legible(before: Readings, after: Readings) -> list[int]:
    """Neurons that are most legible in both readings, and some that gain most by the second."""

    def both(i: int) -> float:
        alike = len(set(before[i].tokens) & set(after[i].tokens))
        return float(alike * min(before[i].legibility, after[i].legibility))

    def gain(i: int) -> float:
        return float(after[i].legibility - before[i].legibility)

    seen: set[str] = set()
    chosen: list[int] = []
    for score, n in ((both, 3), (gain, 2)):
        wanted = len(chosen) + n
        for i in sorted(range(len(after)), key=score, reverse=True):
            tokens = {_bare(token) for token in after[i].tokens}
            if len(chosen) < wanted and _wordy(after[i].tokens) and not tokens & seen:
                chosen.append(i)
                seen |= tokens
    return chosen


def _legibility(directions: Directions) -> float:
    return sum(d.input.legibility + d.output.legibility for d in directions.directions)


def _tokens(pairs: Pairs) -> list[str]:
    return [token.shown for pair in pairs for token in (pair.row, pair.col)]


def _wordy(tokens: list[str]) -> bool:
    """Whether they are words rather than letters and marks: of four letters on average."""
    return sum(len(_bare(token)) for token in tokens) >= 4 * len(tokens)


def _bare(token: str) -> str:
    return token.strip("·").casefold()


def _count_recalled(subject: tuple[str, ...], hits: Hits) -> int:
    """How often the words that were looked up are among the top tokens of what was found."""
    words = {word.strip().casefold() for word in subject}
    return sum(_bare(token) in words for hit in hits for token in hit.reading.tokens)


def _large(n: int) -> str:
    return f"{n / 1e9:.1f} billion" if n >= 1e9 else f"{n / 1e6:.0f} million"
