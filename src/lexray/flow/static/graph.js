// The graph and what is asked of it: paths, words, colours, widths, and the state of a page.
// Colours and widths repeat lexray.flow.draw.palette, percentages lexray.result.format; a browser
// test compares them.

export const STREAM = new Set(["embed", "residual", "sum", "mid"]);

// ------------------------------------------------------------ colours, as in palette.py

const channels = (colour) => [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16));

export function mix(a, b, share) {
  const part = Number.isNaN(share) ? 0 : Math.min(1, Math.max(0, share));
  const other = channels(b);
  const parts = channels(a).map((x, i) => Math.floor(x + (other[i] - x) * part + 0.5));
  return `#${parts.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
}

export function standing(rank, size) {
  const half = Math.log1p(size / 2);
  const [above, below] = [rank - 1, size - rank];
  return above <= below
    ? Math.max(0, 1 - Math.log1p(above) / half)
    : Math.min(0, Math.log1p(Math.max(below, 0)) / half - 1);
}

// ------------------------------------------------------------ numbers, as in format.py

export function percent(share, digits = null) {
  if (typeof share !== "number") return String(share);
  const value = 100 * share;
  const size = Math.abs(value);
  const fixed = (n) => `${groupDigits(value.toFixed(n), ",")} %`;
  if (digits !== null) return fixed(digits);
  if (size === 0 || size >= 9.95) return fixed(0);
  if (size < 0.01) return value > 0 ? "<0.01 %" : ">−0.01 %";
  return fixed(size >= 0.995 ? 1 : 2);
}

// As on cards in shapes.py: nothing where it is next to nothing.
export const cardShare = (p) => (p >= 0.001 ? percent(p, p < 0.0995 ? 1 : 0) : "");

// In lists, where the smallest differ as well.
export const chance = (p) => (p > 0 && p < 1e-4 ? `${(100 * p).toExponential(0)} %` : percent(p));

// At the bottom, where all are next to nothing: logits, up to a constant.
export const logChance = (p) => (p > 0 ? `ln p ${Math.log(p).toFixed(1)}` : "ln p −∞");

export function number(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return size >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

export const groupDigits = (n, by = "\u2009") =>
  String(n).replace(/(?<!\.\d*)\B(?=(\d{3})+(?!\d))/g, by);
const fold = (text) => text.toLowerCase().replace(/^[·\s]+/, "");

// ------------------------------------------------------------ the graph

export class Graph {
  constructor(data) {
    this.data = data;
    this.raw = data.graph;
    this.nodes = data.graph.nodes;
    this.edges = data.graph.edges;
    this.said = data.said;
    this.index = new Map(this.nodes.map((node, i) => [node.id, i]));
    this.into = this.nodes.map(() => []);
    this.outOf = this.nodes.map(() => []);
    this.edges.forEach((edge, i) => {
      this.outOf[this.index.get(edge.source)].push(i);
      this.into[this.index.get(edge.target)].push(i);
    });
    this.difference = Boolean(data.graph.other);
    this.weighed = this.edges.some((edge) => edge.added);
    this.quiet = new Set(data.layout.quiet);
    this.measure(this.weighed ? "logit" : "norm", 0);
    this.segmentOf = new Map();
    data.layout.segments.forEach((segment, i) => {
      for (const form of [segment.open, segment.closed])
        for (const box of form?.boxes ?? []) this.segmentOf.set(box[0], i);
    });
  }

  word(id) {
    return this.raw.vocabulary[id] ?? `#${id}`;
  }

  get openable() {
    return this.data.layout.segments.filter((s) => s.open).map((s) => s.layer);
  }

  near(i) {
    return [...this.into[i], ...this.outOf[i]];
  }

  // What widths and colours show: parts of the target's logit, or lengths and scores.
  measure(by, target) {
    this.by = by;
    this.target = target;
    this.most = {};
    for (const edge of this.edges) {
      const size = this.strength(edge);
      const group = this.group(edge);
      if (Number.isFinite(size)) this.most[group] = Math.max(this.most[group] ?? 0, size);
    }
    this.brought = this.nodes.map((_, i) => this.contribution(i));
    this.mostBrought = Math.max(...this.brought.map((share) => Math.abs(share ?? 0)), 1e-30);
  }

  isWeighed(edge) {
    return this.by !== "norm" && edge.added !== undefined;
  }

  // What an edge brings to a word's logit; of two runs, how much more than in the other.
  brings(edge, word = this.target) {
    return edge.added[word] - (edge.other_added?.[word] ?? 0);
  }

  // What widths and signs of differences show.
  signed(edge) {
    if (this.isWeighed(edge)) return this.brings(edge);
    return edge.sign * edge.score - (this.difference ? (edge.other_score ?? 0) : 0);
  }

  group(edge) {
    return `${edge.kind} ${this.isWeighed(edge)}`;
  }

  strength(edge) {
    return Math.abs(this.signed(edge));
  }

  share(edge) {
    const size = this.strength(edge);
    const most = this.most[this.group(edge)];
    return most && Number.isFinite(size) ? size / most : 0;
  }

  // What a node brings to the target's logit by all that it is added to.
  contribution(i) {
    const parts = this.outOf[i].map((e) => this.edges[e]).filter((edge) => edge.added);
    return parts.length ? parts.reduce((sum, edge) => sum + this.brings(edge), 0) : null;
  }

  fill(node, colours, target, contrast) {
    if (this.by === "both" && !STREAM.has(node.kind)) return this.fillByShare(node, colours);
    if (node.kind === "attn_bias" || node.kind === "ff_bias") return colours.bias;
    const at = (seen) => (seen ? standing(seen.places[target][0], this.raw.d_vocab) : 0);
    let share = at(node.reading);
    if (this.difference) share -= at(node.other);
    const pole = share >= 0 ? colours.good : colours.bad;
    return mix(colours.neutral, pole, Math.min(1, Math.abs(share)) ** contrast);
  }

  fillByShare(node, colours) {
    const share = (this.brought[this.index.get(node.id)] ?? 0) / this.mostBrought;
    return mix(
      colours.neutral,
      share >= 0 ? colours.good : colours.bad,
      Math.sqrt(Math.abs(share)),
    );
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
      return this.signed(edge) >= 0 ? colours.positive : colours.negative;
    if (edge.kind === "sum" && this.isWeighed(edge))
      return this.brings(edge) >= 0 ? colours.positive : colours.negative;
    if (edge.kind === "sum") {
      const flat = Math.log(Math.max(2, this.raw.d_vocab));
      const share = edge.entropy === undefined ? 0.35 : 1 - edge.entropy / flat;
      return mix(colours.sum_low, colours.sum_high, share);
    }
    if (edge.kind === "attention")
      return mix(colours.attention_low, colours.attention_high, edge.score);
    if (edge.kind === "activation") return edge.sign >= 0 ? colours.positive : colours.negative;
    return colours[edge.kind];
  }

  // All nodes and edges before and after one, as far as the residual stream.
  paths(start) {
    const nodes = new Set([start]);
    const edges = new Set();
    for (const [lists, end] of [
      [this.into, "source"],
      [this.outOf, "target"],
    ]) {
      const queue = [start];
      const seen = new Set(queue);
      while (queue.length) {
        const at = queue.pop();
        if (at !== start && STREAM.has(this.nodes[at].kind)) continue;
        for (const e of lists[at]) {
          edges.add(e);
          const next = this.index.get(this.edges[e][end]);
          nodes.add(next);
          if (!seen.has(next)) {
            seen.add(next);
            queue.push(next);
          }
        }
      }
    }
    return { nodes, edges };
  }

  // The nodes whose readings hold a word.
  search(query) {
    const wanted = fold(query);
    const exact = query.trim() !== "" && wanted === "" ? query.trim() : null;
    if (!wanted && !exact) return new Set();
    const matches = ([id]) => {
      const word = this.word(id);
      return exact ? word === exact : fold(word).includes(wanted);
    };
    const has = (seen) => (seen?.top ?? []).some(matches);
    const indices = [...this.nodes.keys()];
    return new Set(indices.filter((i) => has(this.nodes[i].reading) || has(this.nodes[i].other)));
  }

  // What the filters take away: nodes by number, and whether an edge is gone.
  hide({ hidden, head, sign, least }) {
    const passes = (edge) =>
      (sign === "" || edge.kind !== "activation" || String(edge.sign) === sign) &&
      this.share(edge) >= least;
    const gone = this.edges.map((edge) => !passes(edge));
    const decides = (i) => {
      const near = this.near(i);
      const by = near.filter((e) =>
        ["attention", "activation", "query"].includes(this.edges[e].kind),
      );
      return by.length ? by : near;
    };
    const faint = (node, i) => {
      const by = STREAM.has(node.kind) ? [] : decides(i);
      return by.length > 0 && by.every((e) => gone[e]);
    };
    const nodes = new Set();
    this.nodes.forEach((node, i) => {
      const foreign = head !== "" && node.head !== undefined && String(node.head) !== head;
      if (hidden.has(node.kind) || foreign) nodes.add(i);
      else if ((sign !== "" || least > 0) && faint(node, i)) nodes.add(i);
    });
    const ends = ({ source, target }) => [this.index.get(source), this.index.get(target)];
    return { nodes, edge: (e) => gone[e] || ends(this.edges[e]).some((i) => nodes.has(i)) };
  }
}

