// The flow graph, interactive: draws the shapes that lexray.flow.layout has placed.
// No dependencies, no build step. Every text goes through textContent; nothing is fetched.
//
//   render(element, data, { hash, height, onSelect, onTarget })
//
// `data` is what lexray.flow.html.page_data returns. Colours and widths repeat lexray.flow.palette.

const SVG = "http://www.w3.org/2000/svg";
const HEAVY = 2000; // boxes and lines on screen; more are not drawn anew for every frame
const REST = 140; // milliseconds without movement after which they are
const STREAM = new Set(["embed", "residual", "sum", "mid"]);
const NAMES = {
  embed: "embedding", residual: "residual stream", norm: "after a norm", qkv: "queries, keys, values",
  query: "query", key: "key", value: "value", head: "head", concat: "heads together",
  o_neuron: "W_O neuron", attn_bias: "attention bias", attn_out: "attention output",
  sum: "sum before its norm", mid: "residual after attention", ff_key: "feed-forward key",
  ff_gate: "feed-forward gate", ff_value: "feed-forward value", ff_bias: "feed-forward bias",
  ff_out: "feed-forward output", others: "all others",
};
const EXPLAINED = {
  embed: "What enters the first block: the token's embedding.",
  residual: "The residual stream between blocks: the sum of everything so far.",
  norm: "The same vector after a layer norm.",
  qkv: "This position's own values, sent through W_O.",
  query: "What this head looks for, read as the tokens its keys respond to.",
  key: "What an earlier token offers this head to be found by.",
  value: "What this head would copy from an earlier token.",
  head: "What this head writes: its values, weighed by attention, through W_O.",
  concat: "All heads together, through W_O: the attention output without its bias.",
  o_neuron: "One row of W_O with the coefficient it had here.",
  attn_bias: "Added by attention whatever the input.", ff_bias: "Added by the feed-forward whatever the input.",
  attn_out: "What attention adds to the residual stream.",
  sum: "A residual sum before its norm.",
  mid: "The residual stream after attention has been added.",
  ff_key: "One feed-forward neuron's key: the input that makes it fire.",
  ff_gate: "One feed-forward neuron's gate: it decides how far its key counts.",
  ff_value: "One feed-forward neuron's value: what it writes when it fires.",
  ff_out: "What the feed-forward adds to the residual stream.",
  others: "Everything that was left out of this sum, added up.",
};
const EDGE_NAMES = {
  sum: "sum", norm: "norm", attention: "attention", activation: "activation", query: "query",
  residual_attn: "skip past attention", residual_ff: "skip past feed-forward", bias: "bias",
  others: "all others",
};

// ---------------------------------------------------------------- colours, as in palette.py

const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

export function mixed(a, b, share) {
  share = share === share ? Math.min(1, Math.max(0, share)) : 0;
  const other = channels(b);
  return "#" + channels(a)
    .map((x, i) => Math.floor(x + (other[i] - x) * share + 0.5).toString(16).padStart(2, "0"))
    .join("");
}

export function standing(rank, size) {
  const half = Math.log1p(size / 2);
  const below = size - 1 - rank;
  return rank <= below
    ? Math.max(0, 1 - Math.log1p(rank) / half)
    : Math.min(0, Math.log1p(Math.max(below, 0)) / half - 1);
}

// ---------------------------------------------------------------- small helpers

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

export function shownShare(p) {
  if (!(p >= 0.001)) return "";
  const percent = 100 * p;
  return percent < 9.95 ? `${percent.toFixed(1)} %` : `${percent.toFixed(0)} %`;
}

function percent(p) {
  if (typeof p !== "number") return String(p);
  if (p >= 0.0995) return `${(100 * p).toFixed(0)} %`;
  if (p >= 0.001) return `${(100 * p).toFixed(1)} %`;
  if (p === 0) return "0 %";
  return p >= 1e-6 ? `${(100 * p).toPrecision(1)} %` : `${(100 * p).toExponential(0)} %`;
}

