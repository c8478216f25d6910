// The flow graph, interactive: one page or one notebook cell.
// No dependencies, no build step, nothing is fetched. lexray.flow.draw.html joins this file and the
// modules it imports into one.
//
//   show(element, data, { hash, height, onSelect, onTarget })
//
// `data` is what lexray.flow.draw.html.page_data returns. There is no export named `render`: in a
// notebook, anywidget would take it for its own and call it in another way.

import { Bar } from "./bar.js";
import { Camera } from "./camera.js";
import { Gestures } from "./gestures.js";
import { Graph, initialState, stateFromText, stateToText } from "./graph.js";
import { buildFilters, buildLegend, make, Words } from "./panel.js";
import { draw, Picture, SIDE } from "./picture.js";
import { Pins } from "./pins.js";
import { Strip } from "./strip.js";

const READABLE = 0.75; // rows are as long as fits the window at this scale
const NARROW = 640; // on a phone blocks are closed at first: two cards each, which can be read

class Flow {
  constructor(element, data, options) {
    this.graph = new Graph(data);
    this.options = options;
    this.element = element;
    this.state = options.hash
      ? stateFromText(this.graph, location.hash.slice(1))
      : initialState(this.graph);
    const asked = options.hash && new URLSearchParams(location.hash.slice(1)).has("open");
    if (element.clientWidth < NARROW && !asked) this.state.open.clear();
    this.graph.measure(this.state.by, this.state.target);
    this.words = new Words(this.graph, this.state);
    this.lit = null;
    this.found = new Set();
    this.pins = new Pins(this);
    this.build();
    this.picture = new Picture(this.graph, this.svg, this.state);
    this.picture.setWide(this.wide());
    this.picture.arrange();
    const edge = (box) => box.getBoundingClientRect();
    const covered = () =>
      this.panel.hidden ? 0 : Math.max(0, edge(this.stage).right - edge(this.panel).left);
    this.camera = new Camera(this.picture, this.stage, covered);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.paint();
    this.dark.addEventListener("change", this.repaint);
    this.host = new MutationObserver(this.repaint);
    this.host.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
    this.listen();
    this.showCaption();
    this.paint();
    this.filter();
    this.search(this.state.query, false);
    this.camera.begin();
    this.pins.show();
    if (this.state.selected !== null) this.select(this.state.selected, true);
    this.resized = new ResizeObserver(() => {
      if (this.picture.setWide(this.wide())) this.redraw();
      this.camera.resize();
      this.strip.arcs();
    });
    this.resized.observe(this.stage);
  }

  // How wide a row may be, in the picture's units.
  wide() {
    const { clientWidth } = this.stage;
    return clientWidth ? clientWidth / READABLE - 2 * SIDE : Number.POSITIVE_INFINITY;
  }

  // ------------------------------------------------------------ the elements

  build() {
    const { raw } = this.graph;
    const { said } = this.graph;
    this.svg = draw("svg", {
      class: "lf-svg",
      role: "group",
      "aria-label": `Flow graph: ${raw.prompt}`,
    });
    this.tip = make("div", { class: "lf-tip", role: "tooltip", hidden: true });
    const about = { tabindex: "-1", "aria-label": "about the chosen node", hidden: true };
    this.panel = make("aside", { class: "lf-panel", ...about });
    this.legend = buildLegend(this.graph.data);
    this.filters = buildFilters(this.graph, this.state, () => this.filter());
    const stage = { class: "lf-stage", tabindex: "0", "aria-label": said.keys };
    this.stage = make("div", stage, this.svg);
    const over = [this.filters, this.legend, this.panel, this.tip];
    const main = make("div", { class: "lf-main" }, this.stage, ...over);
    this.strip = new Strip(this.graph, {
      choose: (at) => this.askFor(at),
      light: (wanted) => this.light(wanted),
    });
    this.notice = make("p", { class: "lf-notice", role: "status", hidden: true });
    this.bar = new Bar(this);
    const top = [this.bar.element, this.strip.element, this.notice];
    this.root = make("div", { class: "lexray-flow" }, ...top, main);
    if (this.options.height) this.root.style.height = `${this.options.height}px`;
    this.element.replaceChildren(this.root);
  }

  // ------------------------------------------------------------ painting

  // As chosen here, else as the notebook that it stands in, else as the system prefers.
  isDark() {
    if (this.state.theme !== "auto") return this.state.theme === "dark";
    const { dataset, classList } = document.body;
    if (dataset.jpThemeLight) return dataset.jpThemeLight === "false";
    if (classList.contains("vscode-dark")) return true;
    return classList.contains("vscode-light") ? false : this.dark.matches;
  }