// ------------------------------------------------------------ the address keeps the state

export function initialState(graph) {
  return {
    open: new Set(graph.data.layout.open),
    target: graph.raw.candidates.findIndex((word) => word.id === graph.raw.target.id),
    theme: "auto",
    palette: "paper",
    query: "",
    selected: null,
    hidden: new Set(),
    head: "",
    sign: "",
    least: 0,
    by: graph.weighed ? "logit" : "norm",
    loud: new Set(),
    pins: [...(graph.raw.pins ?? [])].map((pin) => ({ nodes: [...pin.nodes], name: pin.name })),
  };
}

export const MEASURES = [
  ["logit", "width: logit"],
  ["norm", "width: norm"],
  ["both", "width and colour: logit"],
];

// Only what differs from the usual.
export function stateToText(graph, state) {
  const { data, raw, nodes } = graph;
  const values = new URLSearchParams();
  const put = (name, value, usual) => {
    if (String(value) !== String(usual)) values.set(name, value);
  };
  put("open", [...state.open].sort((a, b) => a - b).join("."), data.layout.open.join("."));
  put("target", raw.candidates[state.target].id, raw.target.id);
  put("theme", state.theme, "auto");
  put("palette", state.palette, "paper");
  put("find", state.query, "");
  put("node", state.selected === null ? "" : nodes[state.selected].id, "");
  put("hide", [...state.hidden].join("."), "");
  put("head", state.head, "");
  put("sign", state.sign, "");
  put("least", state.least, 0);
  put("by", state.by, graph.weighed ? "logit" : "norm");
  put("loud", [...state.loud].join("."), "");
  return values.toString();
}

