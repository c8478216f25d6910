// What is said about nodes and edges, in words: tooltips, the panel, the legend, the filters.
// Every text goes through textContent. The sentences themselves come from lexray.flow.draw.legend.

import { chance, groupDigits, logChance, number, percent, STREAM } from "./graph.js";

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function how(reading) {
  return reading?.how === "standardised" ? ": more than is usual here" : "";
}

// A sign is called by what it does; a word calls itself, and the rest is its title.
export function button(label, text, action, more = {}) {
  const name = text && !/\w/.test(text) ? { "aria-label": label } : {};
  const attributes = { type: "button", title: label, ...name, onclick: action };
  return make("button", { ...attributes, ...more }, text);
}

function table(rows) {
  const parts = rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  return make("dl", {}, ...parts);
}

export class Words {
  constructor(graph, state) {
    this.graph = graph;
    this.state = state;
  }

  // Tokens with bars as long as their probability (or score) is large.
  list(words, title, shown = chance) {
    const most = Math.max(...words.map(([, weight]) => Math.abs(weight)), 1e-30);
    const target = this.graph.raw.candidates[this.state.target].id;
    const rows = words.map(([id, weight]) => {
      const bar = make("span", { class: "lf-bar-fill" });
      bar.style.width = `${(100 * Math.abs(weight)) / most}%`;
      return make(
        "li",
        { class: id === target ? "lf-is-target" : null, title: `token ${id}` },
        bar,
        make("span", { class: "lf-bar-word" }, this.graph.word(id)),
        make("span", { class: "lf-bar-number" }, shown(weight)),
      );
    });
    return make("div", { class: "lf-list" }, make("h4", {}, title), make("ol", {}, ...rows));
  }

  // Why a word of a high rank may be missing from the list above it.
  missing(seen) {
    const { candidates, filter } = this.graph.raw;
    const { id, shown } = candidates[this.state.target];
    const rank = seen.places[this.state.target][0];
    if (!filter || rank > seen.top.length || seen.top.some(([other]) => other === id)) return null;
    const said = `${shown} has rank ${rank} and is not listed: only ${filter} is.`;
    return make("p", { class: "lf-explained" }, said);
  }

  place(seen) {
    if (!seen) return "";
    const [rank, p] = seen.places[this.state.target];
    const size = groupDigits(this.graph.raw.d_vocab);
    return `rank ${groupDigits(rank)} of ${size}, ${chance(p)}`;
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
    const brought = this.graph.brought[this.graph.index.get(node.id)];
    const more = this.graph.difference ? " more than the other run" : "";
    if (brought !== null) rows.push([`to the logit of ${target}${more}`, number(brought)]);
    if (node.count !== undefined) rows.push(["stands for", `${groupDigits(node.count)} vectors`]);
    if (all) {
      rows.push(["layer", String(node.layer)]);
      if (node.head !== undefined) rows.push(["head", String(node.head)]);
      const token = this.graph.raw.tokens[node.position] ?? "";
      if (node.position !== undefined)
        rows.push(["token", `${token} at position ${node.position}`]);
      if (node.address !== undefined) rows.push(["parameter", node.address]);
    }
    return table(rows);
  }

  // The coefficient with which a node took part: the strongest multiplication edge at it.
  score(node) {
    const i = this.graph.index.get(node.id);
    const near = this.graph.near(i).map((e) => this.graph.edges[e]);
    const single = ["key", "value", "ff_value", "ff_key", "ff_gate", "o_neuron"];
    for (const kind of ["activation", "attention"]) {
      const own = near.filter((edge) => edge.kind === kind);
      if (own.length === 1 || (own.length && single.includes(node.kind))) {
        const edge = own[own.length - 1];
        return [kind, number(edge.sign * edge.score)];
      }
    }
    return null;
  }

  heading(node) {
    const { name } = this.graph.said.nodes[node.kind];
    return make("header", {}, make("strong", {}, node.address ?? node.id), make("span", {}, name));
  }

  tip(node) {
    const seen = node.reading ?? node.other;
    const parts = [this.heading(node), this.facts(node, false)];
    return seen ? [...parts, this.list(seen.top, "reads as")] : parts;
  }

  edgeTip(edge) {
    const rows = [["score", number(edge.sign * edge.score)]];
    if (edge.other_score !== undefined) rows.push(["other run", number(edge.other_score)]);
    if (edge.value !== undefined) rows.push(["norm carried", number(edge.value)]);
    if (edge.added) rows.push(["to the target's logit", number(edge.added[this.state.target])]);
    if (edge.other_added)
      rows.push(["in the other run", number(edge.other_added[this.state.target])]);
    if (edge.entropy !== undefined) rows.push(["entropy", `${number(edge.entropy)} nats`]);
    rows.push(["of the strongest", percent(this.graph.share(edge))]);
    const name = make("strong", {}, this.graph.said.edges[edge.kind]);
    const ends = make("span", {}, `${edge.source} → ${edge.target}`);
    return [make("header", {}, name, ends), table(rows)];
  }