  paint() {
    const mode = this.isDark() ? "dark" : "light";
    const colours = this.graph.data.paint.palettes[this.state.palette][mode];
    for (const [name, colour] of Object.entries(colours))
      this.root.style.setProperty(`--lf-${name}`, colour);
    this.root.style.colorScheme = mode;
    this.root.dataset.theme = mode;
    this.picture.paint(colours);
    this.strip.paint(colours);
    if (this.bar.open) this.bar.open.textContent = this.state.open.size ? "Close all" : "Open all";
  }

  // The sentence is about the graph's own target.
  showCaption() {
    const { raw, data } = this.graph;
    const own = raw.candidates[this.state.target].id === raw.target.id;
    this.bar.caption.hidden = !own || !data.caption;
  }

  turnTheme() {
    this.state.theme = this.isDark() ? "light" : "dark";
    this.paint();
    this.writeHash();
  }

  retarget(index) {
    this.state.target = index;
    this.bar.target.value = index;
    this.graph.measure(this.state.by, index);
    this.showCaption();
    this.paint();
    if (this.state.selected !== null) this.select(this.state.selected, false);
    this.options.onTarget?.(this.graph.raw.candidates[index].shown);
    this.writeHash();
  }

  // ------------------------------------------------------------ filters and search

  filter() {
    const { hidden, head, sign, least } = this.state;
    const active = hidden.size > 0 || head !== "" || sign !== "" || least > 0;
    this.gone = this.graph.hide(this.state);
    if (active || this.picture.gone) {
      this.picture.leaveOut(active ? this.gone : null);
      this.redraw();
      if (!this.camera.moved) this.camera.begin();
    }
    this.showFiltered();
    this.writeHash();
  }

  showFiltered() {
    for (const [i, group] of this.picture.everyBox())
      group.classList.toggle("lf-gone", this.gone.nodes.has(i));
    for (const [e, path] of this.picture.wires) path.classList.toggle("lf-gone", this.gone.edge(e));
  }

  search(query, write = true) {
    this.state.query = query;
    this.found = this.graph.search(query);
    this.foundAt = -1;
    this.bar.found.textContent = query.trim() ? String(this.found.size) : "";
    this.showFound();
    if (write) this.writeHash();
  }

  showFound() {
    this.svg.classList.toggle("lf-searching", this.state.query.trim() !== "");
    for (const [i, group] of this.picture.everyBox())
      group.classList.toggle("lf-found", this.found.has(i));
  }

  searchKey(event) {
    if (event.key === "Enter" && this.found.size) {
      const list = [...this.found].filter((i) => this.graph.segmentOf.has(i));
      this.foundAt = (this.foundAt + (event.shiftKey ? list.length - 1 : 1)) % list.length;
      this.select(list[this.foundAt], true);
    } else if (event.key === "Escape") {
      this.bar.search.value = "";
      this.search("");
      this.stage.focus();
    }
  }

  // ------------------------------------------------------------ opening and choosing

  redraw() {
    this.picture.arrange();
    this.paint();
    this.showFiltered();
    this.showFound();
    this.pins.show();
    this.markSelected();
    this.light(null);
    this.camera.place();
    this.writeHash();
  }

  // Quiet blocks with their words again.
  unfold(layers) {
    for (const layer of layers.split(".")) this.state.loud.add(Number(layer));
    this.redraw();
    this.camera.begin(true);
  }

  // Another position is another graph: says how to make it.
  askFor(at) {
    const { raw } = this.graph;
    const command = `lexray flow ${raw.model} ${JSON.stringify(raw.prompt)} --position ${at}`;
    this.notice.hidden = at === raw.position;
    this.notice.replaceChildren(
      `This page holds position ${raw.position}. For ${raw.tokens[at]} at position ${at}: `,
      make("code", {}, `${command} --layers ${raw.layers.join(",")} -o flow.html`),
    );
  }

