// The bar above the graph: what is shown, and the tools to look at it. What a tool does is the
// flow's business.

import { MEASURES } from "./graph.js";
import { button, make } from "./panel.js";

function buildChoice(label, values, chosen, action) {
  const options = values.map(([value, text]) =>
    make("option", { value, selected: value === chosen }, text),
  );
  const turn = () => action(select.value);
  const select = make("select", { "aria-label": label, onchange: turn }, ...options);
  return select;
}

export class Bar {
  constructor(flow) {
    this.flow = flow;
    this.element = make("div", { class: "lf-bar" }, this.buildName(), this.buildTools());
  }

  buildName() {
    const { graph, state } = this.flow;
    const { raw, data } = graph;
    const words = raw.candidates.map((word, i) => [i, word.shown]);
    const retarget = (i) => this.flow.retarget(Number(i));
    this.target = buildChoice("target word", words, state.target, retarget);
    this.caption = make("p", { class: "lf-said", hidden: !data.caption }, data.caption);
    const prompt = [make("span", {}, data.prompt), make("span", { class: "lf-arrow" }, " → ")];
    return make(
      "div",
      { class: "lf-name" },
      make("div", { class: "lf-prompt", title: raw.prompt }, ...prompt, this.target),
      make("div", { class: "lf-about" }, data.about),
      this.caption,
    );
  }

  buildTools() {
    const { flow } = this;
    const opens = (box) => () => this.toggle(box());
    const closed = { "aria-expanded": "false" };
    this.filters = button(
      "filters",
      "Filter",
      opens(() => flow.filters),
      closed,
    );
    this.legend = button(
      "what the colours mean",
      "Legend",
      opens(() => flow.legend),
      closed,
    );
    this.open = null;
    if (flow.graph.openable.length > 1)
      this.open = button("open or close all blocks", "", () => flow.openAll());
    return make(
      "div",
      { class: "lf-tools" },
      this.buildSearch(),
      this.filters,
      this.legend,
      this.open,
      this.buildMeasures(),
      this.buildPalettes(),
      button("save the graph and its pins as JSON", "Save", () => flow.save()),
      button("light or dark", "◐", () => flow.turnTheme()),
      make(
        "span",
        { class: "lf-zoom" },
        button("zoom out", "−", () => flow.camera.zoom(1 / 1.3)),
        button("show everything", "fit", () => flow.camera.fit(true)),
        button("zoom in", "+", () => flow.camera.zoom(1.3)),
      ),
    );
  }

  buildSearch() {
    this.search = make("input", {
      type: "search",
      placeholder: "Find a word  /",
      "aria-label": "find a word in all readings",
      spellcheck: "false",
      value: this.flow.state.query,
      oninput: () => this.flow.search(this.search.value),
      onkeydown: (event) => this.flow.searchKey(event),
    });
    this.found = make("output", { class: "lf-found-count", "aria-live": "polite" });
    return make("span", { class: "lf-search" }, this.search, this.found);
  }

  buildMeasures() {
    const { graph, state } = this.flow;
    if (!graph.weighed) return null;
    return buildChoice("what widths and colours mean", MEASURES, state.by, (name) => {
      state.by = name;
      graph.measure(name, state.target);
      this.flow.paint();
      this.flow.filter();
    });
  }

  buildPalettes() {
    const { graph, state } = this.flow;
    const names = Object.keys(graph.data.paint.palettes).map((name) => [name, name]);
    return buildChoice("palette", names, state.palette, (name) => {
      state.palette = name;
      this.flow.paint();
      this.flow.writeHash();
    });
  }

  // Opens or closes one of the boxes below, closes the others; without one closes all.
  toggle(which = null) {
    const { filters, legend } = this.flow;
    for (const [box, its] of [
      [filters, this.filters],
      [legend, this.legend],
    ]) {
      box.hidden = box !== which || !box.hidden;
      its.setAttribute("aria-expanded", String(!box.hidden));
    }
  }
}