  panel(node, choose) {
    const { explained } = this.graph.said.nodes[node.kind];
    const column = (title, seen, shown) =>
      seen &&
      make(
        "section",
        {},
        make("h3", {}, title),
        this.list(seen.top, "top", shown),
        seen.places ? this.missing(seen) : null,
        this.list(seen.bottom, "bottom", shown === chance ? logChance : shown),
      );
    const readings = make(
      "div",
      { class: "lf-readings" },
      column(
        `${node.other ? "this run" : "in this run"}${how(node.reading)}`,
        node.reading,
        chance,
      ),
      column("other run", node.other, chance),
      column(`the parameter itself (${this.graph.raw.reading})`, node.static, number),
    );
    const i = this.graph.index.get(node.id);
    const parts = [
      this.heading(node),
      make("p", { class: "lf-explained" }, explained),
      this.facts(node, true),
      readings,
      node.reading && this.candidates(node),
      this.links("flows in", this.graph.into[i], "source", choose),
      this.links("flows out", this.graph.outOf[i], "target", choose),
    ];
    return parts.filter(Boolean);
  }

  candidates(node) {
    const row = (cell, values, attributes = {}) =>
      make("tr", attributes, ...values.map((value) => make(cell, {}, value)));
    const rows = this.graph.raw.candidates.map((word, i) => {
      const [rank, p] = node.reading.places[i];
      const chosen = { class: i === this.state.target ? "lf-is-target" : null };
      return row("td", [word.shown, groupDigits(rank), chance(p)], chosen);
    });
    const head = make("thead", {}, row("th", ["word", "rank", "probability"]));
    const body = make("tbody", {}, ...rows);
    return make("section", {}, make("h3", {}, "words of interest"), make("table", {}, head, body));
  }

  links(title, edges, end, choose) {
    if (!edges.length) return null;
    const all = edges.map((e) => this.graph.edges[e]);
    all.sort((a, b) => this.graph.share(b) - this.graph.share(a));
    const rows = all.slice(0, 40).map((edge) => {
      const i = this.graph.index.get(edge[end]);
      const node = this.graph.nodes[i];
      const seen = node.reading ?? node.other;
      const word = seen?.top.length ? this.graph.word(seen.top[0][0]) : "";
      const link = make(
        "button",
        { type: "button", class: "lf-link", onclick: () => choose(i) },
        make("span", {}, node.id),
        make("b", {}, word),
        make("span", {}, number(edge.sign * edge.score)),
      );
      return make("li", {}, link);
    });
    const name = make("h3", {}, `${title} (${edges.length})`);
    return make("section", { class: "lf-links" }, name, make("ul", {}, ...rows));
  }
}

// ------------------------------------------------------------ legend and filters

export function buildLegend({ legend, said }) {
  const rows = legend.map(({ text, colours, node }) => {
    const keys = colours.map((name) => {
      const key = make("i", { class: node ? "lf-key-node" : "lf-key-edge" });
      key.style.background = `var(--lf-${name})`;
      return key;
    });
    return make("li", {}, make("span", { class: "lf-keys" }, ...keys), make("span", {}, text));
  });
  const [first, ...others] = said.hints.map((hint) => make("p", {}, hint));
  return make(
    "div",
    { class: "lf-pop lf-legend", hidden: true },
    make("h3", {}, "How to read this"),
    first,
    make("ul", {}, ...rows),
    ...others,
  );
}

// Boxes and lists that write into the state and say when they have.
export function buildFilters(graph, state, changed) {
  const kinds = [...new Set(graph.nodes.map((node) => node.kind))].filter((k) => !STREAM.has(k));
  const heads = [...new Set(graph.nodes.map((node) => node.head))].filter((h) => h !== undefined);
  const tick = (kind) => {
    const turn = () => {
      if (box.checked) state.hidden.delete(kind);
      else state.hidden.add(kind);
      changed();
    };
    const checked = !state.hidden.has(kind);
    const box = make("input", { type: "checkbox", value: kind, checked, onchange: turn });
    return make("label", {}, box, graph.said.nodes[kind].name);
  };
  const choice = (key, values) => {
    const turn = () => {
      state[key] = select.value;
      changed();
    };
    const options = values.map(([value, text]) =>
      make("option", { value, selected: String(state[key]) === String(value) }, text),
    );
    const attributes = { "aria-label": key, "data-filter": key, onchange: turn };
    const select = make("select", attributes, ...options);
    return make("label", { class: "lf-row" }, key, select);
  };
  const shown = make("output", {}, `${Math.round(100 * state.least)} %`);
  const slide = () => {
    state.least = Number(least.value) / 100;
    shown.textContent = `${least.value} %`;
    changed();
  };
  const range = { type: "range", min: 0, max: 100, value: 100 * state.least };
  const least = make("input", { ...range, "aria-label": "least score", oninput: slide });
  const byHead = heads.sort((a, b) => a - b).map((head) => [head, String(head)]);
  const signs = [
    ["", "both"],
    ["1", "positive"],
    ["-1", "negative"],
  ];
  return make(
    "div",
    { class: "lf-pop lf-filters", hidden: true },
    make("h3", {}, "Show"),
    make("div", { class: "lf-kinds" }, ...kinds.map(tick)),
    heads.length ? choice("head", [["", "all"], ...byHead]) : null,
    choice("sign", signs),
    make("label", { class: "lf-row" }, "at least", least, shown),
    make("p", {}, "of the strongest line of its kind"),
  );
}