  // The graph as `Flow.from_json` reads it, with the pins and the target chosen here.
  save() {
    const { raw } = this.graph;
    const graph = { ...raw, target: raw.candidates[this.state.target], pins: this.state.pins };
    const url = URL.createObjectURL(
      new Blob([JSON.stringify(graph)], { type: "application/json" }),
    );
    make("a", { href: url, download: "flow.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  toggleLayer(layer) {
    const { open } = this.state;
    const closing = open.has(layer);
    if (closing) open.delete(layer);
    else open.add(layer);
    const { top, segments } = this.picture.layout;
    const i = segments.findIndex((s) => s.kind === "block" && s.layer === layer);
    this.redraw();
    if (closing && !open.size) return this.camera.begin(true);
    const form = this.picture.form(i);
    const [x, y] = this.picture.places[i];
    const size = { width: form.width + 220, height: form.bottom - top };
    const part = { x: x - 110, y: y + top, ...size };
    return this.camera.show(part, closing ? this.camera.view.k : 1);
  }

  openAll() {
    const { open } = this.state;
    const layers = open.size ? [] : this.graph.openable;
    open.clear();
    for (const layer of layers) open.add(layer);
    this.state.loud.clear();
    this.redraw();
    this.camera.begin(true);
  }

  select(index, go) {
    const node = this.graph.nodes[index];
    this.state.selected = index;
    const segment = this.graph.data.layout.segments[this.graph.segmentOf.get(index)];
    if (go && !this.picture.boxOf(index) && segment) {
      const beside = [segment.layer - 1, segment.layer];
      for (const layer of beside) this.state.loud.add(layer);
      this.redraw();
      if (!this.picture.boxOf(index) && segment.open) {
        this.state.open.add(segment.layer);
        this.redraw();
      }
    }
    const close = { type: "button", class: "lf-close", "aria-label": "close" };
    const follow = (next) => {
      this.select(next, true);
      this.panel.focus();
    };
    this.panel.replaceChildren(
      make("button", { ...close, onclick: () => this.unselect() }, "×"),
      this.pins.tools(node),
      ...this.words.panel(node, follow),
    );
    this.panel.hidden = false;
    this.camera.known = null;
    this.panel.scrollTop = 0;
    this.gestures.hideTip();
    this.markSelected();
    this.light(this.graph.paths(index));
    if (go) this.camera.reveal(index);
    this.options.onSelect?.(node.id);
    this.writeHash();
  }

  unselect() {
    if (this.state.selected === null) return;
    this.state.selected = null;
    this.panel.hidden = true;
    this.camera.known = null;
    this.markSelected();
    this.light(null);
    this.options.onSelect?.("");
    this.writeHash();
  }

  markSelected() {
    for (const element of this.marked ?? []) element.classList.remove("lf-selected");
    this.marked = this.picture.elementsOf(this.state.selected);
    for (const element of this.marked) element.classList.add("lf-selected");
  }

  // Lights up these nodes and edges, or what is chosen, or nothing.
  light(wanted) {
    const { selected } = this.state;
    const paths = wanted ?? (selected === null ? null : this.graph.paths(selected));
    for (const element of this.lit ?? []) element.classList.remove("lf-lit");
    this.lit =
      paths &&
      [
        ...[...paths.nodes].flatMap((i) => this.picture.elementsOf(i)),
        ...[...paths.edges].map((e) => this.picture.wires.get(e)),
      ].filter(Boolean);
    for (const element of this.lit ?? []) element.classList.add("lf-lit");
    this.svg.classList.toggle("lf-lighting", Boolean(paths));
  }

  listen() {
    this.gestures = new Gestures(this);
    if (this.options.hash) {
      this.hashed = () => {
        if (location.hash.slice(1) !== this.hash) location.reload();
      };
      addEventListener("hashchange", this.hashed);
    }
  }

  writeHash() {
    if (!this.options.hash || !this.picture) return;
    this.hash = stateToText(this.graph, this.state);
    const plain = location.pathname + location.search;
    try {
      history.replaceState(null, "", this.hash ? `#${this.hash}` : plain);
    } catch {
      // frames have no address of their own
    }
  }

  destroy() {
    this.dark.removeEventListener("change", this.repaint);
    this.host.disconnect();
    this.resized.disconnect();
    if (this.hashed) removeEventListener("hashchange", this.hashed);
    this.camera.stop();
    this.element.replaceChildren();
  }
}

export function show(element, data, options = {}) {
  return new Flow(element, data, options);
}

function render({ model, el }) {
  const set = (name) => (value) => {
    model.set(name, value);
    model.save_changes();
  };
  const build = () =>
    show(el, JSON.parse(model.get("data")), {
      height: model.get("height"),
      onSelect: set("selected"),
      onTarget: set("target"),
    });
  let flow = build();
  const again = () => {
    flow.destroy();
    flow = build();
  };
  model.on("change:data", again);
  return () => {
    model.off("change:data", again);
    flow.destroy();
  };
}

export default { render };