function number(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

const grouped = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
const folded = (text) => text.toLowerCase().replace(/^[·\s]+/, "");
const short = (value) => String(Math.round(value * 10) / 10);

export function freePath(x1, y1, x2, y2) {
  const middle = short((x1 + x2) / 2);
  return `M${short(x1)} ${short(y1)}C${middle} ${short(y1)} ${middle} ${short(y2)} ${short(x2)} ${short(y2)}`;
}

// ---------------------------------------------------------------- the graph and what is asked of it

class Graph {
  constructor(data) {
    this.data = data;
    this.raw = data.graph;
    this.nodes = data.graph.nodes;
    this.edges = data.graph.edges;
    this.words = data.graph.vocabulary;
    this.index = new Map(this.nodes.map((node, i) => [node.id, i]));
    this.into = this.nodes.map(() => []);
    this.outOf = this.nodes.map(() => []);
    this.edges.forEach((edge, i) => {
      this.outOf[this.index.get(edge.source)].push(i);
      this.into[this.index.get(edge.target)].push(i);
    });
    this.difference = Boolean(data.graph.other);
    this.most = {};
    for (const edge of this.edges) {
      const size = this.strength(edge);
      if (Number.isFinite(size)) this.most[edge.kind] = Math.max(this.most[edge.kind] ?? 0, size);
    }
    this.segmentOf = new Map();
    data.layout.segments.forEach((segment, i) => {
      for (const form of [segment.open, segment.closed])
        for (const box of form?.boxes ?? []) this.segmentOf.set(box[0], i);
    });
  }

  word(id) { return this.words[id] ?? `#${id}`; }

  strength(edge) {
    if (!this.difference || edge.other_score === undefined) return edge.score;
    return Math.abs(edge.sign * edge.score - edge.other_score);
  }

  share(edge) {
    const size = this.strength(edge);
    return this.most[edge.kind] && Number.isFinite(size) ? size / this.most[edge.kind] : 0;
  }

  fill(node, colours, target, contrast) {
    if (node.kind === "attn_bias" || node.kind === "ff_bias") return colours.bias;
    const at = (seen) => (seen ? standing(seen.places[target][0], this.raw.d_vocab) : 0);
    let share = at(node.reading);
    if (this.difference) share -= at(node.other);
    const pole = share >= 0 ? colours.good : colours.bad;
    return mixed(colours.neutral, pole, Math.min(1, Math.abs(share)) ** contrast);
  }

  wire(edge, colours, paint) {
    return {
      colour: this.wireColour(edge, colours),
      width: Math.max(paint.thinnest, paint.widest[edge.kind] * this.share(edge)),
      opacity: paint.opacity[edge.kind],
    };
  }

  wireColour(edge, colours) {
    if (this.difference && edge.other_score !== undefined)
      return edge.sign * edge.score >= edge.other_score ? colours.positive : colours.negative;
    if (edge.kind === "sum") {
      const flat = Math.log(Math.max(2, this.raw.d_vocab));
      const share = edge.entropy === undefined ? 0.35 : 1 - edge.entropy / flat;
      return mixed(colours.sum_low, colours.sum_high, share);
    }
    if (edge.kind === "attention")
      return mixed(colours.attention_low, colours.attention_high, edge.score);
    if (edge.kind === "activation") return edge.sign >= 0 ? colours.positive : colours.negative;
    return colours[edge.kind];
  }

  // All nodes and edges before and after one, as far as the residual stream.
  paths(start) {
    const nodes = new Set([start]);
    const edges = new Set();
    for (const [lists, end] of [[this.into, "source"], [this.outOf, "target"]]) {
      const queue = [start];
      const seen = new Set(queue);
      while (queue.length) {
        const at = queue.pop();
        if (at !== start && STREAM.has(this.nodes[at].kind)) continue;
        for (const e of lists[at]) {
          edges.add(e);
          const next = this.index.get(this.edges[e][end]);
          nodes.add(next);
          if (!seen.has(next)) { seen.add(next); queue.push(next); }
        }
      }
    }
    return { nodes, edges };
  }

  found(query) {
    const wanted = folded(query);
    const exact = query.trim() !== "" && wanted === "" ? query.trim() : null;
    if (!wanted && !exact) return new Set();
    const has = (seen) => (seen?.top ?? []).some(([id]) => {
      const word = this.word(id);
      return exact ? word === exact : folded(word).includes(wanted);
    });
    const found = new Set();
    this.nodes.forEach((node, i) => { if (has(node.reading) || has(node.other)) found.add(i); });
    return found;
  }
}

// ---------------------------------------------------------------- the picture

class Picture {
  constructor(graph, svg, state) {
    this.graph = graph;
    this.svg = svg;
    this.state = state;
    this.layout = graph.data.layout;
    this.text = graph.data.text;
    this.bold = new Set(this.text.bold);
    this.world = draw("g", { class: "lf-world" });
    this.band = draw("rect", { class: "lf-stream", rx: this.layout.band / 2 });
    this.free = draw("g");
    this.groups = this.layout.segments.map(() => draw("g", { class: "lf-segment" }));
    this.world.append(this.band, this.free, ...this.groups);
    svg.setAttribute("font-family", this.text.font);
    svg.append(this.world);
    this.boxes = new Map();
    this.wires = new Map();
    this.drawn = this.groups.map(() => null);
    this.scale = null;
  }

  form(i) {
    const segment = this.layout.segments[i];
    return segment.open && this.state.open.has(segment.layer) ? segment.open : segment.closed;
  }

  // Draws what has changed its form and puts everything in its place.
  arrange() {
    this.offsets = [];
    let x = 0;
    let bottom = 0;
    this.groups.forEach((group, i) => {
      const form = this.form(i);
      this.offsets.push(x);
      group.setAttribute("transform", `translate(${short(x)} 0)`);
      if (this.drawn[i] !== form) this.fill(group, i, form);
      x += form.width;
      bottom = Math.max(bottom, form.bottom);
    });
    this.bounds = { x: -58, y: this.layout.top, width: x + 116, height: bottom - this.layout.top + 12 };
    for (const [name, value] of Object.entries({
      x: 0, y: -this.layout.band / 2, width: short(x), height: this.layout.band,
    })) this.band.setAttribute(name, value);
    this.drawFree();
  }

  fill(group, i, form) {
    for (const element of group.querySelectorAll("[data-node]")) this.boxes.delete(Number(element.dataset.node));
    for (const element of group.querySelectorAll("[data-edge]")) this.wires.delete(Number(element.dataset.edge));
    const parts = [];
    for (const [x, y, width, height, part] of form.panels)
      parts.push(draw("rect", { class: `lf-ground lf-ground-${part}`, x, y, width, height, rx: 14 }));
    for (const [edge, path] of form.wires) parts.push(this.wireElement(edge, path));
    for (const box of form.boxes) parts.push(this.boxElement(box));
    for (const label of form.labels)
      parts.push(label[2] === "title" ? this.titleElement(label, i) : this.label(label));
    group.replaceChildren(...parts);
    this.drawn[i] = form;
  }

  wireElement(edge, path) {
    const dashed = this.graph.edges[edge].kind === "others" ? { "stroke-dasharray": "4 3" } : {};
    const element = draw("path", { class: "lf-wire", d: path, "data-edge": edge, ...dashed });
    this.wires.set(edge, element);
    return element;
  }

  boxElement([index, x, y, width, height, labels]) {
    const node = this.graph.nodes[index];
    const group = draw("g", {
      class: `lf-box lf-${height > 30 ? "card" : "pill"}`, "data-node": index, tabindex: 0, role: "button",
    });
    const rect = draw("rect", { x, y, width, height, rx: Math.min(9, height / 2) });
    if (node.kind === "others") rect.setAttribute("stroke-dasharray", "4 3");
    group.append(rect, ...labels.map((label) => this.label(label)));
    this.boxes.set(index, group);
    return group;
  }

  titleElement(label, i) {
    const segment = this.layout.segments[i];
    if (!segment.open) return this.label(label);
    const open = this.drawnOpen(i);
    const group = draw("g", {
      class: "lf-title", "data-layer": segment.layer, tabindex: 0, role: "button",
      "aria-expanded": String(open), "aria-label": `layer ${segment.layer}, ${open ? "open: close it" : "closed: open it"}`,
    });
    const wide = open ? 124 : 60;
    group.append(
      draw("rect", { x: label[0] - wide / 2, y: label[1] - 19, width: wide, height: 27, rx: 13.5 }),
      this.label(label),
      draw("path", {
        class: "lf-chevron",
        d: open ? `M${label[0] - 46} ${label[1] - 8}l4 4l4 -4` : `M${label[0] + 16} ${label[1] - 9}l4 4l-4 4`,
      }),
    );
    return group;
  }

  drawnOpen(i) { return this.form(i) === this.layout.segments[i].open; }

  label([x, y, role, text, anchor]) {
    const attributes = { class: `lf-${role}`, x, y, "font-size": this.text.sizes[role] };
    if (this.bold.has(role)) attributes["font-weight"] = 600;
    if (role in this.text.quiet) attributes["fill-opacity"] = this.text.quiet[role];
    if (anchor !== "start") attributes["text-anchor"] = anchor;
    return draw("text", attributes, text);
  }

  // Edges between segments, which follow their nodes wherever these go.
  drawFree() {
    const where = new Map();
    this.groups.forEach((_, i) => {
      for (const [node, x, y, width, height] of this.form(i).boxes)
        where.set(node, { left: this.offsets[i] + x, right: this.offsets[i] + x + width, middle: y + height / 2 });
    });
    const parts = [];
    for (const e of this.layout.free) {
      const edge = this.graph.edges[e];
      const a = where.get(this.graph.index.get(edge.source));
      const b = where.get(this.graph.index.get(edge.target));
      this.wires.delete(e);
      if (a && b) parts.push(this.wireElement(e, freePath(a.right, a.middle, b.left, b.middle)));
    }
    this.free.replaceChildren(...parts);
  }

  paint(colours) {
    const { paint } = this.graph.data;
    const target = this.state.target;
    for (const [index, group] of this.boxes) {
      const node = this.graph.nodes[index];
      const fill = this.graph.fill(node, colours, target, paint.contrast);
      const rect = group.firstChild;
      rect.setAttribute("fill", fill);
      rect.setAttribute("stroke", mixed(fill, colours.ink, 0.16));
      const share = group.querySelector(".lf-share");
      if (share) share.textContent = node.reading ? shownShare(node.reading.places[target][1]) : "";
      group.setAttribute("aria-label", this.said(node));
    }
    for (const [index, path] of this.wires) {
      const style = this.graph.wire(this.graph.edges[index], colours, paint);
      path.setAttribute("stroke", style.colour);
      path.setAttribute("stroke-width", style.width.toFixed(2));
      path.setAttribute("stroke-opacity", style.opacity);
      path.classList.toggle("lf-thin", style.width < 2);
    }
  }

  said(node) {
    const top = (node.reading ?? node.other)?.top.slice(0, 5).map(([id]) => this.graph.word(id)) ?? [];
    const place = node.reading?.places[this.state.target];
    const word = this.graph.raw.candidates[this.state.target].shown;
    const rank = place ? `; ${word} at rank ${place[0] + 1}` : "";
    return `${NAMES[node.kind]}, ${node.id}: ${top.join(", ")}${rank}`;
  }

  // Draws for a view. Only what is on screen or near it is drawn, and text where it can be read.
  move({ x, y, k }, width) {
    this.shown = { x, y, k };
    this.svg.style.transform = this.svg.style.willChange = "";
    this.world.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${k.toFixed(5)})`);
    const within = (i, margin) =>
      this.offsets[i] <= (width + margin - x) / k + 60 && this.offsets[i] + this.form(i).width >= (-margin - x) / k - 60;
    let size = 0;
    this.groups.forEach((group, i) => { if (within(i, 0)) size += this.form(i).boxes.length + this.form(i).wires.length; });
    this.heavy = size > HEAVY;
    this.groups.forEach((group, i) => {
      const out = !within(i, this.heavy ? width : 0);
      if (group.lfOut !== out) {
        group.lfOut = out;
        group.style.display = out ? "none" : "";
      }
    });
    const detail = k < 0.2 ? "lf-tiny" : k < 0.34 ? "lf-small" : "";
    if (this.detail !== detail) {
      this.svg.classList.remove("lf-tiny", "lf-small");
      if (detail) this.svg.classList.add(detail);
      this.detail = detail;
    }
  }

  // Large pictures in motion: what is drawn already is moved as an image, and drawn again at rest.
  slide({ x, y, k }) {
    const ratio = k / this.shown.k;
    this.svg.style.willChange = "transform";
    this.svg.style.transform =
      `translate(${x - this.shown.x * ratio}px, ${y - this.shown.y * ratio}px) scale(${ratio})`;
  }

  // Where a node or a segment is, in the picture's coordinates.
  boxOf(node) {
    const i = this.graph.segmentOf.get(node);
    const box = i === undefined ? null : this.form(i).boxes.find((b) => b[0] === node);
    return box && { x: this.offsets[i] + box[1], y: box[2], width: box[3], height: box[4] };
  }
}

// ---------------------------------------------------------------- what is said about nodes and edges

class Words {
  constructor(graph, state) {
    this.graph = graph;
    this.state = state;
  }

  // Tokens with bars as long as their probability (or score) is large.
  list(words, title, shown = percent) {
    const most = Math.max(...words.map(([, weight]) => Math.abs(weight)), 1e-30);
    const target = this.graph.raw.candidates[this.state.target].id;
    const rows = words.map(([id, weight]) => {
      const bar = make("span", { class: "lf-bar-fill" });
      bar.style.width = `${(100 * Math.abs(weight)) / most}%`;
      return make("li", { class: id === target ? "lf-is-target" : null, title: `token ${id}` },
        bar, make("span", { class: "lf-bar-word" }, this.graph.word(id)),
        make("span", { class: "lf-bar-number" }, shown(weight)));
    });
    return make("div", { class: "lf-list" }, make("h4", {}, title), make("ol", {}, ...rows));
  }

  place(seen) {
    if (!seen) return "";
    const [rank, p] = seen.places[this.state.target];
    return `rank ${grouped(rank + 1)} of ${grouped(this.graph.raw.d_vocab)}, ${percent(p)}`;
  }

  facts(node, all) {
    const target = this.graph.raw.candidates[this.state.target].shown;
    const rows = [];
    if (node.reading) rows.push([target, this.place(node.reading)]);
    if (node.other) rows.push([`${target}, other run`, this.place(node.other)]);
    if (node.norm !== undefined) rows.push(["norm", number(node.norm)]);
    if (node.other_norm !== undefined) rows.push(["norm, other run", number(node.other_norm)]);
    if (node.reading) rows.push(["entropy", `${number(node.reading.entropy)} nats`]);
    const score = this.score(node);
    if (score) rows.push(score);
    if (node.count !== undefined) rows.push(["stands for", `${grouped(node.count)} vectors`]);
    if (all) {
      rows.push(["layer", String(node.layer)]);
      if (node.head !== undefined) rows.push(["head", String(node.head)]);
      if (node.position !== undefined)
        rows.push(["token", `${this.graph.raw.tokens[node.position] ?? ""} at position ${node.position}`]);
      if (node.address !== undefined) rows.push(["parameter", node.address]);
    }
    return make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  }

  // The coefficient with which a node took part: the strongest multiplication edge at it.
  score(node) {
    const i = this.graph.index.get(node.id);
    const near = [...this.graph.into[i], ...this.graph.outOf[i]].map((e) => this.graph.edges[e]);
    for (const kind of ["activation", "attention"]) {
      const own = near.filter((edge) => edge.kind === kind && (kind === "attention" || edge.target === node.id || edge.source === node.id));
      if (own.length === 1 || (own.length && ["key", "value", "ff_value", "ff_key", "ff_gate", "o_neuron"].includes(node.kind))) {
        const edge = own[own.length - 1];
        return [kind, number(edge.sign * edge.score)];
      }
    }
    return null;
  }

  heading(node) {
    return make("header", {}, make("strong", {}, node.address ?? node.id), make("span", {}, NAMES[node.kind]));
  }

  tip(node) {
    const seen = node.reading ?? node.other;
    return [this.heading(node), this.facts(node, false), seen ? this.list(seen.top, "reads as") : null].filter(Boolean);
  }

  edgeTip(edge) {
    const rows = [["score", number(edge.sign * edge.score)]];
    if (edge.other_score !== undefined) rows.push(["other run", number(edge.other_score)]);
    if (edge.value !== undefined) rows.push(["norm carried", number(edge.value)]);
    if (edge.entropy !== undefined) rows.push(["entropy", `${number(edge.entropy)} nats`]);
    rows.push(["of the strongest", `${(100 * this.graph.share(edge)).toFixed(0)} %`]);
    return [
      make("header", {}, make("strong", {}, EDGE_NAMES[edge.kind]), make("span", {}, `${edge.source} → ${edge.target}`)),
      make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    ];
  }

  panel(node, choose) {
    const parts = [this.heading(node), make("p", { class: "lf-explained" }, EXPLAINED[node.kind]), this.facts(node, true)];
    const column = (title, seen, shown) => seen && make("section", {}, make("h3", {}, title),
      this.list(seen.top, "top", shown), this.list(seen.bottom, "bottom", shown));
    parts.push(make("div", { class: "lf-readings" },
      column(node.other ? "this run" : "in this run", node.reading, percent),
      column("other run", node.other, percent),
      column("the parameter itself", node.static, number)));
    if (node.reading) parts.push(this.candidates(node));
    const i = this.graph.index.get(node.id);
    parts.push(this.links("flows in", this.graph.into[i], "source", choose), this.links("flows out", this.graph.outOf[i], "target", choose));
    return parts.filter(Boolean);
  }

  candidates(node) {
    const rows = this.graph.raw.candidates.map((word, i) => {
      const [rank, p] = node.reading.places[i];
      return make("tr", { class: i === this.state.target ? "lf-is-target" : null },
        make("td", {}, word.shown), make("td", {}, grouped(rank + 1)), make("td", {}, percent(p)));
    });
    const head = make("tr", {}, make("th", {}, "word"), make("th", {}, "rank"), make("th", {}, "probability"));
    return make("section", {}, make("h3", {}, "words of interest"), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  links(title, edges, end, choose) {
    if (!edges.length) return null;
    const sorted = edges.map((e) => this.graph.edges[e]).sort((a, b) => this.graph.share(b) - this.graph.share(a));
    const rows = sorted.slice(0, 40).map((edge) => {
      const i = this.graph.index.get(edge[end]);
      const node = this.graph.nodes[i];
      const seen = node.reading ?? node.other;
      const word = seen?.top.length ? this.graph.word(seen.top[0][0]) : "";
      return make("li", {}, make("button", { type: "button", class: "lf-link", onclick: () => choose(i) },
        make("span", {}, node.id), make("b", {}, word), make("span", {}, number(edge.sign * edge.score))));
    });
    return make("section", { class: "lf-links" }, make("h3", {}, `${title} (${edges.length})`), make("ul", {}, ...rows));
  }
}

// ---------------------------------------------------------------- the whole thing

class Flow {
  constructor(element, data, options) {
    this.graph = new Graph(data);
    this.options = options;
    this.element = element;
    const target = data.graph.candidates.findIndex((word) => word.id === data.graph.target.id);
    this.state = {
      open: new Set(data.layout.open), target, theme: "auto", palette: "paper", query: "", selected: null,
      hidden: new Set(), head: "", sign: "", least: 0,
    };
    if (options.hash) this.readHash();
    this.words = new Words(this.graph, this.state);
    this.view = { x: 0, y: 0, k: 1 };
    this.lit = null;
    this.build();
    this.picture = new Picture(this.graph, this.svg, this.state);
    this.picture.arrange();
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.paint();
    this.dark.addEventListener("change", this.repaint);
    this.listen();
    this.paint();
    this.filter();
    this.search(this.state.query, false);
    this.fit();
    if (this.state.selected !== null) this.select(this.state.selected, true);
    this.resized = new ResizeObserver(() => { this.known = null; if (!this.moved) this.fit(); else this.place(); });
    this.resized.observe(this.stage);
  }

  build() {
    const { raw } = this.graph;
    const button = (label, text, action, more = {}) =>
      make("button", { type: "button", title: label, "aria-label": label, onclick: action, ...more }, text);
    this.targetBox = make("select", { "aria-label": "target word", onchange: () => this.retarget(Number(this.targetBox.value)) },
      ...raw.candidates.map((word, i) => make("option", { value: i, selected: i === this.state.target }, word.shown)));
    this.searchBox = make("input", {
      type: "search", placeholder: "Find a word  /", "aria-label": "find a word in all readings", spellcheck: "false",
      value: this.state.query, oninput: () => this.search(this.searchBox.value), onkeydown: (event) => this.searchKey(event),
    });
    this.foundText = make("output", { class: "lf-found-count", "aria-live": "polite" });
    this.paletteBox = make("select", { "aria-label": "palette", onchange: () => { this.state.palette = this.paletteBox.value; this.paint(); this.writeHash(); } },
      ...Object.keys(this.graph.data.paint.palettes).map((name) => make("option", { value: name, selected: name === this.state.palette }, name)));
    this.filterButton = button("filters", "Filter", () => this.toggle(this.filters, this.filterButton), { "aria-expanded": "false" });
    this.legendButton = button("what the colours mean", "Legend", () => this.toggle(this.legend, this.legendButton), { "aria-expanded": "false" });
    this.themeButton = button("light or dark", "◐", () => this.turnTheme());
    const openable = this.graph.data.layout.segments.filter((segment) => segment.open).map((segment) => segment.layer);
    this.openButton = openable.length > 1 ? button("open or close all blocks", "", () => this.openAll(openable)) : null;
    const about = `${raw.model}, position ${raw.position}` + (raw.other ? `, compared to ${raw.other.model}: ${raw.other.prompt}` : "");
    const bar = make("div", { class: "lf-bar" },
      make("div", { class: "lf-name" },
        make("div", { class: "lf-prompt", title: raw.prompt }, make("span", {}, this.graph.data.prompt), make("span", { class: "lf-arrow" }, " → "), this.targetBox),
        make("div", { class: "lf-about" }, about)),
      make("div", { class: "lf-tools" },
        make("span", { class: "lf-search" }, this.searchBox, this.foundText),
        this.filterButton, this.legendButton, this.openButton, this.paletteBox, this.themeButton,
        make("span", { class: "lf-zoom" },
          button("zoom out", "−", () => this.zoom(1 / 1.3)), button("show everything", "fit", () => this.fit(true)), button("zoom in", "+", () => this.zoom(1.3)))));
    this.svg = draw("svg", { class: "lf-svg", role: "group", "aria-label": `Flow graph: ${raw.prompt}` });
    this.tip = make("div", { class: "lf-tip", role: "tooltip", hidden: true });
    this.panel = make("aside", { class: "lf-panel", tabindex: "-1", "aria-label": "about the chosen node", hidden: true });
    this.legend = this.buildLegend();
    this.filters = this.buildFilters();
    this.stage = make("div", { class: "lf-stage", tabindex: "0", "aria-label": "picture: arrows move, plus and minus zoom, 0 shows everything" }, this.svg);
    this.root = make("div", { class: "lexray-flow" }, bar, make("div", { class: "lf-main" }, this.stage, this.filters, this.legend, this.panel, this.tip));
    if (this.options.height) this.root.style.height = `${this.options.height}px`;
    this.element.replaceChildren(this.root);
  }

  buildLegend() {
    const rows = this.graph.data.legend.map(({ text, colours, node }) => {
      const keys = colours.map((name) => {
        const key = make("i", { class: node ? "lf-key-node" : "lf-key-edge" });
        key.style.background = `var(--lf-${name})`;
        return key;
      });
      return make("li", {}, make("span", { class: "lf-keys" }, ...keys), make("span", {}, text));
    });
    const hints = [
      "Read from left to right. The band along the top is the residual stream; below it hangs what each block adds.",
      "Wider lines carry more. Widths compare only within one kind of line.",
      "Point at a box for its words and paths, click to keep them. Click a layer's number to open or close it.",
      "Keys: arrows move, + − zoom, 0 shows everything, / finds a word, Tab goes from box to box, Enter opens, Esc closes.",
    ];
    return make("div", { class: "lf-pop lf-legend", hidden: true },
      make("h3", {}, "How to read this"), make("p", {}, hints[0]), make("ul", {}, ...rows), ...hints.slice(1).map((hint) => make("p", {}, hint)));
  }

  buildFilters() {
    const kinds = [...new Set(this.graph.nodes.map((node) => node.kind))].filter((kind) => !STREAM.has(kind));
    const heads = [...new Set(this.graph.nodes.map((node) => node.head).filter((head) => head !== undefined))].sort((a, b) => a - b);
    const boxes = kinds.map((kind) => {
      const box = make("input", { type: "checkbox", value: kind, checked: !this.state.hidden.has(kind), onchange: () => {
        if (box.checked) this.state.hidden.delete(kind); else this.state.hidden.add(kind);
        this.filter();
      } });
      return make("label", {}, box, NAMES[kind]);
    });
    const choice = (label, key, values) => {
      const select = make("select", { "aria-label": label, "data-filter": key, onchange: () => { this.state[key] = select.value; this.filter(); } },
        ...values.map(([value, text]) => make("option", { value, selected: String(this.state[key]) === String(value) }, text)));
      return make("label", { class: "lf-row" }, label, select);
    };
    const shown = make("output", {}, `${Math.round(100 * this.state.least)} %`);
    const least = make("input", { type: "range", min: 0, max: 100, value: 100 * this.state.least, "aria-label": "least score", oninput: () => {
      this.state.least = Number(least.value) / 100;
      shown.textContent = `${least.value} %`;
      this.filter();
    } });
    return make("div", { class: "lf-pop lf-filters", hidden: true },
      make("h3", {}, "Show"), make("div", { class: "lf-kinds" }, ...boxes),
      heads.length ? choice("head", "head", [["", "all"], ...heads.map((head) => [head, String(head)])]) : null,
      choice("sign", "sign", [["", "both"], ["1", "positive"], ["-1", "negative"]]),
      make("label", { class: "lf-row" }, "at least", least, shown),
      make("p", {}, "of the strongest line of its kind"));
  }

  toggle(box, button) {
    for (const [other, its] of [[this.filters, this.filterButton], [this.legend, this.legendButton]])
      if (other !== box) { other.hidden = true; its.setAttribute("aria-expanded", "false"); }
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  }

  // ------------------------------------------------------------ painting

  isDark() { return this.state.theme === "auto" ? this.dark.matches : this.state.theme === "dark"; }

  paint() {
    const mode = this.isDark() ? "dark" : "light";
    const colours = this.graph.data.paint.palettes[this.state.palette][mode];
    for (const [name, colour] of Object.entries(colours)) this.root.style.setProperty(`--lf-${name}`, colour);
    this.root.style.colorScheme = mode;
    this.root.dataset.theme = mode;
    this.picture.paint(colours);
    if (this.openButton) this.openButton.textContent = this.state.open.size ? "Close all" : "Open all";
  }

  turnTheme() {
    this.state.theme = this.isDark() ? "light" : "dark";
    this.paint();
    this.writeHash();
  }

  retarget(index) {
    this.state.target = index;
    this.targetBox.value = index;
    this.paint();
    if (this.state.selected !== null) this.select(this.state.selected, false);
    this.options.onTarget?.(this.graph.raw.candidates[index].shown);
    this.writeHash();
  }

  // ------------------------------------------------------------ filters and search

  filter() {
    const { hidden, head, sign, least } = this.state;
    const nodes = new Set();
    this.graph.nodes.forEach((node, i) => {
      if (hidden.has(node.kind) || (head !== "" && node.head !== undefined && String(node.head) !== head)) nodes.add(i);
    });
    const passes = (edge) =>
      (sign === "" || edge.kind !== "activation" || String(edge.sign) === sign) && this.graph.share(edge) >= least;
    const gone = this.graph.edges.map((edge) => !passes(edge));
    if (sign !== "" || least > 0)
      this.graph.nodes.forEach((node, i) => {
        const near = [...this.graph.into[i], ...this.graph.outOf[i]];
        const by = ["attention", "activation", "query"].flatMap((kind) => near.filter((e) => this.graph.edges[e].kind === kind));
        const deciding = by.length ? by : near;
        if (!STREAM.has(node.kind) && deciding.length && deciding.every((e) => gone[e])) nodes.add(i);
      });
    this.gone = { nodes, edge: (e) => {
      const edge = this.graph.edges[e];
      return gone[e] || nodes.has(this.graph.index.get(edge.source)) || nodes.has(this.graph.index.get(edge.target));
    } };
    this.showFiltered();
    this.writeHash();
  }

  showFiltered() {
    for (const [i, group] of this.picture.boxes) group.classList.toggle("lf-gone", this.gone.nodes.has(i));
    for (const [e, path] of this.picture.wires) path.classList.toggle("lf-gone", this.gone.edge(e));
  }

  search(query, write = true) {
    this.state.query = query;
    this.found = this.graph.found(query);
    this.foundAt = -1;
    this.foundText.textContent = query.trim() ? String(this.found.size) : "";
    this.showFound();
    if (write) this.writeHash();
  }

  showFound() {
    this.svg.classList.toggle("lf-searching", this.state.query.trim() !== "");
    for (const [i, group] of this.picture.boxes) group.classList.toggle("lf-found", this.found.has(i));
  }

  searchKey(event) {
    if (event.key === "Enter" && this.found.size) {
      const list = [...this.found].filter((i) => this.graph.segmentOf.has(i));
      this.foundAt = (this.foundAt + (event.shiftKey ? list.length - 1 : 1)) % list.length;
      this.select(list[this.foundAt], true);
    } else if (event.key === "Escape") {
      this.searchBox.value = "";
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
    this.markSelected();
    this.light(null);
    this.place();
    this.writeHash();
  }

  toggleLayer(layer) {
    const { open } = this.state;
    const closing = open.has(layer);
    if (closing) open.delete(layer); else open.add(layer);
    const i = this.picture.layout.segments.findIndex((segment) => segment.kind === "block" && segment.layer === layer);
    this.redraw();
    if (closing && !open.size) return this.fit(true);
    const form = this.picture.form(i);
    this.show({ x: this.picture.offsets[i] - 110, y: this.picture.layout.top, width: form.width + 220, height: form.bottom - this.picture.layout.top }, closing ? this.view.k : 1);
  }

  openAll(layers) {
    this.state.open = this.picture.state.open = new Set(this.state.open.size ? [] : layers);
    this.redraw();
    this.fit(true);
  }

  select(index, go) {
    const node = this.graph.nodes[index];
    this.state.selected = index;
    const segment = this.graph.data.layout.segments[this.graph.segmentOf.get(index)];
    if (go && !this.picture.boxOf(index) && segment?.open) {
      this.state.open.add(segment.layer);
      this.redraw();
    }
    const close = make("button", { type: "button", class: "lf-close", "aria-label": "close", onclick: () => this.unselect() }, "×");
    this.panel.replaceChildren(close, ...this.words.panel(node, (next) => {
      this.select(next, true);
      this.panel.focus();
    }));
    this.panel.hidden = false;
    this.panel.scrollTop = 0;
    this.hideTip();
    this.markSelected();
    this.light(this.graph.paths(index));
    if (go) this.reveal(index);
    this.options.onSelect?.(node.id);
    this.writeHash();
  }

  unselect() {
    if (this.state.selected === null) return;
    this.state.selected = null;
    this.panel.hidden = true;
    this.markSelected();
    this.light(null);
    this.options.onSelect?.("");
    this.writeHash();
  }

  markSelected() {
    this.marked?.classList.remove("lf-selected");
    this.marked = this.picture.boxes.get(this.state.selected) ?? null;
    this.marked?.classList.add("lf-selected");
  }

  // Lights up these nodes and edges, or what is chosen, or nothing.
  light(paths) {
    paths ??= this.state.selected === null ? null : this.graph.paths(this.state.selected);
    for (const element of this.lit ?? []) element.classList.remove("lf-lit");
    this.lit = paths && [
      ...[...paths.nodes].map((i) => this.picture.boxes.get(i)),
      ...[...paths.edges].map((e) => this.picture.wires.get(e)),
    ].filter(Boolean);
    for (const element of this.lit ?? []) element.classList.add("lf-lit");
    this.svg.classList.toggle("lf-lighting", Boolean(paths));
  }

  // ------------------------------------------------------------ moving about

  size() {
    this.known ??= { width: this.stage.clientWidth || 1, height: this.stage.clientHeight || 1 };
    return this.known;
  }

  place() {
    clearTimeout(this.resting);
    this.picture.move(this.view, this.size().width);
  }

  placeMoving() {
    if (!this.picture.heavy) return this.place();
    clearTimeout(this.resting);
    this.picture.slide(this.view);
    this.resting = setTimeout(() => this.place(), REST);
  }

  fit(smooth = false) {
    const { bounds } = this.picture;
    const { width, height } = this.size();
    const k = Math.min(width / bounds.width, height / bounds.height, 1.25);
    const spare = (height - bounds.height * k) / 2;
    this.moved = false;
    this.go({ k, x: (width - bounds.width * k) / 2 - bounds.x * k, y: 0.8 * spare - bounds.y * k }, smooth);
  }

  // Brings a part of the picture into view, at most `most` times its size.
  show(part, most) {
    const { width, height } = this.size();
    const k = Math.max(0.02, Math.min(width / part.width, height / part.height, most));
    const spare = Math.max(0, 0.8 * (height - part.height * k) / 2);
    this.moved = true;
    this.go({ k, x: width / 2 - (part.x + part.width / 2) * k, y: spare - part.y * k }, true);
  }

  reveal(index) {
    const box = this.picture.boxOf(index);
    if (!box) return;
    const { width, height } = this.size();
    const free = width - (this.panel.hidden ? 0 : this.panel.offsetWidth);
    const k = Math.max(this.view.k, Math.min(0.7, free / 700));
    const x = this.view.x + box.x * this.view.k;
    const y = this.view.y + box.y * this.view.k;
    const inside = x > 10 && y > 10 && x + box.width * this.view.k < free - 10 && y + box.height * this.view.k < height - 10;
    if (inside && k === this.view.k) return;
    this.moved = true;
    this.go({ k, x: free / 2 - (box.x + box.width / 2) * k, y: height / 2 - (box.y + box.height / 2) * k }, true);
  }

  go(view, smooth) {
    cancelAnimationFrame(this.frame);
    if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.view = view;
      return this.moved ? this.placeMoving() : this.place();
    }
    const from = this.view;
    const began = performance.now();
    const step = (now) => {
      const t = Math.min(1, Math.max(0, (now - began) / 260));
      const e = 1 - (1 - t) ** 3;
      const k = from.k * (view.k / from.k) ** e;
      const share = from.k === view.k ? e : (k - from.k) / (view.k - from.k);
      this.view = { k, x: from.x + (view.x - from.x) * share, y: from.y + (view.y - from.y) * share };
      this.placeMoving();
      if (t < 1) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  zoom(factor, at = null, smooth = true) {
    const { width, height } = this.size();
    const [cx, cy] = at ?? [width / 2, height / 2];
    const k = Math.min(6, Math.max(0.02, this.view.k * factor));
    const ratio = k / this.view.k;
    this.moved = true;
    this.go({ k, x: cx - (cx - this.view.x) * ratio, y: cy - (cy - this.view.y) * ratio }, smooth);
  }

  pan(dx, dy) {
    this.moved = true;
    cancelAnimationFrame(this.frame);
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
    this.placeMoving();
  }

  // ------------------------------------------------------------ pointer and keys

  listen() {
    this.pointers = new Map();
    const { stage, svg } = this;
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this.pointerDown(event));
    stage.addEventListener("pointermove", (event) => this.pointerMove(event));
    for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, (event) => this.pointerUp(event));
    stage.addEventListener("pointerleave", () => this.hover(null));
    stage.addEventListener("dblclick", (event) => { if (!this.over(event)) this.zoom(1.6, this.at(event)); });
    svg.addEventListener("focusin", (event) => {
      const group = event.target.closest("[data-node]");
      if (group && group.matches(":focus-visible")) {
        const index = Number(group.dataset.node);
        this.reveal(index);
        this.light(this.graph.paths(index));
      }
    });
    svg.addEventListener("focusout", () => this.light(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.clicked = (event) => {
      if (event.composedPath().some((at) => at === this.filters || at === this.legend || at === this.filterButton || at === this.legendButton)) return;
      for (const [box, its] of [[this.filters, this.filterButton], [this.legend, this.legendButton]]) {
        box.hidden = true;
        its.setAttribute("aria-expanded", "false");
      }
    };
    this.stage.addEventListener("pointerdown", this.clicked);
    if (this.options.hash) {
      this.hashed = () => { if (location.hash.slice(1) !== this.hash) location.reload(); };
      addEventListener("hashchange", this.hashed);
    }
  }

  // Where on the stage; asking for its place too often would make the browser lay out everything.
  at(event) {
    if (!this.corner || event.timeStamp - this.cornerAt > 250) {
      this.corner = this.stage.getBoundingClientRect();
      this.cornerAt = event.timeStamp;
    }
    return [event.clientX - this.corner.left, event.clientY - this.corner.top];
  }

  // The node, edge or title under the pointer; thin edges are found a few pixels away.
  over(event) {
    const direct = event.target.closest?.("[data-node], [data-layer], [data-edge]");
    if (direct) return direct;
    const root = this.root.getRootNode();
    for (const [dx, dy] of [[0, 3], [0, -3], [3, 0], [-3, 0], [0, 5], [0, -5]]) {
      const near = root.elementFromPoint(event.clientX + dx, event.clientY + dy)?.closest?.("[data-edge]");
      if (near && this.svg.contains(near)) return near;
    }
    return null;
  }

  wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey) return this.pan(-(event.deltaX || event.deltaY) * unit, 0);
    const speed = event.ctrlKey ? 0.01 : 0.0016;
    this.hideTip();
    return this.zoom(Math.exp(-event.deltaY * unit * speed), this.at(event), false);
  }

  pointerDown(event) {
    if (event.button !== 0) return;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.dragged = 0;
    this.pressed = this.over(event);
    this.hideTip();
  }

  pointerMove(event) {
    const last = this.pointers.get(event.pointerId);
    if (!last) return this.hover(event);
    const dx = event.clientX - last[0];
    const dy = event.clientY - last[1];
    this.dragged += Math.abs(dx) + Math.abs(dy);
    if (this.dragged > 4 && !this.stage.hasPointerCapture(event.pointerId)) this.stage.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) {
      const [id] = [...this.pointers.keys()].filter((other) => other !== event.pointerId);
      const other = this.pointers.get(id);
      const was = Math.hypot(last[0] - other[0], last[1] - other[1]) || 1;
      const is = Math.hypot(event.clientX - other[0], event.clientY - other[1]) || 1;
      const box = this.stage.getBoundingClientRect();
      this.zoom(is / was, [(event.clientX + other[0]) / 2 - box.left, (event.clientY + other[1]) / 2 - box.top], false);
      this.pan(dx / 2, dy / 2);
    } else {
      this.stage.classList.toggle("lf-dragging", this.dragged > 4);
      this.pan(dx, dy);
    }
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
  }

  pointerUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    this.stage.classList.remove("lf-dragging");
    if (this.dragged > 4 || event.type === "pointercancel") return;
    const { node, layer } = this.pressed?.dataset ?? {};
    if (node !== undefined) this.select(Number(node), false);
    else if (layer !== undefined) this.toggleLayer(Number(layer));
    else if (!this.pressed) this.unselect();
  }

  hover(event) {
    const over = event && this.over(event);
    if (!over) {
      if (this.hovered) { this.hovered = null; this.hideTip(); this.light(null); }
      return;
    }
    const { node, edge } = over.dataset;
    if (this.hovered !== over) {
      this.hovered = over;
      if (node !== undefined) {
        this.light(this.graph.paths(Number(node)));
        this.tip.replaceChildren(...this.words.tip(this.graph.nodes[Number(node)]));
      } else if (edge !== undefined) {
        const { source, target } = this.graph.edges[Number(edge)];
        this.light({ nodes: new Set([source, target].map((id) => this.graph.index.get(id))), edges: new Set([Number(edge)]) });
        this.tip.replaceChildren(...this.words.edgeTip(this.graph.edges[Number(edge)]));
      } else return this.hideTip();
      this.tip.hidden = false;
    }
    if (node !== undefined || edge !== undefined) this.placeTip(event);
  }

  placeTip(event) {
    const main = this.tip.parentElement.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    let x = event.clientX - main.left + 16;
    let y = event.clientY - main.top + 16;
    if (x + width > main.width - 8) x = Math.max(8, x - width - 32);
    if (y + height > main.height - 8) y = Math.max(8, main.height - height - 8);
    this.tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  hideTip() { this.tip.hidden = true; this.hovered = null; }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      this.legend.hidden = this.filters.hidden = true;
      this.hideTip();
      if (!event.target.closest("input")) this.unselect();
      return;
    }
    if (event.target.closest("input, select")) return;
    const step = 80;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const focused = event.target.closest("[data-node], [data-layer]");
    if (moves[event.key] && !event.target.closest(".lf-panel, .lf-pop")) this.pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.3);
    else if (event.key === "-" || event.key === "_") this.zoom(1 / 1.3);
    else if (event.key === "0") this.fit(true);
    else if (event.key === "/") this.searchBox.focus();
    else if (focused && (event.key === "Enter" || event.key === " ")) {
      const { node, layer } = focused.dataset;
      if (node !== undefined) this.select(Number(node), false);
      else {
        this.toggleLayer(Number(layer));
        this.svg.querySelector(`[data-layer="${Number(layer)}"]`)?.focus();
      }
    } else return;
    event.preventDefault();
  }

  // ------------------------------------------------------------ the address keeps the state

  writeHash() {
    if (!this.options.hash || !this.picture) return;
    const { data, raw, nodes } = this.graph;
    const { open, target, theme, palette, query, selected, hidden, head, sign, least } = this.state;
    const values = new URLSearchParams();
    const put = (name, value, usual) => { if (String(value) !== String(usual)) values.set(name, value); };
    put("open", [...open].sort((a, b) => a - b).join("."), data.layout.open.join("."));
    put("target", raw.candidates[target].id, raw.target.id);
    put("theme", theme, "auto");
    put("palette", palette, "paper");
    put("find", query, "");
    put("node", selected === null ? "" : nodes[selected].id, "");
    put("hide", [...hidden].join("."), "");
    put("head", head, "");
    put("sign", sign, "");
    put("least", least, 0);
    this.hash = values.toString();
    try {
      history.replaceState(null, "", this.hash ? `#${this.hash}` : location.pathname + location.search);
    } catch { /* frames without an address of their own */ }
  }

  readHash() {
    const values = new URLSearchParams(location.hash.slice(1));
    const { state, graph } = this;
    const openable = new Set(graph.data.layout.segments.filter((segment) => segment.open).map((segment) => segment.layer));
    if (values.has("open")) state.open = new Set(values.get("open").split(".").filter(Boolean).map(Number).filter((layer) => openable.has(layer)));
    const target = graph.raw.candidates.findIndex((word) => String(word.id) === values.get("target"));
    if (target >= 0) state.target = target;
    if (["light", "dark"].includes(values.get("theme"))) state.theme = values.get("theme");
    if (Object.hasOwn(graph.data.paint.palettes, values.get("palette") ?? "")) state.palette = values.get("palette");
    state.query = values.get("find") ?? "";
    if (graph.index.has(values.get("node"))) state.selected = graph.index.get(values.get("node"));
    state.hidden = new Set((values.get("hide") ?? "").split(".").filter((kind) => Object.hasOwn(NAMES, kind)));
    state.head = values.get("head") ?? "";
    state.sign = ["1", "-1"].includes(values.get("sign")) ? values.get("sign") : "";
    state.least = Math.min(1, Math.max(0, Number(values.get("least")) || 0));
  }

  destroy() {
    this.dark.removeEventListener("change", this.repaint);
    this.resized.disconnect();
    if (this.hashed) removeEventListener("hashchange", this.hashed);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.resting);
    this.element.replaceChildren();
  }
}

export function render(element, data, options = {}) {
  return new Flow(element, data, options);
}

export default {
  render({ model, el }) {
    const set = (name) => (value) => { model.set(name, value); model.save_changes(); };
    const show = () => render(el, JSON.parse(model.get("data")), {
      height: model.get("height"), onSelect: set("selected"), onTarget: set("target"),
    });
    let flow = show();
    const again = () => { flow.destroy(); flow = show(); };
    model.on("change:data", again);
    return () => { model.off("change:data", again); flow.destroy(); };
  },
};