// The same back; what makes no sense is left as it usually is.
export function stateFromText(graph, text) {
  const state = initialState(graph);
  const values = new URLSearchParams(text);
  const get = (name) => values.get(name) ?? "";
  const listed = (name) => get(name).split(".").filter(Boolean);
  if (values.has("open")) {
    const openable = new Set(graph.openable);
    state.open = new Set(
      listed("open")
        .map(Number)
        .filter((layer) => openable.has(layer)),
    );
  }
  const target = graph.raw.candidates.findIndex((word) => String(word.id) === get("target"));
  if (target >= 0) state.target = target;
  if (["light", "dark"].includes(get("theme"))) state.theme = get("theme");
  if (Object.hasOwn(graph.data.paint.palettes, get("palette"))) state.palette = get("palette");
  state.query = get("find");
  if (graph.index.has(get("node"))) state.selected = graph.index.get(get("node"));
  state.hidden = new Set(listed("hide").filter((kind) => Object.hasOwn(graph.said.nodes, kind)));
  state.head = get("head");
  state.sign = ["1", "-1"].includes(get("sign")) ? get("sign") : "";
  if (graph.weighed && MEASURES.some(([name]) => name === get("by"))) state.by = get("by");
  state.loud = new Set(listed("loud").map(Number));
  state.least = Math.min(1, Math.max(0, Number(get("least")) || 0));
  return state;
}
